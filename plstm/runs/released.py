"""Parameters of the released linen models as ours, and back: `from_released` and `to_released`.

A released model is a flat dictionary of arrays, "/" between the levels of a name. Its gate n has direction n mod 4, as
ours has: its directions 0 to 3 flip nothing, rows, columns, both; ours nothing, columns, rows, both. A gate reads its
own dim / N channels, so the residual channels are permuted with the N = 4 x heads gates. Its head reads the corners top
left, bottom left, top right, bottom right; ours reads them row by row.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from plstm.errors import UserError
from plstm.models import VisionConfig, VisionModel, named_variables
from plstm.nn.gates import DIRECTIONS

SWAPPED = [0, 2, 1, 3]  # directions, or corners: the released number of ours
# Rows: released name; its shape, in the symbols of `_leaves`; our name; the order along each of our axes: of residual
# channels (r), of gates (g), of what the head reads (c), or as released (.). T: our matrix is the transpose of theirs.
# Rows of parameters that a model does not have are left out.
MODEL = (
    ("patch_embed/proj/kernel", "p p i D", "embedding.project.kernel", ".r"),
    ("patch_embed/proj/bias", "D", "embedding.project.bias", "r"),
    ("pos_embed/embed", "1 g g D", "position", "..r"),
    ("cls_token", "D 1", "class_token", "r"),
    ("norm/norm/scale", "D", "norm.scale", "r"),
    ("head/kernel", "R C", "head.kernel", "c."),
    ("head/bias", "C", "head.bias", "."),
)
BLOCK = (
    ("norm/norm/scale", "D", "mixer_norm.scale", "r"),
    ("scale/scale", "D", "mixer_scale.scale", "r"),
    ("norm2/norm/scale", "D", "mlp_norm.scale", "r"),
    ("upproj/kernel", "D M", "mlp.up.kernel", "r."),
    ("upproj/bias", "M", "mlp.up.bias", "."),
    ("downproj/kernel", "M D", "mlp.down.kernel", ".r"),
    ("downproj/bias", "D", "mlp.down.bias", "r"),
    ("scale2/scale", "D", "mlp_scale.scale", "r"),
)
QKV = (("query", "query"), ("key", "key"), ("value_", "value"))  # as in pLSTM; ViT has our names
ATTENTION = (
    *((f"multiheadattention/{name}/kernel", "D H h", f"mixer.qkv.{name}.kernel", "r.") for _, name in QKV),
    *((f"multiheadattention/{name}/bias", "H h", f"mixer.qkv.{name}.bias", ".") for _, name in QKV),
    ("multiheadattention/out/kernel", "H h D", "mixer.out.kernel", ".r"),
    ("multiheadattention/out/bias", "D", "mixer.out.bias", "r"),
)
PLSTM = (
    *((f"interaction_module/{name}/weight", "H h 1 1 D", f"mixer.qkv.{ours}.kernel", "r.T") for name, ours in QKV),
    *((f"interaction_module/{name}/bias", "H h 1", f"mixer.qkv.{ours}.bias", ".") for name, ours in QKV),
    ("interaction_module/direct/bias", "H 1 1 1 1", "mixer.direct_bias", "."),
    ("interaction_module/orientation_weight", "4 H D", "mixer.gates.orientation.weight", "rgT"),
    ("interaction_module/orientation_bias", "4 H", "mixer.gates.orientation.bias", "g"),
    ("interaction_module/mhnorm/norm/scale", "H h", "mixer.norm_scale", "."),
    ("interaction_module/outprojection/kernel", "D D", "mixer.out.kernel", ".r"),
)
KINDS = {  # in the order of `plstm.nn.gates`; the released code's "down" and "right" are our right and down
    "P": ("source", "transition", "mark"),
    "D": ("source_d", "source_r", "transition_d", "transition_rd", "transition_r", "mark_u", "mark_l"),
}


class Leaf(NamedTuple):
    """A released array, and the slice `ours[index]` of a parameter that holds the same numbers.

    The slice is view(released)[order]: along each axis `order` has the released index of each of our entries.
    """

    name: str
    shape: tuple[int, ...]
    ours: str
    index: tuple[int, ...]
    transposed: bool
    order: tuple[np.ndarray, ...]

    def view(self, released: np.ndarray) -> np.ndarray:
        """The released array with the axes of the slice."""
        shape = tuple(axis.size for axis in self.order)
        return released.reshape(shape[::-1]).T if self.transposed else released.reshape(shape)


def from_released(tree: Mapping[str, np.ndarray], config: VisionConfig) -> VisionModel:
    """The model of `config` with released parameters. Raises UserError naming the first that does not fit."""
    config.check()
    graphdef, state = nnx.split(nnx.eval_shape(lambda: VisionModel(config, nnx.Rngs(0))))
    params = named_variables(state)
    leaves = _leaves(config, params)
    _refuse_other_leaves(tree, leaves)
    arrays = {name: np.empty(param.shape, np.float32) for name, param in params.items()}
    for leaf in leaves:
        arrays[leaf.ours][leaf.index] = leaf.view(tree[leaf.name])[leaf.order]
    for name, param in params.items():
        param.set_value(jnp.asarray(arrays[name]))
    return nnx.merge(graphdef, state)


def to_released(model: VisionModel, config: VisionConfig) -> dict[str, np.ndarray]:
    """The inverse of `from_released`: float32 arrays by released name."""
    arrays = {name: np.asarray(param[...]) for name, param in named_variables(nnx.state(model, nnx.Param)).items()}
    tree = {}
    for leaf in _leaves(config, arrays):
        tree[leaf.name] = np.empty(leaf.shape, np.float32)
        leaf.view(tree[leaf.name])[leaf.order] = arrays[leaf.ours][leaf.index]
    return tree


def infer_config(tree: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The keys of `VisionConfig` that follow from a released model's names and shapes. Raises UserError."""

    def shape(name: str, axes: int) -> tuple[int, ...]:
        if name not in tree or tree[name].ndim != axes:
            raise UserError(f"{name}: not in the checkpoint as an array of {axes} axes")
        return tree[name].shape

    is_vit = any(name.startswith("blocks_0/") for name in tree)
    patch, _, _, dim = shape("patch_embed/proj/kernel", 4)
    keys = {"patch_size": patch, "dim": dim, "classes": shape("head/kernel", 2)[1]}
    keys["depth"] = sum(name.endswith("/upproj/kernel") for name in tree)
    keys["position_embedding"] = "pos_embed/embed" in tree
    if keys["position_embedding"]:
        keys["image_size"] = patch * shape("pos_embed/embed", 4)[1]
    if is_vit:
        return keys | {"modes": ["attention"], "heads": shape("blocks_0/multiheadattention/query/bias", 2)[0]}
    mixers = [f"{_block_path(layer, False)}/interaction_module" for layer in range(2)]
    modes = ["P" if f"{mixer}/orientation_bias" in tree else "D" for mixer in mixers]
    bias_only = not any(f"{mixers[0]}/{kinds[0]}/weight" in tree for kinds in KINDS.values())
    keys |= {"heads": shape(f"{mixers[0]}/direct/bias", 5)[0], "stm_bias_only": bias_only}
    return keys | {"modes": modes if modes[0] != modes[1] else modes[:1]}


# ---------------------------------------------------------------------- the map
def _leaves(config: VisionConfig, params: Mapping[str, Any]) -> list[Leaf]:
    """The map for a model with these parameters. Raises UserError where one has no released counterpart."""
    dim = config.dim
    gates = DIRECTIONS * config.heads
    grid = config.image_size // config.patch_size
    orders = _orders(config)
    leaves = []
    symbols = {"D": dim, "H": config.heads, "h": dim // config.heads, "N": gates, "n": dim // gates}
    symbols |= {"p": config.patch_size, "i": config.channels, "g": grid, "C": config.classes}
    symbols |= {"M": config.mlp_ratio * dim, "R": orders["c"].size}
    for name, shape, ours, axes, index in _rows(config):
        if ours in params:
            sizes = params[ours].shape[len(index) :]
            order = np.ix_(*(orders.get(axis, np.arange(size)) for axis, size in zip(axes, sizes, strict=False)))
            shape = tuple(symbols[size] if size in symbols else int(size) for size in shape.split())
            leaves.append(Leaf(name, shape, ours, index, axes.endswith("T"), order))
    if other := sorted(params.keys() - {leaf.ours for leaf in leaves}):
        raise UserError(f"{other[0]}: released models have no such parameter")
    return leaves


def _rows(config: VisionConfig) -> Iterator[tuple[str, str, str, str, tuple[int, ...]]]:
    """The rows of the tables for every layer, each with the index of its slice."""
    for row in MODEL:
        yield *row, ()
    for layer in range(config.depth):
        group, n = divmod(layer, len(config.modes))
        mode = config.modes[n]
        rows = [(*row, ()) for row in BLOCK + (ATTENTION if mode == "attention" else PLSTM)]
        for kind, released in enumerate(KINDS.get(mode, ())):
            name = f"interaction_module/{released}/"
            weight = "1 N 1 1 1 n"
            bias = "N 1 1 1"
            if released.startswith("transition"):
                name = f"{name}eigenvalues_"
                weight = "1 N 1 n"
                bias = "N 1"
            rows.append((f"{name}weight", weight, "mixer.gates.gates.weight", "g.", (kind,)))
            rows.append((f"{name}bias", bias, "mixer.gates.gates.bias", "g", (kind,)))
        for name, shape, ours, axes, index in rows:
            name = f"{_block_path(layer, mode == 'attention')}/{name}"
            yield name, shape, f"groups.blocks.{n}.{ours}", axes, (group, *index)


def _block_path(layer: int, is_vit: bool) -> str:
    return f"blocks_{layer}" if is_vit else f"block_stack/blocks_{layer // 2}/block{layer % 2}"


def _orders(config: VisionConfig) -> dict[str, np.ndarray]:
    """The released index of each of our gates, residual channels, and rows of the head."""
    gates = np.arange(DIRECTIONS * config.heads).reshape(-1, DIRECTIONS)[:, SWAPPED].ravel()
    residual = np.arange(config.dim)
    if "attention" not in config.modes:
        residual = residual.reshape(gates.size, -1)[gates].ravel()
    corners = np.arange(4 * config.dim).reshape(4, -1)[SWAPPED][:, residual].ravel()
    return {"g": gates, "r": residual, "c": corners if config.pooling == "corners" else residual}


def _refuse_other_leaves(tree: Mapping[str, np.ndarray], leaves: list[Leaf]) -> None:
    if other := sorted(tree.keys() - {leaf.name for leaf in leaves}):
        raise UserError(f"{other[0]}: not a parameter of this model; is it the experiment of this checkpoint?")
    for leaf in leaves:
        if leaf.name not in tree:
            raise UserError(f"{leaf.name}: not in the checkpoint; expected floats of shape {leaf.shape}")
        value = tree[leaf.name]
        if value.shape != leaf.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            raise UserError(f"{leaf.name}: is {value.dtype} {value.shape}; expected floats of shape {leaf.shape}")
