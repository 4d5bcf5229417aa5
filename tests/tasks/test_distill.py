"""Distillation: what the two losses are, which teachers are refused, and that the study names one teacher."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import plstm
from plstm.errors import UserError
from plstm.models import SequenceConfig, build_model
from plstm.nn.distillation import alignment_loss
from plstm.runs.compose import from_file, to_config
from plstm.runs.identity import portable_config, run_id
from plstm.studies.definitions import load_table
from plstm.studies.sweeps import planned_runs
from plstm.tasks.distill import DistillTask, sparse_divergence
from tests.commands import ROOT

GOLDEN = json.loads((ROOT / "tests/nn/distillation.json").read_text())["divergence"]
STAGE_2 = ["variant=stage_2", "data.teacher=0123456789ab"]


@pytest.fixture(scope="module")
def make(composed):
    def make(*overrides):
        words = ("experiment=code/distill", "debug=smoke", "model.dim=16", "init_from=null", "init_new=[]", *overrides)
        return DistillTask(to_config(composed(*words)))

    return make


def test_the_published_divergence(x64):
    teacher, student = (jnp.array(GOLDEN[f"{name}_logits"]) for name in ("teacher", "student"))
    np.testing.assert_allclose(sparse_divergence(teacher, student, 3), GOLDEN["kl_renormalised"], rtol=1e-7)
    np.testing.assert_allclose(sparse_divergence(teacher, student, 5), GOLDEN["kl_full"], rtol=1e-7)
    assert (sparse_divergence(teacher, teacher, 3) == 0).all()


class Fixed:
    """The same logits whatever it reads."""

    def __init__(self, logits):
        self.logits = jnp.pad(jnp.array(logits), ((0, 0), (0, 251)), constant_values=-1e9)

    def __call__(self, tokens, key=None):
        return jnp.broadcast_to(self.logits, (*tokens.shape, 256))


def test_the_loss_of_distillation_is_the_published_mean(make, monkeypatch):
    """Two positions, and a third whose target is a separator, which does not count."""
    task = make(*STAGE_2, "data.likeliest=3")
    logits = {name: [*GOLDEN[f"{name}_logits"], [0.0] * 5] for name in ("teacher", "student")}
    monkeypatch.setattr(type(task), "teacher", Fixed(logits["teacher"]))
    batch = {"tokens": np.array([[7, *GOLDEN["labels"], 256]], np.uint16)}
    loss, metrics = task.loss(Fixed(logits["student"]), batch, jax.random.key(0))
    assert float(loss) == pytest.approx(GOLDEN["loss_09_01"], rel=1e-6)
    means = {name: float(total / count) for name, (total, count) in metrics.items()}
    expected = {"cross_entropy": GOLDEN["cross_entropy_mean"], "divergence": GOLDEN["kl_renormalised_mean"]}
    assert means == pytest.approx(expected | {"loss": float(loss)}, rel=1e-6)


def test_alignment_sums_over_the_layers_with_a_branch_and_shares_are_means_over_tokens(make):
    task = make("model.blocks=[window_linear,window,gated_mlp,window_linear]")
    batch = {"tokens": task.draw_batch(0)["tokens"][:2], "mask": np.array([True, False])}
    first = {name: rows[:1] for name, rows in batch.items()}

    @jax.jit
    def found():
        model = task.build_model(0)
        x = model.embedding[...][batch["tokens"][:, :-1].astype(np.int32)]
        losses = []
        for n in range(4):
            inputs = model.norms[n](x)
            losses += [alignment_loss(model.layers[n], inputs)] if n in (0, 3) else []
            x = x + (model.layers[n](inputs) if n == 2 else model.layers[n].out(model.layers[n].teacher(inputs)))
        loss, start = task.loss(model, batch, None), task.statistics(model, batch)
        kernel = model.layers[0].linear.mix.kernel
        kernel[...] = jax.random.normal(jax.random.key(0), kernel.shape)
        return losses, loss, start, task.statistics(model, batch)["share0"], task.statistics(model, first)["share0"]

    losses, (loss, metrics), shares, padded, alone = found()
    assert float(padded) == pytest.approx(float(alone), rel=1e-6) and abs(float(alone) - 0.5) > 1e-3
    assert float(loss) == pytest.approx(float(sum(losses)), rel=1e-5) and min(losses) > 0
    assert [float(part) for part in metrics["loss"]] == pytest.approx([2 * float(loss), 2])
    assert {name: float(share) for name, share in shares.items()} == {"share0": 0.5, "share2": 0.5}


def test_a_model_without_a_branch_has_nothing_to_align(make):
    with pytest.raises(UserError, match=r"^model.blocks: no linear branch to align; take window_mlstm, window_gdn, "):
        make("model.blocks=[window,gated_mlp]").batches(None)


def test_a_wrong_teacher_is_named_before_the_first_step(make, tmp_path):
    file = tmp_path / "teacher.safetensors"
    with pytest.raises(
        UserError, match=r"^data.teacher=None: give the id of the teacher's run, and in data.teacher_file"
    ):
        make("variant=stage_2")
    with pytest.raises(UserError, match=r"^data.teacher_file: name the file with the weights of 0123456789ab$"):
        make(*STAGE_2, "data.teacher_file=null").batches(None)
    task = make(*STAGE_2, f"data.teacher_file={file}")
    with pytest.raises(UserError, match=f"^{file}: no such file$"):
        task.batches(None)
    config = SequenceConfig(blocks=["attention"], dim=8)
    plstm.save(build_model(config, 0, task.sizes), file)
    digest = plstm.load(file).info.sha256[:12]
    with pytest.raises(UserError, match=f"^data.teacher=0123456789ab: {file} has the weights of {digest}$"):
        task.batches(None)
    task = make("variant=stage_2", f'data.teacher="{digest}"', f"data.teacher_file={file}")
    jax.eval_shape(lambda: task.teacher.embedding[...])  # a trace is the first to ask
    assert task.teacher.info.config == config
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(nnx.state(task.teacher)))
    plstm.save(build_model(config, 0, {"vocabulary": 3, "classes": 2}), file)
    digest = plstm.load(file).info.sha256[:12]
    task = make("variant=stage_2", f'data.teacher="{digest}"', f"data.teacher_file={file}")
    with pytest.raises(UserError, match=f"^data.teacher_file={file}: not a model of these tokens$"):
        task.batches(None)


def test_a_record_of_the_second_stage_is_read_back(make):
    """It does not say where the teacher lies on the machine of its run."""
    config = make(*STAGE_2).config
    plain = portable_config(config)
    assert "teacher_file" not in plain["data"]
    assert run_id(from_file(plain)) == run_id(config)


def test_alignment_does_not_move_the_teacher(make):
    with pytest.raises(UserError, match=r"^optim.only=\[\]: name what is trained, such as \[linear\]"):
        make("optim.only=[]")


def test_all_runs_of_the_study_have_one_teacher():
    """And start where its page says: seeds of the first stage from the teacher, of the second from the same seed."""
    table = load_table(ROOT / "configs/study/distill-small.yaml")
    runs = {(run.row.name, run.values["seed"]): run for run in planned_runs(table)}
    teacher = runs.pop(("teacher", 43))
    assert len(runs) == 3 * (len(table.rows) - 1)
    assert table.weights == {"code-teacher": teacher.id, "code-student": runs["mLSTM", 43].id}
    for (name, seed), run in runs.items():
        if "stage_2" in run.row.variants and "optim.loss" not in run.row.set:
            assert run.row.set["data.teacher"] == teacher.id, name
        first = runs.get((f"{name}, aligned", seed), teacher).id
        assert run.init_from == (None if name == "mLSTM, from scratch" else first), name
