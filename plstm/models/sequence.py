"""Models of token sequences: embedding, blocks of one kind of layer each, norm, head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from plstm.errors import UserError, one_of, positive, require
from plstm.nn.layers import KERNEL_INIT, MLP, NORM_EPSILON, NORMS, linear
from plstm.nn.sequence import MLSTM, SLSTM, CausalAttention, GatedDeltaNet, Mamba2, TrackingPLSTM

MAX_TRACK = 4  # the largest `rotation`


@dataclass
class SequenceConfig:
    """The whole architecture; `configs/model/sequence/*.yaml` hold the models of arXiv 2606.12364, and pLSTM."""

    family: str = "sequence"  # of plstm.models.MODELS
    blocks: list[str] = field(default_factory=lambda: ["mlstm", "slstm"])  # of LAYERS, in order
    dim: int = 64  # channels
    heads: int = 1  # of mlstm, slstm, gdn, gdn_negative and attention
    state_dim: int = 64  # N of mamba2
    track: int = 2  # of plstm: the side J_T of its transitions, 1 to 4
    norm: str = "rmsnorm"  # or "layernorm", without a bias, as xLSTM has it

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check = partial(require, self, prefix="model.")
        check(("blocks", len(self.blocks) > 0, "name at least one layer"))
        for name in self.blocks:
            if name not in LAYERS:
                raise UserError(f"model.blocks: no layer {name!r}; choose from {', '.join(LAYERS)}")
        check(*one_of(self, norm=tuple(NORMS)), *positive(self, "dim", "heads", "state_dim"))
        check(*positive(self, "track", most=MAX_TRACK))
        check(("dim", self.dim % (2 * self.heads) == 0, f"must be a multiple of 2 model.heads, {2 * self.heads}"))
        if "plstm" in self.blocks:
            check(("track", self.dim % self.track == 0, f"must divide model.dim={self.dim}"))
        defaults = SequenceConfig()
        for key in ("heads", "state_dim", "track"):
            used = getattr(self, key) == getattr(defaults, key) or any(key in LAYERS[name].keys for name in self.blocks)
            owners = ", ".join(name for name, layer in LAYERS.items() if key in layer.keys)
            check((key, used, f"only these layers have it: {owners}; none is in model.blocks"))


class Layer(NamedTuple):
    build: Callable[[SequenceConfig, int, nnx.Rngs], nnx.Module]  # of the config and the place in `blocks`
    keys: tuple[str, ...] = ()  # of the config that it has beside `dim`


def _gdn(negative: bool) -> Layer:
    return Layer(lambda config, _, rngs: GatedDeltaNet(config.dim, config.heads, negative, rngs), ("heads",))


LAYERS = {
    "mlstm": Layer(lambda config, _, rngs: MLSTM(config.dim, config.heads, len(config.blocks), rngs), ("heads",)),
    "slstm": Layer(lambda config, n, rngs: SLSTM(config.dim, config.heads, n, len(config.blocks), rngs), ("heads",)),
    "mamba2": Layer(lambda config, _, rngs: Mamba2(config.dim, config.dim, config.state_dim, rngs), ("state_dim",)),
    "gdn": _gdn(negative=False),
    "gdn_negative": _gdn(negative=True),
    "plstm": Layer(lambda config, _, rngs: TrackingPLSTM(config.dim, config.track, rngs), ("track",)),
    "attention": Layer(lambda config, _, rngs: CausalAttention(config.dim, config.heads, rngs), ("heads",)),
    "mlp": Layer(lambda config, _, rngs: MLP(config.dim, 4, dtype=jnp.float32, rngs=rngs)),
}


class SequenceModel(nnx.Module):
    """x = E[token]; x = x + layer(norm(x)) for each block; logits = norm(x) head. No positions, no biases outside the
    layers."""

    def __init__(self, config: SequenceConfig, vocabulary: int, classes: int, rngs: nnx.Rngs):
        make_norm = partial(NORMS[config.norm], config.dim, epsilon=NORM_EPSILON, rngs=rngs)
        make_norm = partial(make_norm, use_bias=False) if config.norm == "layernorm" else make_norm
        start = nnx.initializers.normal((0.4 / config.dim) ** 0.5)
        self.embedding = nnx.Param(start(rngs.params(), (vocabulary, config.dim)))
        self.norms = nnx.List([make_norm() for _ in config.blocks])
        self.layers = nnx.List([LAYERS[name].build(config, n, rngs) for n, name in enumerate(config.blocks)])
        self.norm = make_norm()
        self.head = linear(config.dim, classes, use_bias=False, kernel_init=KERNEL_INIT, rngs=rngs)

    def __call__(self, tokens: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """Tokens int32 [..., T] -> logits float32 [..., T, classes]; a training pass is no different."""
        x = self.embedding[...][tokens]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(self.norm(x))


def build_sequence_model(config: SequenceConfig, sizes: Mapping[str, int], key: int | jax.Array) -> SequenceModel:
    """See `plstm.models.Family`; sizes: vocabulary and classes."""
    return SequenceModel(config, sizes["vocabulary"], sizes["classes"], nnx.Rngs(key))
