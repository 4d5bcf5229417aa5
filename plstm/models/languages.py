"""Models that answer formal languages: a layer of `plstm.nn.recurrent`, a ReLU and a linear readout."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial

import jax
from flax import nnx
from jax import Array

from plstm.errors import one_of, positive, require
from plstm.nn.recurrent import LSTM, PRLSTM, PRRNN, RNN, Rows, StackRNN, TapeRNN, Transformer, dense

# The fields that only some kinds have.
OWN = {
    "refinements": ("pr_lstm", "pr_rnn"),
    "memory_width": ("stack_rnn", "tape_rnn"),
    "memory_cells": ("stack_rnn", "tape_rnn"),
    "write_hidden": ("tape_rnn",),
    **dict.fromkeys(("depth", "heads", "mlp_ratio", "dropout"), ("transformer",)),
}


@dataclass
class LanguageConfig:
    """The whole architecture; the sizes are those of arXiv 2605.17108 but for the Transformer's `dim`, 64."""

    family: str = "language"  # of plstm.models.MODELS
    kind: str = "pr_lstm"  # or pr_rnn, rnn, lstm, stack_rnn, tape_rnn, transformer
    dim: int = 256  # units
    refinements: int = 1  # after each composition; PR models only
    memory_width: int = 8  # numbers of a cell of the stack or tape
    memory_cells: int = 512  # of the stack or tape
    write_hidden: int = 64  # units of both hidden layers of what writes to the tape
    depth: int = 5  # layers; from here on Transformer only
    heads: int = 8  # of attention
    mlp_ratio: int = 4  # units of the MLP over dim
    dropout: float = 0.1  # of the embedding, attention's output and the MLP's

    def check(self) -> None:
        """Raises UserError naming the key where the parts do not fit together."""
        sizes = ("dim", "memory_width", "memory_cells", "write_hidden", "depth", "heads", "mlp_ratio")
        check = partial(require, self, prefix="model.")
        check(*one_of(self, kind=KINDS), *positive(self, *sizes))
        rules = [("refinements", 0 <= self.refinements <= 16, "must be from 0 to 16")]
        rules.append(("dropout", 0 <= self.dropout < 1, "must be in [0, 1)"))
        divides = self.kind != "transformer" or self.dim % self.heads == self.dim % 2 == 0
        rules.append(("dim", divides, f"must be even and a multiple of model.heads={self.heads}"))
        for field in fields(self):
            owners, is_default = OWN.get(field.name, KINDS), getattr(self, field.name) == field.default
            rules.append(
                (field.name, is_default or self.kind in owners, f"only model.kind={' or '.join(owners)} has it")
            )
        check(*rules)


class LanguageModel(nnx.Module):
    """Token rows -> logits at the steps of the answer."""

    def __init__(self, config: LanguageConfig, sizes: Mapping[str, int], rngs: nnx.Rngs):
        self.kind = config.kind
        self.layer = KINDS[config.kind](sizes["vocabulary"] + 1, config, rngs)
        self.head = dense(config.dim, sizes["classes"], rngs)

    def __call__(self, rows: Rows, answers: int, *, key: Array | None = None) -> Array:
        """float32 [rows, answers, classes]: the logits after each row's tokens; beyond its last step, any."""
        h = self.layer(rows, answers, key)
        return self.head(h if self.kind == "transformer" else jax.nn.relu(h))


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


def build_language_model(config: LanguageConfig, sizes: Mapping[str, int], key: Array | int) -> LanguageModel:
    """See `plstm.models.Family`; sizes: "vocabulary" (without the blank) and "classes"."""
    return LanguageModel(config, sizes, nnx.Rngs(key))
