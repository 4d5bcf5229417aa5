"""Source code byte by byte (`data.code`): models learn the next byte, and are tested on packages that they never saw.

A batch has tokens uint16 [rows, data.context + 1], each but the first the target of those before it; separators are
read and not scored. Training rows are cut out of the text anywhere. A row of an evaluation batch is a window of a
package's text, which begins where the one before it ends, and has besides:

    occurrence, depth, indent int32 [rows, context]  what its targets ask, see `data.structure.Marks`
    group int32 [rows]                               the number of its package
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from annotated_types import Interval
from flax import nnx
from omegaconf import MISSING

from data.code import DIGEST, SEPARATOR, Corpus, digest, load_corpus
from data.structure import DEEPEST, MOST, mark
from plstm.config import Config
from plstm.errors import UserError
from plstm.limits import Folder, OneOf, OnlyWith
from plstm.models.text import MOST_CONTEXT
from plstm.tasks.base import MachineData, mean_loss
from plstm.tasks.streams import StreamBatches, StreamTask, by_group, layer_kinds, row_batches, sums
from plstm.training.meshes import Layout
from plstm.training.steps import Batch, Metrics, Split

NAMES = ("packages", "folder", "toy")
BATCH = 32  # windows of an evaluation batch
PARTS = 4  # of a window, whose bits are reported
BRACKETS = np.array([*b")]}"])


@dataclass
class CodeData(MachineData):
    name: Annotated[str, OneOf(*NAMES)] = "packages"  # of the index, a folder of one's own, or made-up functions
    path: Annotated[Folder, OnlyWith("name", ("folder",))] | None = None  # with text files in train/, val/ and test/
    context: Annotated[int, Interval(ge=4, le=MOST_CONTEXT)] = 256  # bytes that a model reads, also in a window
    eval_rows: Annotated[int, Interval(ge=1, le=2**20)] = 2048  # windows of each split, spread evenly; all, if fewer
    digest: str = MISSING  # of the text, from which it follows


class CodeTask(StreamTask):
    """Metrics of a split: loss (nats), accuracy and bits, all per byte; bits@<package>; bits_part1 to bits_part4, by
    place in the window; bits_name1 to bits_name3, of a name's first, second and later occurrences in the window;
    bracket1 and bracket2, at closing brackets with one or with several brackets open: how often the right one of the
    three kinds is the likeliest; and indent, of lines with less indentation than the line before: how often every space
    of it, and its end, is predicted."""

    data_schema = CodeData
    unused_keys = ("workers",)
    inputs = "tokens"
    splits = ("val", "test")
    unit = "windows"

    @classmethod
    def name_parts(cls, config: Config) -> tuple[str, ...]:
        return (layer_kinds(config),)

    @classmethod
    def infer_data(cls, data: Any) -> Mapping[str, Any]:
        if data.name not in NAMES:
            raise UserError(f"data.name={data.name}: choose one of {', '.join(NAMES)}")
        known = data.name == "packages"
        return {"digest": DIGEST if known else digest(load_corpus(data.name, data.root, data.path))}

    # ------------------------------------------------------------------ data
    @property
    def sizes(self) -> Mapping[str, int]:
        return {"vocabulary": SEPARATOR + 1, "classes": SEPARATOR}

    @functools.cached_property
    def corpus(self) -> Corpus:
        data = self.config.data
        self.check_data()
        return load_corpus(data.name, data.root, data.path)

    @functools.cached_property
    def text(self) -> np.ndarray:
        """All tokens to train on, uint16 [T]."""
        text = np.concatenate([*self.corpus["train"].values()])
        if len(text) <= (context := self.config.data.context):
            raise UserError(f"data.context={context}: must be under {len(text)}, the tokens to train on")
        return text

    def describe_data(self) -> str:
        sizes = {split: sum(map(len, groups.values())) for split, groups in self.corpus.items()}
        counts = ", ".join(f"{size:,} tokens of {len(self.corpus[split])} {split}" for split, size in sizes.items())
        return f"{self.config.data.name} ({self.config.data.digest}): {counts}"

    def batches(self, layout: Layout) -> StreamBatches:
        _ = self.text  # read now, before one that is too short leaves half a run behind
        return super().batches(layout)

    def draw_batch(self, step: int) -> Batch:
        rng = self.train_rng(step)
        size = self.config.data.context + 1
        starts = rng.randint(0, len(self.text) - size + 1, self.config.optim.batch_size)
        return {"tokens": self.text[starts[:, None] + np.arange(size)]}

    def split(self, name: str) -> "CodeSplit":
        data = self.config.data
        return CodeSplit(self.corpus[name], data.context, data.eval_rows)

    # ------------------------------------------------------------------ model
    def logits(self, model: Any, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """Of the bytes after the first, float32 [rows, context, 256]."""
        return model(batch["tokens"][:, :-1].astype(jnp.int32), key=key)

    def loss(self, model: nnx.Module, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        logits = self.logits(model, batch, key)
        targets, losses, scored = score(logits, batch)
        metrics = sums({"loss": (losses, scored), "accuracy": (logits.argmax(-1) == targets, scored)})
        return mean_loss(metrics), metrics

    def metrics(self, model: nnx.Module, batch: Batch) -> Metrics:
        logits = self.logits(model, batch)
        targets, losses, scored = score(logits, batch)
        bits = losses / math.log(2)
        part = jnp.arange(targets.shape[1]) * PARTS // targets.shape[1]
        predicted = logits.argmax(-1)
        bracket = jnp.asarray(BRACKETS)[logits[..., BRACKETS].argmax(-1)]
        # A line's indentation is right where there are as many mistakes up to its end as up to its start.
        wrong = ((predicted == ord(" ")) != (targets == ord(" "))).cumsum(1)
        first = jnp.arange(targets.shape[1]) - batch["indent"]
        before = jnp.where(first < 0, 0, jnp.take_along_axis(wrong, jnp.maximum(first, 0), axis=1))
        pairs = {"loss": (losses, scored), "accuracy": (predicted == targets, scored), "bits": (bits, scored)}
        pairs |= {f"bits_part{n + 1}": (bits, scored & (part == n)) for n in range(PARTS)}
        pairs |= {f"bits_name{n}": (bits, batch["occurrence"] == n) for n in range(1, MOST + 1)}
        pairs |= {f"bracket{n}": (bracket == targets, batch["depth"] == n) for n in range(1, DEEPEST + 1)}
        pairs["indent"] = wrong == before, batch["indent"] > 0
        found = sums({name: (values, asked & batch["mask"][:, None]) for name, (values, asked) in pairs.items()})
        groups = max(len(self.corpus[split]) for split in self.splits)
        by_row = bits.sum(1), scored.sum(1, dtype=jnp.float32)
        return found | {"bits@": by_group(*by_row, batch, groups)}


def score(logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Targets, their losses in nats, 0 where they are not scored, and whether they are; [rows, context] each."""
    targets = batch["tokens"][:, 1:].astype(jnp.int32)
    scored = (targets < SEPARATOR) & batch.get("mask", jnp.ones(len(targets), bool))[:, None]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.minimum(targets, SEPARATOR - 1))
    return targets, losses * scored, scored


@dataclass
class CodeSplit(Split):
    """Windows of each group's text, without overlap; see `plstm.training.steps.Split`."""

    groups: Mapping[str, np.ndarray]  # name -> tokens uint16 [T]
    context: int
    rows: int  # at most

    @property
    def lengths(self) -> Sequence[str]:
        """The groups' names, after the @ of a metric."""
        return [*self.groups]

    @functools.cached_property
    def windows(self) -> Batch:
        """All windows to evaluate on, as one batch. Separators fill up the last one of a group."""
        rows = []
        for number, tokens in enumerate(self.groups.values()):
            count = -(-(len(tokens) - 1) // self.context)
            padded = np.pad(tokens, (1, count * self.context + 1 - len(tokens)), constant_values=SEPARATOR)
            # With the byte before.
            rows += [(number, padded[n * self.context :][: self.context + 2]) for n in range(count)]
        chosen = np.unique(np.linspace(0, len(rows) - 1, min(self.rows, len(rows))).round().astype(int))
        parts = np.stack([rows[n][1] for n in chosen])
        texts = np.where(parts == SEPARATOR, 0, parts).astype(np.uint8)
        group = np.array([rows[n][0] for n in chosen], np.int32)
        marks = [mark(text[1:].tobytes(), text[:1].tobytes())._asdict() for text in texts]
        by_name = {name: np.stack([each[name] for each in marks]) for name in marks[0]}
        return {"tokens": parts[:, 1:], "group": group} | by_name

    def __len__(self) -> int:
        return len(self.windows["group"])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        yield from row_batches(self.windows, BATCH)

    def summarise(self, means: Mapping[str, float]) -> dict[str, float]:
        """Without the metrics of what no window asks."""
        return {name: mean for name, mean in means.items() if not math.isnan(mean)}
