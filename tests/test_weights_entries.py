"""export.py, classify.py and eval.py on weights in a file, as a user calls them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.arrow_pointing.builder import data_source
from data.arrow_pointing.geometry import ArrowVariant
from plstm.models.weights import read_info
from plstm.runs.weights import from_checkpoint
from plstm.studies.records import read_records
from tests.commands import call, one_error, paths, run_folder

TINY = ["debug=smoke", "experiment=arrow/plstm", "model.dim=16", "model.heads=2", "optim.epochs=1"]
TINY += ["loop.eval_splits=[val]", "loop.final_splits=[val,test]"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a tiny run of arrow pointing in runs/, its weights in model.safetensors, and val in pictures/."""
    folder = tmp_path_factory.mktemp("trained")
    call("train.py", *TINY, *paths(folder))
    run = run_folder(folder).name[:6]
    (line,) = call("scripts/export.py", run, folder / "model.safetensors", "--runs", folder / "runs").splitlines()
    assert line.startswith(f"{folder}/model.safetensors: arrow-plstm-s43, step 8, ")
    source = data_source(ArrowVariant(43, 48, 0.25, 256, 64), "val")
    for index in range(len(source)):
        path = folder / "pictures" / ("away", "at")[source[index]["label"]] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source[index]["image"][..., 0]).save(path)
    return folder


def test_eval_of_a_file_prints_what_eval_of_its_run_prints(trained):
    header, *numbers = call("eval.py", f"weights={trained}/model.safetensors").splitlines()
    assert header == f"arrow-plstm-s43 ({trained}/model.safetensors), step 8"
    assert numbers == call("eval.py", f"run={run_folder(trained)}").splitlines()[1:]
    assert not (run_folder(trained) / "wandb").exists(), "this run is not in W&B"
    assert len(numbers) == 2
    assert call("eval.py", f"weights={trained}/model.safetensors", "data.split=test").splitlines()[1:] == numbers[1:]


def test_eval_of_a_folder_of_the_same_images_gives_the_same_accuracy(trained, tmp_path):
    """Or names a damaged image, which counts as an error where data.max_corrupt allows it."""
    weights = f"weights={trained}/model.safetensors"
    (_, line) = call("eval.py", weights, f"data.folder={trained}/pictures", "data.workers=1").splitlines()
    (_, expected) = call("eval.py", weights, "data.split=val").splitlines()
    assert line.split()[0] == "folder" and "(64 images)" in line
    assert line.split()[4] == expected.split()[4]
    assert float(line.split()[2]) == pytest.approx(float(expected.split()[2]), abs=2e-6)
    shutil.copytree(trained / "pictures", tmp_path / "pictures")
    (tmp_path / "pictures" / "at" / "bad.png").write_text("no picture")
    command = ["eval.py", weights, f"data.folder={tmp_path}/pictures"]
    assert "bad.png: more than data.max_corrupt=0.001 of them" in call(*command, status=2)
    assert "(65 images)" in call(*command, "data.max_corrupt=0.1").splitlines()[-1]


def test_classify_prints_the_likeliest_classes(trained):
    picture = next((trained / "pictures" / "at").iterdir())
    path, *rest = call("scripts/classify.py", trained / "model.safetensors", picture).splitlines()
    assert path == str(picture)
    shares = {name: share for share, name in (line.split() for line in rest)}
    model = from_checkpoint(trained / "model.safetensors")
    logits = np.asarray(model(model.info.preprocessing(Image.open(picture))[None])[0], np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert shares == {name: f"{share:.1%}" for name, share in zip(("away", "at"), expected, strict=True)}
    assert list(shares) == [("away", "at")[n] for n in np.argsort(-expected)]
    of_run = call("scripts/classify.py", run_folder(trained).name[:6], picture, "--runs", trained / "runs").splitlines()
    assert of_run == [path, *rest]


def test_a_training_starts_from_a_file(trained, tmp_path):
    file = trained / "model.safetensors"
    printed = call("train.py", *TINY, "seed=44", f"init_from={file}", *paths(tmp_path))
    assert f"the weights of {file}" in " ".join(printed.split())  # the banner breaks long lines
    (record,) = read_records(tmp_path / "results")
    assert record.config["init_from"] == read_info(file).sha256[:12] and str(trained) not in record.command


def test_bad_input_is_named(trained, tmp_path):
    (tmp_path / "text.jpg").write_text("no picture")
    weights = trained / "model.safetensors"
    for arguments, words in (
        (["scripts/classify.py", weights, tmp_path / "text.jpg"], "text.jpg: not a picture"),
        (["scripts/classify.py", weights, tmp_path / "none.jpg"], "none.jpg: No such file"),
        (["scripts/distill_baselines.py", weights], "not of code"),
        (["scripts/export.py", "abc", tmp_path / "model.bin"], "name it *.safetensors"),
        (["scripts/export.py", "abc", tmp_path / "model.safetensors", "--runs", tmp_path], "no such run"),
    ):
        output = call(*arguments, status=2)
        assert output.count("\n") == 1 and words in one_error(output), output
