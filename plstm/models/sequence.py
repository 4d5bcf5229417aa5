"""Models of token sequences: embedding, blocks of one kind of layer each, norm, head."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval, MinLen
from flax import nnx

from plstm.errors import require
from plstm.limits import Natural, OneOf, OnlyWith, Size, check_limits
from plstm.nn.distillation import BRANCHES, Student
from plstm.nn.layers import KERNEL_INIT, MLP, NORM_EPSILON, NORMS, linear
from plstm.nn.sequence import (
    MLSTM,
    SLSTM,
    CausalAttention,
    GatedDeltaNet,
    GatedMLP,
    Mamba2,
    MLSTMLarge,
    TrackingPLSTM,
)

WINDOWED = tuple(BRANCHES)
GDN = ("gdn", "gdn_negative")
MLPS = ("mlp", "gated_mlp")
ATTENTION = ("attention", "attention_nope", *WINDOWED)
WITH_HEADS = ("mlstm", "mlstm_large", "slstm", *GDN, *ATTENTION)
MLP_STEP = 64


def _student(config: "SequenceConfig", place: int, rngs: nnx.Rngs) -> Student:
    heads = config.attention_heads or config.heads
    return Student(config.blocks[place], config.dim, heads, config.window, config.sinks, rngs)


def _attention(config: "SequenceConfig", place: int, rngs: nnx.Rngs) -> CausalAttention:
    heads = config.attention_heads or config.heads
    return CausalAttention(config.dim, heads, rngs, rotary=config.blocks[place] == "attention")


def _gated_mlp(config: "SequenceConfig", _: int, rngs: nnx.Rngs) -> GatedMLP:
    usual = MLP_STEP * -(-8 * config.dim // (3 * MLP_STEP))
    return GatedMLP(config.dim, config.mlp_width or usual, rngs)


def _mamba2(config: "SequenceConfig", _: int, rngs: nnx.Rngs) -> Mamba2:
    inner = config.inner_dim or 2 * config.dim
    return Mamba2(config.dim, inner, config.head_dim or config.dim, config.state_dim, rngs)


def _delta_net(config: "SequenceConfig", place: int, rngs: nnx.Rngs) -> GatedDeltaNet:
    is_negative = config.blocks[place] == "gdn_negative"
    return GatedDeltaNet(config.dim, config.heads, config.key_dim or config.dim, is_negative, rngs)


def _mlstm(config: "SequenceConfig", _: int, rngs: nnx.Rngs) -> MLSTM:
    return MLSTM(config.dim, config.heads, len(_mixers(config)), rngs)


def _slstm(config: "SequenceConfig", place: int, rngs: nnx.Rngs) -> SLSTM:
    mixers = _mixers(config)
    return SLSTM(config.dim, config.heads, mixers.index(place), len(mixers), rngs)


def _mixers(config: "SequenceConfig") -> list[int]:
    """The places in `blocks` of what mixes tokens; the released code counts an MLP with the layer before it."""
    return [n for n, name in enumerate(config.blocks) if name not in MLPS]


# Functions of the config, the place in `blocks` and rngs.
LAYERS: dict[str, Callable[["SequenceConfig", int, nnx.Rngs], nnx.Module]] = {
    "mlstm": _mlstm,
    "mlstm_large": lambda config, _, rngs: MLSTMLarge(config.dim, config.heads, rngs),
    "slstm": _slstm,
    "mamba2": _mamba2,
    **dict.fromkeys(GDN, _delta_net),
    "plstm": lambda config, _, rngs: TrackingPLSTM(config.dim, config.track, rngs),
    "attention": _attention,
    "attention_nope": _attention,
    "mlp": lambda config, _, rngs: MLP(config.dim, 4, dtype=jnp.float32, rngs=rngs),
    "gated_mlp": _gated_mlp,
    **dict.fromkeys(WINDOWED, _student),
}
LayerName = Annotated[str, OneOf(*LAYERS)]


@dataclass
class SequenceConfig:
    """The whole architecture; `configs/experiment/tokens/*.yaml` have the models of arXiv 2606.12364, pLSTM and a
    Transformer."""

    family: str = "sequence"  # of plstm.models.MODELS
    blocks: Annotated[list[LayerName], MinLen(1)] = field(default_factory=lambda: ["mlstm", "slstm"])  # in order
    dim: Size = 64  # channels
    heads: Annotated[Size, OnlyWith("blocks", WITH_HEADS)] = 1
    attention_heads: Annotated[Size, OnlyWith("blocks", ATTENTION)] | None = None  # null: heads
    inner_dim: Annotated[Size, OnlyWith("blocks", ("mamba2",))] | None = None  # channels within; null: 2 dim
    state_dim: Annotated[Size, OnlyWith("blocks", ("mamba2",))] = 64  # N
    head_dim: Annotated[Size, OnlyWith("blocks", ("mamba2",))] | None = None  # P, which divides inner_dim; null: dim
    key_dim: Annotated[Size, OnlyWith("blocks", GDN)] | None = None  # of all heads, half that of the values; null: dim
    track: Annotated[int, Interval(ge=1, le=4), OnlyWith("blocks", ("plstm",))] = 2  # side J_T of the transitions
    # Units; null: 8/3 dim, up to a multiple of 64.
    mlp_width: Annotated[Size, OnlyWith("blocks", ("gated_mlp",))] | None = 64
    window: Annotated[Size, OnlyWith("blocks", WINDOWED)] = 64  # the last tokens that attention sees, with its own
    sinks: Annotated[Natural, OnlyWith("blocks", WINDOWED)] = 4  # the first tokens, which it sees, too
    norm: Annotated[str, OneOf(*NORMS)] = "rmsnorm"  # layernorm: without a bias, as xLSTM has it

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        heads = math.lcm(self.heads, self.attention_heads or 1)
        inner = self.inner_dim or 2 * self.dim
        head = self.head_dim or self.dim
        fits = "mamba2" not in self.blocks or inner % head == 0
        divides = "plstm" not in self.blocks or self.dim % self.track == 0
        require(
            self,
            ("dim", self.dim % (2 * heads) == 0, f"must be a multiple of twice the heads, {2 * heads}"),
            ("track", divides, f"must divide model.dim={self.dim}"),
            (
                "head_dim" if self.head_dim else "inner_dim",
                fits,
                f"the channels of a head, {head}, must divide the inner width, {inner}",
            ),
            ("key_dim", (self.key_dim or self.heads) % self.heads == 0, f"must be a multiple of {self.heads} heads"),
            prefix="model.",
        )


class Blocks(nnx.Module):
    """x = x + layer(norm(x)) for each block, then a norm. No positions, no biases outside the layers."""

    def __init__(self, config: SequenceConfig, rngs: nnx.Rngs):
        make_norm = partial(NORMS[config.norm], config.dim, epsilon=NORM_EPSILON, rngs=rngs)
        make_norm = partial(make_norm, use_bias=False) if config.norm == "layernorm" else make_norm
        self.norms = nnx.List([make_norm() for _ in config.blocks])
        self.layers = nnx.List([LAYERS[name](config, n, rngs) for n, name in enumerate(config.blocks)])
        self.norm = make_norm()

    def run(self, x: jax.Array) -> jax.Array:
        """float32 [..., T, dim] -> the same."""
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.norm(x)


class SequenceModel(Blocks):
    """Embedding of tokens, blocks, head. sizes: vocabulary and classes."""

    def __init__(self, config: SequenceConfig, sizes: Mapping[str, int], rngs: nnx.Rngs):
        start = nnx.initializers.normal((0.4 / config.dim) ** 0.5)
        self.embedding = nnx.Param(start(rngs.params(), (sizes["vocabulary"], config.dim)))
        super().__init__(config, rngs)
        self.head = linear(config.dim, sizes["classes"], use_bias=False, kernel_init=KERNEL_INIT, rngs=rngs)

    def __call__(self, tokens: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Tokens int32 [..., T] -> logits float32 [..., T, classes]; a training pass is no different."""
        return self.head(self.run(self.embedding[...][tokens]))
