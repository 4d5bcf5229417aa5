"""Released parameters as ours: bit for bit there and back, and the outputs that the released convention gives."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from plstm.errors import UserError
from plstm.runs.released import from_released, infer_config, to_released
from tests.models.vision_models import MODELS, VIT, draw_images, filled, tiny

VARIANTS = {
    "pLSTM": {},
    "three heads": {"dim": 24, "heads": 3, "depth": 4, "image_size": 12},
    "D, P": {"modes": ["D", "P"]},
    "P-mode": {"modes": ["P"]},
    "D-mode": {"modes": ["D"]},
    "STM bias only": {"stm_bias_only": True},
    "printed": {"gates": "printed"},
    "no position embedding": {"position_embedding": False},
    "ViT": VIT,
    "ViT without LayerScale": {"modes": ["attention"], "pooling": "class_token", "depth": 3},
}
# Of the models `tiny` makes, as the released code has them.
SHAPES = json.loads((Path(__file__).parent / "released_shapes.json").read_text())
P, D = "block_stack/blocks_0/block0", "block_stack/blocks_0/block1"


def drawn(config) -> dict[str, np.ndarray]:
    """A released checkpoint, all its numbers drawn from a normal."""
    return to_released(filled(config), config)


@pytest.mark.parametrize("kind", MODELS)
def test_a_released_tree_comes_back_bit_for_bit(kind):
    config = tiny(**MODELS[kind])
    tree = drawn(config)
    assert {name: list(leaf.shape) for name, leaf in tree.items()} == SHAPES[kind]
    back = to_released(from_released(tree, config), config)
    assert back.keys() == tree.keys()
    for name, leaf in tree.items():
        assert back[name].dtype == np.float32
        np.testing.assert_array_equal(back[name], leaf, err_msg=name)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_model_comes_back_bit_for_bit_and_tells_its_config(changes):
    config = tiny(**changes)
    model = filled(config)
    tree = to_released(model, config)
    jax.tree.map(np.testing.assert_array_equal, *(jax.tree.leaves(m) for m in (from_released(tree, config), model)))
    found = infer_config(tree)
    assert {"dim", "depth", "heads", "patch_size", "classes", "modes"} <= found.keys()
    assert ("image_size" in found) == config.position_embedding
    assert found == {key: getattr(config, key) for key in found}


def test_stm_bias_only_has_no_weights_of_source_transition_and_mark():
    config = tiny(stm_bias_only=True)
    names = {name: name.split("/")[-2:] for name in SHAPES["pLSTM"]}
    kinds = ("source", "transition", "mark")
    dropped = {name for name, (kind, leaf) in names.items() if kind.startswith(kinds) and leaf.endswith("weight")}
    assert len(dropped) == 10
    assert to_released(filled(config), config).keys() == names.keys() - dropped


# ---------------------------------------------------------------------- the released convention, in float64
QKV = ("query", "key", "value_")
FLIPS = [lambda x: x, lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x[::-1, ::-1]]  # of [rows, columns, ...]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5)


def tokens_of(t, image):
    patch = t["patch_embed/proj/kernel"].shape[0]
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    x = np.stack(
        [np.stack([image[patch * r :, patch * c :][:patch, :patch] for c in range(columns)]) for r in range(rows)]
    )
    x = np.einsum("rcabi,abid->rcd", x, t["patch_embed/proj/kernel"]) + t["patch_embed/proj/bias"]
    return x + t["pos_embed/embed"][0]


def mlp(t, x):
    x = rms(x) * t["norm2/norm/scale"] @ t["upproj/kernel"] + t["upproj/bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x @ t["downproj/kernel"] + t["downproj/bias"]


def below(t, path):
    return {name.removeprefix(f"{path}/"): leaf for name, leaf in t.items() if name.startswith(f"{path}/")}


def plstm_mixer(t, x):
    """x [rows, columns, dim] -> the same. A gate's n-th of N groups of channels; n div 4 its head, n mod 4 its flip."""
    rows, columns, dim = x.shape
    gates = t["mark_u/bias" if "mark_u/bias" in t else "mark/bias"].shape[0]
    heads, groups = gates // 4, x.reshape(rows, columns, gates, -1)

    def gate(name):
        kind = "eigenvalues_" if "transition" in name else ""
        weight, bias = t[f"{name}/{kind}weight"].reshape(gates, -1), t[f"{name}/{kind}bias"].reshape(gates)
        pre = np.einsum("rcnk,nk->rcn", groups, weight) + bias
        return np.tanh(5 * pre) if kind else sigmoid(pre)

    if "orientation_bias" in t:
        weight, bias = t["orientation_weight"].reshape(gates, dim), t["orientation_bias"].reshape(gates)
        alpha = sigmoid(bias + 0.5 / dim * x @ weight.T)
        to_below, s_below = gate("transition") * alpha, gate("source") * alpha
        to_right, s_right, from_left = 1 - to_below, 1 - s_below, gate("mark")
        passes, from_above = {"lr": to_right, "ar": to_right, "lb": to_below, "ab": to_below}, from_left
    else:
        s_right, s_below, from_left, from_above = (gate(n) for n in ("source_d", "source_r", "mark_u", "mark_l"))
        to_right, to_corner, to_below = (gate(n) for n in ("transition_d", "transition_rd", "transition_r"))
        passes = {"lr": to_right, "ar": 0 * to_right, "lb": to_corner, "ab": to_below}
    q, k, v = (np.einsum("rcd,hwd->rchw", x, t[f"{n}/weight"][:, :, 0, 0]) + t[f"{n}/bias"][..., 0] for n in QKV)
    q = q / np.sqrt(q.shape[-1])
    hidden = np.einsum("rch,rchv->rchv", np.sum(q * k, -1) * sigmoid(t["direct/bias"].reshape(heads)), v)
    for n in range(gates):
        flip, head = FLIPS[n % 4], n // 4
        fq, fk, fv = (flip(tensor[:, :, head]) for tensor in (q, k, v))
        own = {name: flip(g[..., n]) for name, g in passes.items()}
        sr, sb, ml, ma = (flip(g[..., n]) for g in (s_right, s_below, from_left, from_above))
        result, above = np.zeros_like(fv), np.zeros((columns, fk.shape[-1], fv.shape[-1]))
        for r in range(rows):
            left = 0 * above[0]
            for c in range(columns):
                result[r, c] = fq[r, c] @ (ml[r, c] * left + ma[r, c] * above[c])
                new = np.outer(fk[r, c], fv[r, c])
                below_it = own["lb"][r, c] * left + own["ab"][r, c] * above[c] + sb[r, c] * new
                left = own["lr"][r, c] * left + own["ar"][r, c] * above[c] + sr[r, c] * new
                above[c] = below_it
        hidden[:, :, head] += flip(result)
    return (rms(hidden) * t["mhnorm/norm/scale"]).reshape(x.shape) @ t["outprojection/kernel"]


def plstm_logits(t, image):
    x = tokens_of(t, image)
    for n in range(sum(name.endswith("upproj/kernel") for name in t)):
        block = below(t, f"block_stack/blocks_{n // 2}/block{n % 2}")
        x = x + plstm_mixer(below(block, "interaction_module"), rms(x) * block["norm/norm/scale"])
        x = x + mlp(block, x)
    corners = np.stack([x[0, 0], x[-1, 0], x[0, -1], x[-1, -1]])  # top left, bottom left, top right, bottom right
    return (rms(corners) * t["norm/norm/scale"]).ravel() @ t["head/kernel"] + t["head/bias"]


def vit_logits(t, image):
    x = tokens_of(t, image)
    x = np.concatenate([t["cls_token"].T, x.reshape(-1, x.shape[-1])])
    for n in range(2):
        block = below(t, f"blocks_{n}")
        a, y = below(block, "multiheadattention"), rms(x) * block["norm/norm/scale"]
        q, k, v = (
            np.einsum("td,dhw->htw", y, a[f"{n}/kernel"]) + a[f"{n}/bias"][:, None] for n in ("query", "key", "value")
        )
        weights = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
        hidden = weights / weights.sum(-1, keepdims=True) @ v
        y = np.einsum("htw,hwd->td", hidden, a["out/kernel"]) + a["out/bias"]
        x = x + y * block["scale/scale"]
        x = x + mlp(block, x) * block["scale2/scale"]
    return rms(x[0]) * t["norm/norm/scale"] @ t["head/kernel"] + t["head/bias"]


@pytest.mark.parametrize(
    ("changes", "logits"),
    [({}, plstm_logits), ({"dim": 48, "heads": 3, "image_size": 12, "depth": 6}, plstm_logits), (VIT, vit_logits)],
    ids=["pLSTM", "three heads", "ViT"],
)
def test_an_imported_model_computes_what_the_released_one_does(changes, logits):
    config = tiny(**changes)
    tree, images = drawn(config), draw_images(config.image_size, config.image_size)
    found = np.asarray(from_released(tree, config)(images))
    wide = {name: leaf.astype(np.float64) for name, leaf in tree.items()}
    expected = np.stack([logits(wide, image.astype(np.float64)) for image in images])
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


# ---------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("name", "leaf", "words"),
    [
        (
            f"{D}/interaction_module/mark_u/bias",
            None,
            r"not in the checkpoint; expected floats of shape \(8, 1, 1, 1\)",
        ),
        (f"{P}/norm3/norm/scale", np.zeros(16, np.float32), "not a parameter of this model"),
        ("head/bias", np.zeros(4, np.float32), r"is float32 \(4,\); expected floats of shape \(3,\)"),
        ("head/bias", np.zeros(3, int), r"is int64 \(3,\); expected floats of shape \(3,\)"),
    ],
)
def test_a_leaf_that_does_not_fit_is_named(name, leaf, words):
    config = tiny()
    tree = drawn(config) | {name: leaf}
    with pytest.raises(UserError, match=f"^{name}: {words}"):
        from_released({name: leaf for name, leaf in tree.items() if leaf is not None}, config)


def test_what_cannot_be_known_is_an_error():
    with pytest.raises(UserError, match="^patch_embed/proj/kernel: not in the checkpoint as an array of 4 axes"):
        infer_config({"dense/kernel": np.zeros((2, 2))})
    config = tiny(norm="layernorm")
    with pytest.raises(UserError, match="mixer_norm.bias: released models have no such parameter"):
        to_released(filled(config), config)
