"""Models that answer formal languages: a layer of `plstm.nn.recurrent`, a ReLU and a linear readout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import jax
from annotated_types import Interval
from flax import nnx
from jax import Array

from plstm.errors import require
from plstm.limits import OneOf, OnlyWith, Rate, Size, check_limits
from plstm.nn.recurrent import LSTM, PRLSTM, PRRNN, RNN, Rows, StackRNN, TapeRNN, Transformer, dense

KINDS = {  # functions of the tokens, the config and rngs
    "pr_lstm": lambda tokens, config, rngs: PRLSTM(tokens, config.dim, config.refinements, rngs),
    "pr_rnn": lambda tokens, config, rngs: PRRNN(tokens, config.dim, config.refinements, rngs),
    "rnn": lambda tokens, config, rngs: RNN(tokens, config.dim, rngs),
    "lstm": lambda tokens, config, rngs: LSTM(tokens, config.dim, rngs),
    "stack_rnn": lambda tokens, config, rngs: StackRNN(
        tokens, config.dim, config.memory_width, config.memory_cells, rngs
    ),
    "tape_rnn": lambda tokens, config, rngs: TapeRNN(
        tokens, config.dim, config.memory_width, config.memory_cells, config.write_hidden, rngs
    ),
    "transformer": lambda tokens, config, rngs: Transformer(
        tokens, config.dim, config.depth, config.heads, config.mlp_ratio, config.dropout, rngs
    ),
}


WITH_REFINEMENTS = OnlyWith("kind", ("pr_lstm", "pr_rnn"))
WITH_MEMORY = OnlyWith("kind", ("stack_rnn", "tape_rnn"))
TRANSFORMER = OnlyWith("kind", ("transformer",))


@dataclass
class LanguageConfig:
    """The whole architecture; the sizes are those of arXiv 2605.17108 but for the Transformer's `dim`, 64, and for
    `memory_cells`."""

    family: str = "language"  # of plstm.models.MODELS
    kind: Annotated[str, OneOf(*KINDS)] = "pr_lstm"
    dim: Size = 256  # units
    refinements: Annotated[int, Interval(ge=0, le=16), WITH_REFINEMENTS] = 1  # after each composition
    memory_width: Annotated[Size, WITH_MEMORY] = 8  # numbers of a cell of the stack or tape
    memory_cells: Annotated[Size, WITH_MEMORY] = 512  # of the stack or tape
    write_hidden: Annotated[Size, OnlyWith("kind", ("tape_rnn",))] = 64  # units of both hidden layers that write to it
    depth: Annotated[Size, TRANSFORMER] = 5  # layers
    heads: Annotated[Size, TRANSFORMER] = 8  # of attention
    mlp_ratio: Annotated[Size, TRANSFORMER] = 4  # units of the MLP over dim
    dropout: Annotated[Rate, TRANSFORMER] = 0.1  # of the embedding, attention's output and the MLP's

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        check_limits(self, "model.")
        divides = self.kind != "transformer" or self.dim % self.heads == self.dim % 2 == 0
        require(self, ("dim", divides, f"must be even and a multiple of model.heads={self.heads}"), prefix="model.")


class LanguageModel(nnx.Module):
    """Token rows -> logits at the steps of the answer; sizes: vocabulary (without the blank) and classes."""

    def __init__(self, config: LanguageConfig, sizes: Mapping[str, int], rngs: nnx.Rngs):
        self.kind = config.kind
        self.layer = KINDS[config.kind](sizes["vocabulary"] + 1, config, rngs)
        self.head = dense(config.dim, sizes["classes"], rngs)

    def __call__(self, rows: Rows, answers: int, *, key: Array | None = None) -> Array:
        """float32 [rows, answers, classes]: the logits after each row's tokens; arbitrary beyond its last step."""
        h = self.layer(rows, answers, key)
        return self.head(h if self.kind == "transformer" else jax.nn.relu(h))
