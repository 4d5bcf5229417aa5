"""Pictures of one's own as a user takes them: train, kill, resume, evaluate, classify, fine-tune. Real processes."""

import shutil
from pathlib import Path

import pytest

from tests.commands import assert_same_numbers, call, one_error, paths, record_of, run_folder
from tests.drawing import plain_pictures

TINY = ["experiment=folder/plstm", "data.size=16", "data.workers=0", "model.dim=16", "model.heads=2", "model.depth=2"]
TINY += ["optim.epochs=8", "optim.warmup_epochs=1", "optim.batch_size=8", "optim.peak_lr=5e-3", "loop.eval_every=2"]
TINY += ["logger.mode=disabled"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return plain_pictures(tmp_path_factory.mktemp("pictures") / "train", {"cat": 20, "dog": 20}).parent


@pytest.fixture(scope="module")
def trained(train, pictures, tmp_path_factory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, *TINY, f"data.path={pictures}")
    return folder


def test_a_killed_run_resumes_exactly_from_a_copy_of_the_pictures(start, train, trained, pictures, tmp_path):
    assert record_of(trained).metrics["last"]["val"]["accuracy"] == 1
    assert str(pictures) not in str(record_of(trained))
    run = tmp_path / "run"
    assert start(run, {"event": "save", "count": 3}, *TINY, f"data.path={pictures}", base=[])[0] == -9
    shutil.copytree(pictures, tmp_path / "copy")
    assert "resumed at step" in train(run, *TINY, f"data.path={tmp_path}/copy")
    assert_same_numbers(run, trained)


def test_eval_and_classify_take_the_run(trained, pictures, tmp_path):
    run = f"run={run_folder(trained).name}"
    assert "data.path: name the folder of pictures" in one_error(call("eval.py", run, *paths(trained), status=2))
    (_, line) = call("eval.py", run, f"data.path={pictures}", *paths(trained)).splitlines()
    loss = record_of(trained).metrics["last"]["val"]["loss"]
    assert line == f"val       loss {loss:.6f}  accuracy 1.000000  (4 images)"
    (_, line) = call("eval.py", run, f"data.folder={pictures}/train", *paths(trained)).splitlines()
    assert line.startswith("folder ") and line.endswith("accuracy 1.000000  (40 images)")
    other = plain_pictures(tmp_path / "other", {"cat": 3, "dog": 3})
    error = one_error(call("eval.py", run, f"data.path={other}", *paths(trained), status=2))
    assert f"data.train_images=36: data.path={other} has 4; take the data" in error
    picture = pictures / "train/dog/3.png"
    path, first, second = call("scripts/classify.py", run_folder(trained), picture).splitlines()[-3:]
    assert path == str(picture) and first.split()[1] == "dog" and second.split()[1] == "cat"


def test_a_run_or_its_weights_are_fine_tuned_on_other_classes(train, trained, tmp_path):
    other = plain_pictures(tmp_path / "other", {"emu": 8, "fox": 8, "gnu": 8})
    weights = tmp_path / "model.safetensors"
    call("scripts/export.py", run_folder(trained), weights)
    for number, source in enumerate((run_folder(trained), weights)):
        said = train(tmp_path / str(number), *TINY, "optim.epochs=2", f"data.path={other}", f"init_from={source}")
        assert "a new head, 2 -> 3 classes" in said
