"""pLSTM-Vis and ViT on one backbone (arXiv 2506.11997, Appendix E.1): the mixer and the pooling are the difference."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Interval, MinLen
from flax import nnx

from plstm.errors import UserError, require
from plstm.limits import OneOf, OnlyWith, Rate, Size, check_limits
from plstm.nn.layers import (
    DTYPES,
    MLP,
    NORMS,
    Dtype,
    LayerScale,
    PatchEmbedding,
    drop_path,
    exact,
    linear,
    norm,
    recomputes,
    resize,
    run_block,
    spread,
)
from plstm.nn.mixers import AttentionMixer, PLSTMMixer
from plstm.nn.sequence import MAX_TRACK
from plstm.nn.tracking import TRANSITIONS, TrackingMixer
from plstm.ops.grid import METHODS, WIDEST_FUSED, gating_matrix

Mode = Annotated[str, OneOf("P", "D", "attention")]
WITH_GATES = OnlyWith("modes", ("P", "D"))
MAX_UNROLLED = 4  # blocks


@dataclass
class VisionConfig:
    """The whole architecture; `configs/model/*.yaml` hold the published sizes."""

    family: str = "vision"  # of plstm.models.MODELS
    image_size: Size = 192  # pixels a side in training; others are accepted, the position embedding is then resized
    channels: Size = 3  # of an image
    classes: Size = 1000  # logits; the files of configs/model take the data's
    patch_size: Size = 16  # pixels a side
    dim: Size = 192  # channels
    depth: Size = 12  # blocks
    heads: Size = 3  # of the mixers; must divide dim
    mlp_ratio: Size = 4  # units of the MLP over dim
    modes: Annotated[list[Mode], MinLen(1)] = field(default_factory=lambda: ["P", "D"])  # repeated over the layers
    # See plstm.nn.gates.PModeGates.
    gates: Annotated[str, OneOf("released", "printed"), OnlyWith("modes", ("P",))] = "released"
    stm_bias_only: Annotated[bool, WITH_GATES] = False  # source, transition and mark without input weights
    direct_weight: Annotated[bool, WITH_GATES] = False  # an input weight of the direct gate
    # normal: of std sqrt(0.4 / (4 heads)).
    gate_init: Annotated[str, OneOf("zeros", "normal"), WITH_GATES] = "zeros"
    # bfloat16, as released: transitions that start at tanh(5) stay at 1, see plstm.nn.gates.squash_transition.
    transition_dtype: Annotated[Dtype, WITH_GATES] = "float32"
    # Rows of pLSTM's transitions: matrices that track states, in gates of their own. null: the paper's scalar gates.
    track: Annotated[int, Interval(ge=1, le=MAX_TRACK), WITH_GATES] | None = None
    transitions: Annotated[str, OneOf(*TRANSITIONS)] = "rotation"  # of `track`, see plstm.nn.tracking
    position_embedding: bool = True  # learned, added to the patches
    pooling: Annotated[str, OneOf("corners", "class_token")] = "corners"  # what the head reads
    norm: Annotated[str, OneOf(*NORMS)] = "rmsnorm"  # before each mixer and MLP
    layer_scale: float | None = None  # its start; none: no LayerScale
    drop_path: Rate = 0.0  # the same at every depth
    dtype: Dtype = "bfloat16"  # of the matrix products; parameters, norms, gates and head are float32
    method: Annotated[str, OneOf(*METHODS), WITH_GATES] = "auto"  # of plstm.ops.grid.plstm2d
    # Keep only the blocks' inputs for the backward pass and compute the rest again: less memory. null: on GPUs.
    remat: bool | None = None

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        modes = len(self.modes)
        attention = "attention" in self.modes
        fits = self.method != "fused" or self.image_size // self.patch_size <= WIDEST_FUSED
        no_token = "a class token has no place on pLSTM's grid; use corners"
        of_gates = f"pLSTM's gates need 4 x heads to divide model.dim={self.dim}"
        require(
            self,
            ("modes", not attention or len(set(self.modes)) == 1, "attention cannot alternate with P or D"),
            ("pooling", self.pooling != "class_token" or attention, no_token),
            ("depth", self.depth % modes == 0, f"must be a multiple of the {modes} model.modes"),
            ("patch_size", self.image_size % self.patch_size == 0, f"must divide model.image_size={self.image_size}"),
            ("method", fits, f"takes {WIDEST_FUSED} patches a side; use auto"),
            ("heads", self.dim % self.heads == 0, f"must divide model.dim={self.dim}"),
            *self._scalar_gates_alone(),
            ("heads", attention or self.track is not None or self.dim % (4 * self.heads) == 0, of_gates),
            prefix="model.",
        )

    def _scalar_gates_alone(self) -> Iterator[tuple[str, bool, str]]:
        """Requirements: keys of the scalar gates stay at their defaults with `track`, `transitions` without it."""
        if self.track is None:
            yield "transitions", self.transitions == "rotation", "needs model.track"
            return
        yield "track", self.dim % (self.heads * self.track) == 0, f"times model.heads must divide model.dim={self.dim}"
        for key in ("gates", "stm_bias_only", "direct_weight", "gate_init", "transition_dtype", "method"):
            usual = getattr(VisionConfig, key)
            yield key, getattr(self, key) == usual, f"model.track has gates of its own; use {usual}"


def make_mixer(config: VisionConfig, mode: str, rngs: nnx.Rngs) -> AttentionMixer | PLSTMMixer | TrackingMixer:
    """The mixer of a block."""
    dtype = DTYPES[config.dtype]
    size = config.dim, config.heads
    if mode == "attention":
        return AttentionMixer(*size, dtype=dtype, rngs=rngs)
    if (track := config.track) is not None:
        return TrackingMixer(*size, mode, track=track, transitions=config.transitions, dtype=dtype, rngs=rngs)
    normal = nnx.initializers.normal(math.sqrt(0.4 / (4 * config.heads)))
    return PLSTMMixer(
        config.dim,
        config.heads,
        mode,
        released=config.gates == "released",
        bias_only=config.stm_bias_only,
        direct_weight=config.direct_weight,
        gate_init=normal if config.gate_init == "normal" else nnx.initializers.zeros,
        transition_dtype=DTYPES[config.transition_dtype],
        dtype=dtype,
        method=config.method,
        rngs=rngs,
    )


class Block(nnx.Module):
    """A pre-norm residual block: mixer, then MLP."""

    def __init__(self, config: VisionConfig, mode: str, rngs: nnx.Rngs):
        self.rate = config.drop_path
        self.mixer_norm = norm(config.norm, config.dim, rngs)
        self.mixer = make_mixer(config, mode, rngs)
        self.mlp_norm = norm(config.norm, config.dim, rngs)
        self.mlp = MLP(config.dim, config.mlp_ratio, dtype=DTYPES[config.dtype], rngs=rngs)
        start = config.layer_scale
        self.mixer_scale, self.mlp_scale = (None if start is None else LayerScale(config.dim, start) for _ in range(2))

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """[batch, ..., dim] -> the same; `key` turns stochastic depth on."""
        keys = (None, None) if key is None else jax.random.split(key)
        for layer_norm, layer, scale, key in (
            (self.mixer_norm, self.mixer, self.mixer_scale, keys[0]),
            (self.mlp_norm, self.mlp, self.mlp_scale, keys[1]),
        ):
            branch = layer(layer_norm(x)).astype(x.dtype)
            branch = branch if scale is None else scale(branch)
            x = x + drop_path(branch, self.rate, key)
        return x


Capture = Callable[[Block, jax.Array], Any]


class BlockGroup(nnx.Module):
    """One block of each mode in turn; the unit that repeats over the depth."""

    def __init__(self, config: VisionConfig, rngs: nnx.Rngs):
        self.blocks = nnx.List([Block(config, mode, rngs) for mode in config.modes])
        self.remat = recomputes(config.remat)

    def __call__(self, x: jax.Array, key: jax.Array | None, capture: Capture) -> tuple[jax.Array, list[Any]]:
        """[batch, ..., dim] -> the same, and what `capture(block, its input)` returned for each block."""
        captured = []
        for n, block in enumerate(self.blocks):
            captured.append(capture(block, x))
            block_key = None if key is None else jax.random.fold_in(key, n)
            x = run_block(block, x, block_key, remat=self.remat)
        return x, captured


class VisionModel(nnx.Module):
    """Image classifier. The groups' parameters are stacked and scanned over, so compile time is flat in depth."""

    def __init__(self, config: VisionConfig, rngs: nnx.Rngs):
        if config.method == "fused" and (backend := jax.default_backend()) != "gpu":  # not asked before it is needed
            raise UserError(f"model.method=fused: runs on GPUs alone, and this is {backend}; use auto")
        dtype = DTYPES[config.dtype]
        grid = config.image_size // config.patch_size
        self.patch_size = config.patch_size
        self.groups_count = config.depth // len(config.modes)
        self.embedding = PatchEmbedding(config.patch_size, config.channels, config.dim, dtype=dtype, rngs=rngs)
        of_position = nnx.initializers.truncated_normal(0.02)
        of_token = nnx.initializers.normal(math.sqrt(0.4 / config.dim))  # as released

        def draw(start: nnx.Initializer, *shape: int) -> nnx.Param:
            return nnx.Param(start(rngs.params(), (*shape, config.dim), jnp.float32))

        self.position = draw(of_position, grid, grid) if config.position_embedding else None
        self.class_token = draw(of_token) if config.pooling == "class_token" else None
        self.flat = "attention" in config.modes
        make = nnx.vmap(lambda key: BlockGroup(config, nnx.Rngs(key)), in_axes=0, out_axes=0)
        self.groups = make(jax.random.split(rngs.params(), self.groups_count))
        self.norm = norm(config.norm, config.dim, rngs)
        pooled = config.dim * (4 if config.pooling == "corners" else 1)
        head_init = nnx.initializers.lecun_normal()
        self.head = linear(pooled, config.classes, **exact(), rngs=rngs, kernel_init=head_init)

    def __call__(self, images: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Normalised images [batch, height, width, channels] of any size that the patch size divides -> float32 logits
        [batch, classes]. `key` makes it a training pass (stochastic depth); otherwise it is deterministic."""
        x, _ = self.apply_blocks(self.embed(images), key)
        return self.head(self.pool(x, (images.shape[1] // self.patch_size, images.shape[2] // self.patch_size)))

    def apply_blocks(
        self, x: jax.Array, key: jax.Array | None = None, capture: Capture = lambda block, x: None
    ) -> tuple[jax.Array, list[Any]]:
        """Runs all blocks on the tokens of `embed`. Returns the tokens, and a list of what `capture(block, its input)`
        returned for each block of a group, with the groups on axis 0."""
        graphdef, stacked = nnx.split(self.groups)

        def apply_group(x, inputs):
            state, n = inputs
            group_key = None if key is None else jax.random.fold_in(key, n)
            return nnx.merge(graphdef, state)(x, group_key, capture)

        # A shallow stack compiles fast anyway, and runs a quarter faster on CPUs without the loop.
        unroll = self.groups_count * len(self.groups.blocks) <= MAX_UNROLLED
        return jax.lax.scan(apply_group, x, (stacked, jnp.arange(self.groups_count)), unroll=unroll)

    def embed(self, images: jax.Array) -> jax.Array:
        """Images -> tokens: [batch, Y, X, dim] for pLSTM, [batch, tokens, dim] for attention, class token first."""
        x = self.embedding(images)
        if self.position is not None:
            position = self.position[...]
            if position.shape[:2] != x.shape[1:3]:
                position = resize(position, x.shape[1:3])
            x = x + spread(position, x.shape, x.dtype)
        if self.flat:
            x = jax.lax.collapse(x, 1, 3)
        if self.class_token is not None:
            token = spread(self.class_token[...], (x.shape[0], 1, x.shape[-1]), x.dtype)
            x = jnp.concatenate([token, x], axis=1)
        return x

    def pool(self, x: jax.Array, grid: tuple[int, int]) -> jax.Array:
        """Tokens as of `embed`, for an image of `grid` = (Y, X) patches -> the final norm of the class token, or of the
        four corner tokens side by side: float32 [batch, pooled]."""
        if self.class_token is not None:
            return self.norm(x[:, 0])
        x = x.reshape(x.shape[0], *grid, x.shape[-1])
        corners = [x[:, row, column] for row in (0, -1) for column in (0, -1)]
        return jax.lax.collapse(self.norm(jnp.stack(corners, axis=1)), 1)

    def blocks(self) -> Iterator[Block]:
        """The blocks one by one from the first to the last, unstacked: for looking inside, not for speed."""
        graphdef, stacked = nnx.split(self.groups)
        for n in range(self.groups_count):
            yield from nnx.merge(graphdef, jax.tree.map(lambda leaf, n=n: leaf[n], stacked)).blocks


# ---------------------------------------------------------------------- looking inside
def _gate_means(block: Block, x: jax.Array) -> dict[str, jax.Array]:
    """The means of a block's gates on its input; transitions also by magnitude. Empty but for `PLSTMMixer`."""
    if not isinstance(block.mixer, PLSTMMixer):
        return {}
    gates = block.mixer.gates(block.mixer_norm(x))._asdict()
    means = {name: gate.mean() for name, gate in gates.items()}
    return means | {f"{name}_magnitude": jnp.abs(gate).mean() for name, gate in gates.items() if name.startswith("t_")}


def gate_statistics(model: VisionModel, images: jax.Array) -> dict[str, jax.Array]:
    """Mean of each layer's gates over normalised images [batch, height, width, channels], heads, directions and nodes:
    {"gates/layer00_P/s_r": scalar, ...}; empty where no mixer is a `PLSTMMixer`."""
    _, means = model.apply_blocks(model.embed(images), capture=_gate_means)
    modes = [block.mixer.mode for block in model.groups.blocks]
    return {
        f"gates/layer{group * len(means) + n:02d}_{modes[n]}/{name}": values[group]
        for n, block_means in enumerate(means)
        for name, values in block_means.items()
        for group in range(model.groups_count)
    }


def capture_patterns(
    model: VisionModel, image: jax.Array, source: tuple[int, int], layers: int
) -> list[tuple[str, jax.Array]]:
    """What each of the first layers passes from the node at (row, column) to all others, for a normalised image: (mode,
    [heads, Y, X]), of the gating matrix or of the attention weights by which the others attend to the node. Layers that
    track states, which pass on matrices, are left out."""
    patterns = []
    x = model.embed(image[None])
    row, column = source
    grid = tuple(side // model.patch_size for side in image.shape[:2])
    for block in itertools.islice(model.blocks(), layers):
        mixer = block.mixer
        normed = block.mixer_norm(x)
        if isinstance(mixer, PLSTMMixer):
            matrix = gating_matrix(mixer.gates(normed), structure=mixer.gates.structure)
            passed = matrix[0, :, row, column]
        elif isinstance(mixer, TrackingMixer):
            passed = None
        else:
            nodes = slice(normed.shape[1] - math.prod(grid), None)  # the class token is first
            passed = mixer.weights(normed)[0, :, nodes, nodes][..., row * grid[1] + column].reshape(-1, *grid)
        patterns += [] if passed is None else [(mixer.mode, passed)]
        x = block(x)
    return patterns
