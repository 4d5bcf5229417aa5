"""Weights of a run, exported and loaded again: the same numbers, and one clear line for a file that is not right."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from plstm.config import Config
from plstm.errors import UserError
from plstm.models import VisionConfig
from plstm.runs.folders import write_config
from plstm.runs.identity import portable_config, run_id
from plstm.runs.weights import config_of, from_checkpoint, save_safetensors
from plstm.tasks.arrow import ArrowData
from plstm.training.checkpoints import NO_SCORE, Checkpoints
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import TrainState
from scripts import classify
from tests.models.vision_models import filled

CONFIG = Config(
    model=VisionConfig(image_size=48, patch_size=16, dim=16, heads=2, depth=2, classes=2, dtype="float32"),
    data=ArrowData(size=48, object_scale=0.25, train_seed=43, train_images=256, eval_images=64),
)
ID = run_id(CONFIG)


def save_run(folder: Path, config: Config, checkpoints: dict[int, tuple], statistics: Any = None) -> None:
    """A run as train.py leaves it, with checkpoints {step: (parameters, end of the training, score)}."""
    write_config(folder, config, [])
    kept = Checkpoints(folder / "checkpoints", run_id(config))
    optimizer = build_optimizer(config.optim, lambda step: 0.0)
    for step, (params, final, score) in checkpoints.items():
        state = TrainState(jnp.int32(step), params, optimizer.init(params), jnp.int32(-1), statistics)
        kept.save(step, state, {"sizes": {}, "class_names": ["away", "at"], "final": final}, score)
    kept.close()


def drawn(seed: int):
    return nnx.state(filled(CONFIG.model, seed), nnx.Param)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder of one run, with checkpoints of steps 1 (the best) and 2."""
    folder = tmp_path_factory.mktemp("runs")
    save_run(folder / ID, CONFIG, {1: (drawn(1), None, 0.9), 2: (drawn(2), {}, 0.1)})
    return folder


@pytest.fixture(scope="module")
def exported(runs) -> Path:
    path = runs / "model.safetensors"
    save_safetensors(from_checkpoint(ID, runs=runs), path)
    return path


def assert_same(model, seed: int):
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model, nnx.Param), drawn(seed))


def test_a_run_and_its_file_are_the_model_that_was_trained(runs, exported):
    for source in (ID, ID[:4], runs / ID, exported):
        model = from_checkpoint(source, runs=runs)
        assert_same(model, 2)
        assert (model.info.run, model.info.step, model.info.class_names) == (ID, 2, ("away", "at"))
        assert model.info.config.model == CONFIG.model
        hash(nnx.graphdef(model))  # nnx.jit needs it


def test_the_best_checkpoint_is_one_with_a_score(runs, tmp_path):
    assert_same(from_checkpoint(ID, runs=runs, checkpoint="best"), 1)
    save_run(tmp_path / ID, CONFIG, {2: (drawn(2), None, NO_SCORE)})  # as of a run stopped before its first evaluation
    with pytest.raises(UserError, match=f"^checkpoint=best: {tmp_path / ID} has none; .*, or take checkpoint=last"):
        from_checkpoint(tmp_path / ID, checkpoint="best")


def test_a_checkpoint_that_a_training_deletes_meanwhile_is_looked_up_again(runs, tmp_path, monkeypatch):
    folder, restore = tmp_path / ID, Checkpoints.restore
    shutil.copytree(runs / ID, folder)

    def delete_first(self, step, like):
        shutil.rmtree(folder / "checkpoints" / "2", ignore_errors=True)
        return restore(self, step, like)

    monkeypatch.setattr(Checkpoints, "restore", delete_first)
    assert from_checkpoint(folder).info.step == 1


def test_a_config_that_has_changed_is_not_taken_for_the_run_s(runs, tmp_path):
    shutil.copytree(runs / ID, tmp_path / "copy")  # under another name, as a user may
    assert from_checkpoint(tmp_path / "copy").info.run == ID
    config = tmp_path / "copy" / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("scale: 0.25", "scale: 0.2"))
    with pytest.raises(UserError, match=f"it is of run {ID}, and the config of run (?!{ID})"):
        from_checkpoint(tmp_path / "copy")


def test_the_file_says_all_that_is_needed_to_use_it(runs, exported):
    with safe_open(exported, framework="np") as file:
        metadata, names = file.metadata(), set(file.keys())
    assert {"head.kernel", "embedding.project.bias", "groups.blocks.1.mlp.up.kernel"} <= names
    plain = {"format": "plstm", "format_version": "3", "sizes": "{}", "run": ID, "step": "2"}
    assert metadata.items() >= (plain | {"class_names": '["away", "at"]'}).items()
    assert json.loads(metadata["config"]) == portable_config(CONFIG)
    channels = {"mean": [0.485, 0.456, 0.406], "deviation": [0.229, 0.224, 0.225]}
    assert json.loads(metadata["preprocessing"]) == {"size": 48, "crop_ratio": 1.0} | channels
    assert config_of(exported).data == config_of(ID, runs).data == CONFIG.data


def test_a_file_s_own_preprocessing_is_used(exported, tmp_path):
    path = tmp_path / "other.safetensors"
    changed = {"size": 32, "crop_ratio": 0.5, "mean": [0.5, 0.5, 0.5], "deviation": [0.25, 0.5, 1.0]}
    rewrite(exported, path, preprocessing=json.dumps(changed))
    image = Image.new("RGB", (60, 80), (255, 255, 255))
    image.paste((0, 0, 0), (30, 0, 60, 80))
    pixels = from_checkpoint(path).info.preprocessing(image)
    assert pixels.shape == (32, 32, 3) and pixels.dtype == np.float32
    np.testing.assert_allclose(pixels[16, 0], [2, 1, 0.5])
    np.testing.assert_allclose(pixels[16, -1], [-2, -1, -0.5])


def test_weights_of_a_gpu_s_kernels_serve_elsewhere(exported, tmp_path):
    path, config = tmp_path / "other.safetensors", portable_config(CONFIG)
    rewrite(exported, path, config=json.dumps(config | {"model": config["model"] | {"method": "fused"}}))
    image = np.random.default_rng(0).standard_normal((1, 48, 48, 3), np.float32)
    model = from_checkpoint(path)
    np.testing.assert_array_equal(model(image), from_checkpoint(exported)(image))
    assert model.info.config.model.method == "fused"


def rewrite(source: Path, path: Path, tensors: dict | None = None, **metadata) -> None:
    """A copy of a file with changed tensors or metadata; None leaves an entry out."""
    with safe_open(source, framework="np") as file:
        kept = {key: value for key, value in (file.metadata() | metadata).items() if value is not None}
    tensors = {name: tensor for name, tensor in (load_file(source) | (tensors or {})).items() if tensor is not None}
    save_file(tensors, path, kept)


DEEP = '{"model":' * 10_000 + "0" + "}" * 10_000


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("norm.scale", None, "not of this model: it has no tensor norm.scale"),
        ("norm.shift", np.zeros(3, np.float32), "of this model: it has a tensor norm.shift, which the model does not"),
        ("head.bias", np.zeros(10, np.float32), r"tensor head.bias is F32 \(10,\) there and F32 \(2,\) here"),
        ("head.bias", np.zeros(2, np.float16), r"tensor head.bias is F16 \(2,\) there and F32 \(2,\) here"),
        ("format", None, "made by another program; .* scripts/export.py"),
        ("head.bias", np.array([0, np.nan], np.float32), "tensor head.bias has values that are not finite"),
        ("head.bias", np.full(2, 1e-30, np.float32), "its tensors have changed since they were written"),
        ("format_version", "2", "format version 2, and this code reads 3; export it again"),
        *(("config", text, "metadata are damaged .*key config: ") for text in (None, "[1", "[]", "null", DEEP)),
        ("config", DEEP.replace('{"model":' * 9_850, "").replace("}" * 9_850, ""), "metadata are damaged"),
        ("config", '{"data": {}, "optim": {}, "task": "knots"}', "metadata are damaged .*task='knots'"),
        *((key, None, f"are damaged .*key {key}: Field required") for key in ("class_names", "sizes", "sha256")),
        *(("step", text, "metadata are damaged .*key step: ") for text in ("many", "-1")),
        ("class_names", "[0, 1]", r"metadata are damaged .*key class_names\[0\]: Input should be a valid string"),
        ("class_names", '["away"]', "metadata are damaged .*class_names: 1, and the model has 2 classes"),
        ("preprocessing", '{"side": 3}', "metadata are damaged .*key preprocessing.size: Field required"),
        ("preprocessing", '{"size": 50}', "metadata are damaged .*size: 50, and the model takes multiples of 16"),
        *(
            ("preprocessing", f'{{"size": 48, "{key}": {text}}}', f"metadata are damaged .*key preprocessing.{key}")
            for key, text in (("size", -1), ("size", 1e5), ("size", '"48"'), ("mean", '"grey"'), ("mean", "[0, 0]"))
        ),
        ("preprocessing", '{"size": 48, "deviation": [1, 1, 0]}', "metadata are damaged .*deviation"),
        ("preprocessing", '{"size": 48, "crop_ratio": 1e-9}', "metadata are damaged .*crop_ratio"),
    ],
)
def test_tensors_and_metadata_that_cannot_be_used_are_named_in_one_line(exported, tmp_path, key, value, words):
    path = tmp_path / "other.safetensors"
    rewrite(exported, path, **{"tensors" if "." in key else key: {key: value} if "." in key else value})
    with pytest.raises(UserError, match=f"{path}: .*{words}") as caught:
        from_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_names_of_classes_do_nothing_to_a_terminal(exported, tmp_path, monkeypatch, capsys):
    rewrite(exported, tmp_path / "other.safetensors", class_names=json.dumps(["\x1b[2Jweit\n", "für"]))
    picture = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    drawn = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    Image.fromarray(drawn).save(picture, exif=exif)
    weights = str(tmp_path / "other.safetensors")
    monkeypatch.setattr("sys.argv", ["classify.py", str(picture), "--weights", weights])
    classify.main()
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert sorted(names) == [r"\x1b[2Jweit\n", "für"]


def test_what_is_not_there_or_not_whole(runs, exported, tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(exported.read_bytes()[:-8])
    told = {tmp_path / "cut.safetensors": "cut.safetensors: not a whole safetensors file", "abc": "no such run"}
    for source, words in (told | {tmp_path / "none.safetensors": "none.safetensors: no such file"}).items():
        with pytest.raises(UserError, match=words):
            from_checkpoint(source, runs=runs)
    with pytest.raises(UserError, match="cannot be written"):
        save_safetensors(from_checkpoint(exported), exported / "model.safetensors")  # in a file
