"""What is kept, that it comes back bit for bit, and one clear line where it cannot."""

import os
import shutil
from functools import cache, partial
from pathlib import Path
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plstm.config import OptimConfig
from plstm.errors import UserError
from plstm.models import build_model
from plstm.training import checkpoints
from plstm.training.checkpoints import NO_SCORE, WITHOUT_CHECKSUM, Checkpoints, _damage
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import TrainState, init_state
from tests.commands import biggest, flip
from tests.models.vision_models import MODELS, tiny

RUN = "0123456789ab"
SCORES = {10: 0.9, 20: 0.5, 30: 0.6, 40: 0.7}


@cache
def abstract_state(kind, **changes) -> TrainState:
    model = nnx.eval_shape(lambda: build_model(tiny(**MODELS[kind] | changes), 0))
    return nnx.eval_shape(lambda: init_state(model, build_optimizer(OptimConfig(), lambda step: 0.1)))


def draw_state(seed=0, kind="pLSTM", **changes) -> TrainState:
    """The state of a tiny model with every number drawn."""
    rng, state = np.random.default_rng(seed), abstract_state(kind, **changes)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 10, leaf.dtype), state)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The checkpoints of a run of 40 steps; step n holds the state drawn from seed n."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(folder, RUN)
    for step, score in SCORES.items():
        checkpoints.save(step, draw_state(step), {"best": {"step": step}, "final": None, "seconds": step / 3}, score)
    checkpoints.close()
    return folder


def assert_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), actual, expected)


@pytest.mark.parametrize("step", [10, 40])
def test_the_last_two_and_the_best_are_kept_and_come_back_bit_for_bit(folder, step):
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"10", "30", "40"}
    checkpoints, like = Checkpoints(folder, RUN, read_only=True), draw_state(1)
    assert (checkpoints.last_step(), checkpoints.best_step()) == (40, 10)
    state, info = checkpoints.restore(step, like)
    assert_equal(state, draw_state(step))
    assert info == {"best": {"step": step}, "final": None, "seconds": step / 3, "run": RUN, "step": step}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like)
    assert_equal(Checkpoints(folder, RUN, read_only=True).restore(step, shapes)[0], state)


def test_a_run_goes_on_saving_into_its_folder(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    checkpoints = Checkpoints(copy, RUN)
    state, _ = checkpoints.restore(checkpoints.last_step(), draw_state(1))
    checkpoints.save(50, draw_state(2), {}, NO_SCORE)  # stopped by a signal: without a score
    checkpoints.wait()
    assert (checkpoints.last_step(), checkpoints.best_step()) == (50, 10)
    checkpoints.save(50, state, {"evaluated": 50}, 1.0)  # the same step, evaluated
    checkpoints.wait()
    assert (checkpoints.last_step(), checkpoints.best_step()) == (50, 50)
    assert_equal(checkpoints.restore(50, draw_state(1))[0], draw_state(40))
    checkpoints.close()
    assert {path.name for path in copy.iterdir() if path.is_dir()} == {"40", "50"}


def test_one_too_many_after_a_kill_is_removed(folder, tmp_path):
    """Orbax removes an old checkpoint after the new one is complete; the run may have ended with that one."""
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    checkpoints = Checkpoints(copy, RUN)
    checkpoints.save(50, draw_state(50), {}, -1.0)
    checkpoints.close()
    shutil.copytree(folder / "30", copy / "30")
    Checkpoints(copy, RUN, read_only=True)
    assert (copy / "30").exists()
    Checkpoints(copy, RUN).close()
    assert {path.name for path in copy.iterdir() if path.is_dir()} == {"10", "40", "50"}
    assert_equal(Checkpoints(copy, RUN, read_only=True).restore(40, draw_state(1))[0], draw_state(40))


@pytest.mark.parametrize(
    ("kind", "changes", "name"),
    [
        ("pLSTM", {"dim": 32}, r"params\.embedding\S+ is \(16,\) there and \(32,\) here"),
        ("pLSTM", {"depth": 4}, r"params\.groups\.\S+ is \(1, "),
        ("pLSTM", {"position_embedding": False}, r"\S*\.position\S* is \(4, 4, 16\) there and missing here"),
        ("ViT", {}, r"params\.\S+ is missing there and"),
    ],
)
def test_another_model_s_checkpoint_is_refused_by_a_parameter_s_name(folder, kind, changes, name):
    with pytest.raises(UserError, match=rf"checkpoints/40: a checkpoint of another model .*\({name}"):
        Checkpoints(folder, RUN, read_only=True).restore(40, draw_state(1, kind, **changes))


def test_folders_without_checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new", RUN)
    assert checkpoints.last_step() is None and checkpoints.best_step() is None
    checkpoints.close()
    assert Checkpoints(tmp_path / "new", RUN, read_only=True).last_step() is None
    with pytest.raises(UserError, match=f"{tmp_path}/none: no checkpoints there; train the run first"):
        Checkpoints(tmp_path / "none", RUN, read_only=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"cannot write checkpoints to {tmp_path}/file/checkpoints"):
        Checkpoints(tmp_path / "file" / "checkpoints", RUN)


def test_one_bit_in_any_file_is_found_and_whichever_file_is_cut_it_is_whole_or_refused(folder, tmp_path):
    """Of the arrays, Orbax itself would restore a changed one without an error. Which file holds what is up to it."""
    names = [line.split("  ")[1] for line in (folder / "40" / "SHA256SUMS").read_text().splitlines()]
    step = shutil.copytree(folder / "40", tmp_path / "checkpoints" / "40")
    files = {str(path.relative_to(step)): path for path in step.rglob("*") if path.is_file()}
    assert files.keys() == {*names, *WITHOUT_CHECKSUM}
    (step / "state" / ".DS_Store").write_bytes(b"")  # what is hidden, of a file system or a viewer, does no harm
    (step / "state" / ".ipynb_checkpoints").mkdir()
    (step / "state" / ".ipynb_checkpoints" / "copy").write_bytes(b"")
    expected, refused = draw_state(40), 0
    for name, path in files.items():
        whole = path.read_bytes()
        flip(path)
        assert name not in names or _damage(step) == f"{name} has changed since it was written"
        path.write_bytes(whole[: len(whole) // 2])
        try:
            state, info = Checkpoints(step.parent, RUN, read_only=True).restore(40, expected)
        except UserError as error:
            assert str(step) in str(error), name
            refused += 1
        else:
            assert_equal(state, expected)
            assert info["best"] == {"step": 40}, name
        path.write_bytes(whole)
        assert _damage(step) is None
    assert refused >= 5


DAMAGES = {
    "a bit of the data": lambda step: flip(biggest(step)),
    "cut data": lambda step: os.truncate(biggest(step), biggest(step).stat().st_size // 2),
    "no data": lambda step: os.truncate(biggest(step), 0),
    "a file missing": lambda step: (step / "state" / "_METADATA").unlink(),
    "no state": lambda step: shutil.rmtree(step / "state"),
    "half of it missing": lambda step: [shutil.rmtree(step / "state"), (step / "SHA256SUMS").unlink()],
    "no info": lambda step: shutil.rmtree(step / "info"),
    "cut info": lambda step: os.truncate(step / "info" / "metadata", 5),
    "a cut score": lambda step: os.truncate(step / "metrics" / "metrics", 5),
    "no sums": lambda step: (step / "SHA256SUMS").unlink(),
    "cut sums": lambda step: os.truncate(step / "SHA256SUMS", 100),
    "sums cut at the end of a line": lambda step: os.truncate(
        step / "SHA256SUMS", (step / "SHA256SUMS").read_text()[:-1].rindex("\n") + 1
    ),
    "empty sums": lambda step: (step / "SHA256SUMS").write_text(""),
    "an empty folder": lambda step: [shutil.rmtree(step), step.mkdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_a_run_falls_back_to_the_one_before(folder, tmp_path, capsys, damage):
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    DAMAGES[damage](copy / "40")
    with pytest.raises(UserError, match=f"{copy}/40: .*; move it away"):
        Checkpoints(copy, RUN, read_only=True).restore(40, draw_state(1))
    checkpoints = Checkpoints(copy, RUN)
    assert checkpoints.last_step() == 30
    assert_equal(checkpoints.restore(30, draw_state(1))[0], draw_state(30))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("the checkpoint of step 40 is damaged: ") and line.endswith(f"{copy}/damaged/40")
    checkpoints.save(40, draw_state(40), {}, 0.7)
    checkpoints.close()
    assert {path.name for path in copy.iterdir()} == {"10", "30", "40", "damaged"}


@pytest.mark.parametrize(
    ("name", "run", "words"),
    [
        ("50", RUN, "it is of step 40"),  # a copy under the name of a later step
        ("040", RUN, "it is of step 40"),
        ("40", "f" * 12, f"it is of run {RUN}, and the config of run {'f' * 12}"),
    ],
)
def test_a_checkpoint_of_another_run_or_step_is_not_taken(folder, tmp_path, capsys, name, run, words):
    copy = tmp_path / "checkpoints"
    shutil.copytree(folder / "40", copy / name)
    if name.isdecimal() and str(int(name)) == name:
        with pytest.raises(UserError, match=f"{copy}/{name}: a damaged checkpoint, {words}; move it away"):
            Checkpoints(copy, run, read_only=True).info(int(name))
    assert Checkpoints(copy, run).last_step() is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f": {words}; set aside as {copy}/damaged/{name}")


@pytest.mark.parametrize("info", ["[]", "[" * 100_000, "7", '{"run": ', '"x"', "[[1]]"])
def test_info_of_another_shape_is_damage_although_its_sums_fit(folder, tmp_path, capsys, info):
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    (copy / "40" / "info" / "metadata").write_text(info)
    checkpoints._write_checksums(copy / "40")
    with pytest.raises(UserError, match=f"{copy}/40: .* it is of|{copy}/40: .*info/metadata cannot be read"):
        Checkpoints(copy, RUN, read_only=True).info(40)
    assert Checkpoints(copy, RUN).last_step() == 30


@pytest.mark.parametrize("name", ["²", "٣", "x", "40.orbax-checkpoint-tmp", "-1", "1_0"])
def test_a_folder_that_is_no_step_is_left_alone(folder, tmp_path, capsys, name):
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    (copy / name).mkdir()
    assert Checkpoints(copy, RUN, read_only=True).last_step() == 40
    assert Checkpoints(copy, RUN).last_step() == 40 and capsys.readouterr().out == ""


def test_a_process_waits_until_it_sees_the_checkpoints_of_process_0(folder, tmp_path, monkeypatch):
    """As the second of two processes, whose listing of a network disk is old."""
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    (copy / "40").rename(tmp_path / "hidden")
    said_by_main = lambda: Mock(side_effect=[0, 3, 10, 30, 40])  # noqa: E731
    monkeypatch.setattr(checkpoints, "from_main", said_by_main())
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: (tmp_path / "hidden").rename(copy / "40"))
    assert Checkpoints(copy, RUN).last_step() == 40
    (copy / "40").rename(tmp_path / "hidden")
    monkeypatch.setattr(checkpoints, "from_main", said_by_main())
    monkeypatch.setattr(checkpoints, "SECONDS_TO_LIST", -1)
    with pytest.raises(UserError, match=r"process 0 sees the checkpoints \[10, 30, 40\], .*\[10, 30\]; .*shared disk"):
        Checkpoints(copy, RUN)


def test_a_file_that_a_listing_does_not_show_yet_is_not_missing(folder, tmp_path, monkeypatch, capsys):
    copy, rglob = shutil.copytree(folder, tmp_path / "checkpoints"), Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda path, glob: [p for p in rglob(path, glob) if p.name != "_METADATA"])
    assert Checkpoints(copy, RUN).last_step() == 40 and capsys.readouterr().out == ""


def test_a_clock_that_jumps_is_not_taken_for_a_full_disk(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints", RUN)
    monkeypatch.setattr(checkpoints._manager, "wait_until_finished", Mock(side_effect=TimeoutError("1200 seconds")))
    with pytest.raises(UserError, match="it took too long, or the clock jumped; see whether the disk answers, then"):
        checkpoints.wait()


def test_a_step_that_a_kill_kept_from_being_written_anew_is_still_there(folder, tmp_path, monkeypatch):
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    killed = Checkpoints(copy, RUN)
    monkeypatch.setattr(killed._manager, "save", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.save(40, draw_state(2), {}, 1.0)
    assert not (copy / "40").exists()
    checkpoints = Checkpoints(copy, RUN)
    assert (checkpoints.last_step(), checkpoints.best_step()) == (40, 10)
    assert_equal(checkpoints.restore(40, draw_state(1))[0], draw_state(40))
    checkpoints.close()
    assert {path.name for path in copy.iterdir() if path.is_dir()} == {"10", "30", "40"}


def test_a_step_that_a_kill_kept_from_being_removed_whole_is_not_taken_for_damaged(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "checkpoints")
    (copy / "deleted").mkdir()
    (copy / "30").rename(copy / "deleted" / "20")
    biggest(copy / "deleted" / "20").unlink()
    Checkpoints(copy, RUN).close()
    assert capsys.readouterr().out == "" and {path.name for path in copy.iterdir()} == {"10", "40"}


def test_a_step_damaged_again_replaces_the_one_set_aside(folder, tmp_path, capsys):
    copy = tmp_path / "checkpoints"
    for _ in range(2):
        shutil.copytree(folder / "40", copy / "40")
        flip(copy / "40" / "info" / "metadata")
        with pytest.raises(UserError, match=f"{copy}/40: .*; move it away"):
            Checkpoints(copy, RUN, read_only=True).info(40)
        assert Checkpoints(copy, RUN).last_step() is None
    assert capsys.readouterr().out.count("set aside") == 2
    assert [path.name for path in (copy / "damaged").iterdir()] == ["40"]
