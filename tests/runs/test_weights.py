"""Weights of a run, and of a file that was made of it: the same model, and the config of the training."""

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

import plstm
from plstm.config import Config
from plstm.errors import UserError
from plstm.models import VisionConfig
from plstm.models.weights import read_info
from plstm.preprocessing import Preprocessing
from plstm.runs.folders import write_config
from plstm.runs.identity import portable_config, run_id
from plstm.runs.weights import config_of, from_checkpoint
from plstm.tasks import TASKS
from plstm.tasks.arrow import ArrowData
from plstm.training.checkpoints import NO_SCORE, Checkpoints
from plstm.training.optimizers import build_optimizer
from plstm.training.state import RunState
from plstm.training.steps import TrainState
from scripts import classify
from tests.commands import call_here
from tests.models.test_weights import rewrite
from tests.models.vision_models import filled

CONFIG = Config(
    model=VisionConfig(image_size=48, patch_size=16, dim=16, heads=2, depth=2, classes=2, dtype="float32"),
    data=ArrowData(size=48, object_scale=0.25, train_seed=43, train_images=256, eval_images=64),
)
ID = run_id(CONFIG)


def save_run(folder: Path, config: Config, checkpoints: dict[int, tuple], statistics: Any = None) -> None:
    """A run as train.py leaves it, with checkpoints {step: (parameters, end of the training, score)}. Where the
    parameters are None, there was an evaluation alone."""
    write_config(folder, config, [])
    kept = Checkpoints(folder / "checkpoints", run_id(config))
    optimizer = build_optimizer(config.optim, lambda step: 0.0)
    best, highest = None, NO_SCORE
    for step, (params, final, score) in checkpoints.items():
        if score > highest:
            best, highest = {"step": step}, score
        if params is not None:
            state = TrainState(jnp.int32(step), params, optimizer.init(params), jnp.int32(-1), statistics)
            run = RunState(step, {}, list(TASKS[config.task](config).class_names), step, best=best, final=final)
            kept.save(step, state, run.to_json(), score)
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
    plstm.save(from_checkpoint(ID, runs=runs), path)
    return path


def assert_same(model, seed: int):
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model, nnx.Param), drawn(seed))


def test_a_run_and_its_file_are_the_model_that_was_trained(runs, exported):
    for source in (ID, ID[:4], runs / ID, exported):
        model = from_checkpoint(source, runs=runs)
        assert_same(model, 2)
        assert (model.info.run, model.info.step, model.info.class_names) == (ID, 2, ("away", "at"))
        assert model.info.config == CONFIG.model and model.info.preprocessing == Preprocessing(48)
        hash(nnx.graphdef(model))  # nnx.jit needs it


def test_the_best_checkpoint_is_one_with_a_score(runs, tmp_path):
    assert_same(from_checkpoint(ID, runs=runs, checkpoint="best"), 1)
    with pytest.raises(UserError, match="^checkpoint=first: choose last or best$"):
        from_checkpoint(ID, runs=runs, checkpoint="first")
    save_run(tmp_path / ID, CONFIG, {2: (drawn(2), None, NO_SCORE)})  # as of a run stopped before its first evaluation
    with pytest.raises(UserError, match=f"^checkpoint=best: {tmp_path / ID} has none; .*, or take checkpoint=last"):
        from_checkpoint(tmp_path / ID, checkpoint="best")


def test_the_best_checkpoint_is_none_where_the_best_evaluation_was_not_saved(tmp_path):
    save_run(tmp_path / ID, CONFIG, {1: (drawn(1), None, 0.8), 2: (None, None, 0.9), 3: (drawn(3), {}, NO_SCORE)})
    words = f"^checkpoint=best: {tmp_path / ID} saved none at its best evaluation, step 2; take checkpoint=last$"
    with pytest.raises(UserError, match=words):
        from_checkpoint(tmp_path / ID, checkpoint="best")


def test_a_file_has_one_step_only(exported):
    with pytest.raises(UserError, match=f"^checkpoint=best: {exported} is a file of weights"):
        from_checkpoint(exported, checkpoint="best")


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


def test_the_file_has_the_config_of_the_training(runs, exported, tmp_path):
    training = portable_config(CONFIG)
    del training["model"]
    assert read_info(exported).training == training
    assert config_of(exported).data == config_of(ID, runs).data == CONFIG.data
    assert run_id(config_of(exported)) == ID
    other = tmp_path / "other.safetensors"
    for text, words in (("{}", ""), ('{"task": "knots"}', ".*task='knots'")):
        rewrite(exported, other, training=text)
        with pytest.raises(UserError, match=f"^{other}: metadata that do not fit this code {words}"):
            config_of(other)
    rewrite(exported, other, training="null")
    with pytest.raises(UserError, match=f"^{other}: these weights come from no run of train.py"):
        config_of(other)


def test_names_of_classes_do_nothing_to_a_terminal(exported, tmp_path):
    rewrite(exported, tmp_path / "other.safetensors", class_names=json.dumps(["\x1b[2Jweit\n", "für"]))
    picture = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    drawn = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    Image.fromarray(drawn).save(picture, exif=exif)
    output = call_here(classify.main, tmp_path / "other.safetensors", picture).output
    names = [line.split()[1] for line in output.splitlines()[1:]]
    assert sorted(names) == [r"\x1b[2Jweit\n", "für"]
