"""Distilling a Transformer into students that look at a window (`plstm.nn.distillation`), on the text of
`plstm.tasks.code`. Which of the two stages a run is, its loss says:

    alignment     Each student learns, on its teacher's inputs, what its teacher's attention gives. The teacher is the
                  model itself with attention to all tokens: the run starts from the teacher's weights, and `optim.only`
                  trains nothing but the linear branches.
    distillation  The whole model learns the next byte, and the probabilities that the teacher in a file gives it.

The third, cross_entropy, is that of `plstm.tasks.code`, for models to compare with.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import nnx

from plstm.config import Config
from plstm.errors import UserError, require
from plstm.limits import ID_DIGITS, Folder, Matches, Share
from plstm.models.weights import load
from plstm.nn.distillation import BRANCHES, Student, alignment_loss, student_inputs
from plstm.ops.common import add_up
from plstm.tasks.code import CodeData, CodeTask, score
from plstm.tasks.streams import StreamBatches
from plstm.training.meshes import Layout
from plstm.training.steps import Batch, Metrics


@dataclass
class DistillData(CodeData):
    """The last four keys are of optim.loss=distillation alone."""

    divergence: Share = 0.1  # share of the divergence from the teacher in the loss; the rest is the cross entropy
    likeliest: Annotated[int, Interval(ge=2, le=256)] = 32  # bytes over which it is taken
    # The teacher: its run's id, or the first 12 digits of its weights' SHA256; and the file that has them.
    teacher: Annotated[str, Matches("[0-9a-f]{12}", "12 hexadecimal digits")] | None = None
    teacher_file: Folder | None = None


class DistillTask(CodeTask):
    """Metrics of `CodeTask`. `statistics` are the mean shares of the linear branches, of the students from 0."""

    data_schema = DistillData
    losses = ("alignment", "distillation", "cross_entropy")

    @classmethod
    def check(cls, config: Config) -> None:
        loss = config.optim.loss
        missing = "give the id of the teacher's run, and in data.teacher_file its weights"
        moves = "name what is trained, such as [linear]; the rest is the teacher"
        require(
            config,
            ("data.teacher", bool(config.data.teacher) or loss != "distillation", missing),  # its file no record has
            ("optim.only", bool(config.optim.only) or loss != "alignment", moves),
        )
        if loss != "distillation":
            for key in ("divergence", "likeliest", "teacher"):
                is_usual = getattr(config.data, key) == getattr(DistillData, key)
                require(config, (f"data.{key}", is_usual, "only for distillation"))

    # ------------------------------------------------------------------ data
    @property
    def teacher(self) -> nnx.Module:
        """Raises UserError where the file is not named or missing, or its model is another."""
        data = self.config.data
        if not data.teacher_file:
            raise UserError(f"data.teacher_file: name the file with the weights of {data.teacher}")
        model = load_teacher(data.teacher_file, data.teacher)
        if model.info.sizes != self.sizes:
            raise UserError(f"data.teacher_file={data.teacher_file}: not a model of these tokens")
        return model

    def describe_data(self) -> str:
        teacher = f"; taught by {self.config.data.teacher}" if self._is_taught else ""
        return super().describe_data() + teacher

    def batches(self, layout: Layout) -> StreamBatches:
        # Now, before what cannot be trained leaves half a run behind.
        if self._is_taught:
            _ = self.teacher
        branches = [name for name, branch in BRANCHES.items() if branch]
        if self.config.optim.loss == "alignment" and not {*branches} & {*self.config.model.blocks}:
            raise UserError(f"model.blocks: no linear branch to align; take {', '.join(branches)} instead of attention")
        return super().batches(layout)

    # ------------------------------------------------------------------ model
    @property
    def _is_taught(self) -> bool:
        return self.config.optim.loss == "distillation"

    def loss(self, model: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        loss = self.config.optim.loss
        if loss == "cross_entropy":
            return super().loss(model, batch, key)
        return self._alignment(model, batch) if loss == "alignment" else self._distillation(model, batch, key)

    def _alignment(self, model: Any, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The sum over layers."""
        students = _students(model, batch, as_teacher=True)
        loss = add_up([alignment_loss(layer, x) for layer, x in students if layer.linear is not None])
        rows = len(batch["tokens"])
        return loss, {"loss": (rows * loss, jnp.float32(rows))}

    def _distillation(self, model: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Metrics]:
        data = self.config.data
        logits = self.logits(model, batch, key)
        _, losses, scored = score(logits, batch)
        count = scored.sum(dtype=jnp.float32)
        divergences = scored * sparse_divergence(self.logits(self.teacher, batch), logits, data.likeliest)
        sums = {"cross_entropy": losses.sum(), "divergence": divergences.sum()}
        sums["loss"] = (1 - data.divergence) * sums["cross_entropy"] + data.divergence * sums["divergence"]
        return sums["loss"] / count, {name: (total, count) for name, total in sums.items()}

    def statistics(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        students = enumerate(_students(model, batch, as_teacher=False))
        shares = {n: s.linear.share(s.qkv(x)) for n, (s, x) in students if s.linear is not None}  # [rows, heads, T]
        whole = batch["mask"][:, None, None]
        return {f"share{n}": share.mean(where=whole) for n, share in shares.items()}

    # ------------------------------------------------------------------ results
    def keeps_curve(self, split: str, metric: str) -> bool:
        return split == "model" or super().keeps_curve(split, metric)


@functools.lru_cache(maxsize=1)  # the session's task and that of the programs share it
def load_teacher(file: str, weights_id: str) -> Any:
    """The model in a file. Raises UserError where it has the weights of another run."""
    with jax.ensure_compile_time_eval():  # also where a trace of the loss is the first to ask
        model = load(file)
    known = model.info.weights_id
    if weights_id not in (known, model.info.sha256[:ID_DIGITS]):
        raise UserError(f"data.teacher={weights_id}: {file} has the weights of {known}")
    return model


def _students(model: Any, batch: Batch, as_teacher: bool) -> Iterator[tuple[Student, jax.Array]]:
    x = model.embedding[...][batch["tokens"][:, :-1].astype(jnp.int32)]
    return student_inputs(model.norms, model.layers, x, as_teacher)


def sparse_divergence(teacher: jax.Array, student: jax.Array, likeliest: int) -> jax.Array:
    """KL(teacher || student), both renormalised on the teacher's likeliest classes: logits [..., classes] of each ->
    nats [...]."""
    top, classes = jax.lax.top_k(teacher, likeliest)
    log_p = jax.nn.log_softmax(top)
    log_q = jax.nn.log_softmax(jnp.take_along_axis(student, classes, axis=-1))
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
