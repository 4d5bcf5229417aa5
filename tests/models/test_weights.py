"""Weights in a file: the same model again, and one clear line for a file that is not right."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import plstm
from plstm.errors import UserError
from plstm.models import (
    EfficientNetConfig,
    GraphConfig,
    LanguageConfig,
    SequenceConfig,
    ViLConfig,
    VisionModel,
    build_model,
)
from plstm.models.weights import read_info, weights_digest
from plstm.preprocessing import Preprocessing
from tests.commands import ROOT
from tests.models.vision_models import filled, tiny

NAMES = ("cat", "dog", "für")


def assert_same(model, other) -> None:
    jax.tree.map(
        np.testing.assert_array_equal, *(nnx.state(each, (nnx.Param, nnx.BatchStat)) for each in (model, other))
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A small vision model's."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    plstm.save(filled(tiny()), path, class_names=NAMES, preprocessing=Preprocessing(16, 0.5))
    return path


def test_importing_the_package_imports_no_jax():
    code = "import sys, plstm; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_model_made_in_python_is_loaded_as_it_was_saved(file):
    model = plstm.load(file)
    assert_same(model, filled(tiny()))
    info = model.info
    assert (info.config, info.class_names, info.preprocessing) == (tiny(), NAMES, Preprocessing(16, 0.5))
    assert (info.run, info.step, info.training) == ("", 0, None)
    assert info.sha256 == read_info(file).sha256 == weights_digest(model)
    hash(nnx.graphdef(model))  # nnx.jit needs it


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (EfficientNetConfig(stages=[[3, 1, 1, 2, 8]]), {}),
        (ViLConfig(dim=16, depth=2), {}),
        (GraphConfig(dim=8, depth=2, heads=2), {"features": 3, "classes": 2}),
        (GraphConfig(kind="gin", dim=8, depth=2), {"features": 3, "classes": 2}),
        (SequenceConfig(dim=8), {"vocabulary": 3, "classes": 2}),
        (LanguageConfig(dim=8), {"vocabulary": 3, "classes": 2}),
    ],
    ids=lambda value: getattr(value, "family", ""),
)
def test_so_is_one_of_any_family_with_sizes_and_running_statistics(tmp_path, config, sizes):
    model = build_model(config, 0, sizes)
    plstm.save(model, tmp_path / "model.safetensors")
    again = plstm.load(tmp_path / "model.safetensors")
    assert_same(again, model)
    assert (again.info.config, again.info.sizes) == (config, sizes)


def test_weights_that_have_changed_are_not_their_run_s_any_more(file, tmp_path):
    model = plstm.load(file)
    model.info = dataclasses.replace(model.info, run="0123456789ab", step=7, training={"task": "arrow"})
    plstm.save(model, tmp_path / "same.safetensors")
    same = read_info(tmp_path / "same.safetensors")
    assert (same.run, same.step, same.training, same.class_names) == ("0123456789ab", 7, {"task": "arrow"}, NAMES)
    model.head.bias[...] += 1e-3
    plstm.save(model, tmp_path / "other.safetensors")
    other = plstm.load(tmp_path / "other.safetensors")
    assert (other.info.run, other.info.step, other.info.training) == ("", 0, None)
    assert (other.info.class_names, other.info.preprocessing) == (NAMES, Preprocessing(16, 0.5))
    assert_same(other, model)


def test_what_load_would_refuse_is_not_written(file, tmp_path):
    def refused(model, words, **options):
        with pytest.raises(UserError, match=words):
            plstm.save(model, tmp_path / "x.safetensors", **options)
        assert not list(tmp_path.iterdir())

    refused(VisionModel(tiny(), nnx.Rngs(0)), "does not know its config; make it by plstm.models.build_model")
    refused(filled(tiny()), "class_names: 2, and the model has 3 classes", class_names=["cat", "dog"])
    refused(filled(tiny()), r"class_names\[0\]: Input should be a valid string", class_names=[0, 1, 2])
    refused(filled(tiny()), "multiples of 4", preprocessing=Preprocessing(15))
    model = filled(tiny())
    model.head.bias[...] = np.nan
    refused(model, "head.bias has values that are not finite")
    model.head = nnx.Linear(64, 5, rngs=nnx.Rngs(0))
    refused(model, r"tensor head.bias is F32 \(5,\) there and F32 \(3,\) here")
    with pytest.raises(UserError, match="cannot be written"):
        plstm.save(plstm.load(file), file / "model.safetensors")  # in a file


def test_the_file_says_all_that_is_needed_to_use_it(file):
    with safe_open(file, framework="np") as opened:
        metadata = opened.metadata()
        names = set(opened.keys())
    assert {"head.kernel", "embedding.project.bias", "groups.blocks.1.mlp.up.kernel"} <= names
    plain = {"format": "plstm", "format_version": "4", "sizes": "{}", "run": "", "step": "0", "training": "null"}
    assert metadata.items() >= plain.items()
    assert json.loads(metadata["model"]) == dataclasses.asdict(tiny())
    assert json.loads(metadata["class_names"]) == list(NAMES)
    channels = {"mean": [0.485, 0.456, 0.406], "deviation": [0.229, 0.224, 0.225]}
    assert json.loads(metadata["preprocessing"]) == {"size": 16, "crop_ratio": 0.5} | channels


def test_weights_of_a_gpu_s_kernels_serve_elsewhere(file, tmp_path):
    path = tmp_path / "other.safetensors"
    rewrite(file, path, model=json.dumps(dataclasses.asdict(tiny(method="fused"))))
    model = plstm.load(path)
    assert model.info.config.method == "fused" and {block.mixer.method for block in model.groups.blocks} == {"auto"}


def rewrite(source: Path, path: Path, tensors: dict | None = None, **metadata) -> None:
    """A copy of a file with changed tensors or metadata; None leaves an entry out."""
    with safe_open(source, framework="np") as opened:
        kept = {key: value for key, value in (opened.metadata() | metadata).items() if value is not None}
    tensors = {name: tensor for name, tensor in (load_file(source) | (tensors or {})).items() if tensor is not None}
    save_file(tensors, path, kept)


DEEP = '{"model":' * 10_000 + "0" + "}" * 10_000
DAMAGED = "metadata that do not fit this code"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("norm.scale", None, "not of this model: it has no tensor norm.scale"),
        ("norm.shift", np.zeros(3, np.float32), "of this model: it has a tensor norm.shift, which the model does not"),
        ("head.bias", np.zeros(10, np.float32), r"tensor head.bias is F32 \(10,\) there and F32 \(3,\) here"),
        ("head.bias", np.zeros(3, np.float16), r"tensor head.bias is F16 \(3,\) there and F32 \(3,\) here"),
        ("head.bias", np.array([0, np.nan, 0], np.float32), "tensor head.bias has values that are not finite"),
        ("head.bias", np.full(3, 1e-30, np.float32), "its tensors have changed since they were written"),
        ("format", None, "made by another program; write one with plstm.save"),
        ("format_version", "3", "format version 3, and this code reads 4; write it again"),
        *(("model", text, f"{DAMAGED} .*key model: ") for text in (None, "[1", "[]", "null", DEEP)),
        ("model", '{"family": "knots"}', f"{DAMAGED} .*model.family='knots': choose one of vision, "),
        ("model", '{"family": ["vision"]}', rf"{DAMAGED} .*model.family=\['vision'\]: choose one of vision, "),
        ("model", '{"family": "vision", "side": 3}', f"{DAMAGED} .*model.side: not a key of family vision"),
        ("model", '{"family": "vision", "dim": "16"}', f"{DAMAGED} .*key dim: Input should be a valid integer"),
        ("model", '{"family": "vision", "dim": 18}', f"{DAMAGED} .*model.heads=3: pLSTM's gates need"),
        ("model", '{"family": "vision", "modes": ["Q"]}', f"{DAMAGED} .*choose one of P, D, attention"),
        ("model", '{"family": "sequence"}', f"{DAMAGED} .*sizes: a model of family sequence needs 'vocabulary'"),
        *((key, None, f"{DAMAGED} .*key {key}: Field required") for key in ("class_names", "sizes", "sha256")),
        ("sizes", '{"classes": 0}', f"{DAMAGED} .*key sizes.classes: "),
        *(("step", text, f"{DAMAGED} .*key step: ") for text in ("many", "-1")),
        *(("run", text, f"{DAMAGED} .*key run: ") for text in ("released", "0123456789ab\n", "0123456789AB")),
        ("training", "3", f"{DAMAGED} .*key training: "),
        ("class_names", "[0, 1, 2]", rf"{DAMAGED} .*key class_names\[0\]: Input should be a valid string"),
        ("class_names", '["away"]', f"{DAMAGED} .*class_names: 1, and the model has 3 classes"),
        ("preprocessing", '{"side": 3}', f"{DAMAGED} .*key preprocessing.size: Field required"),
        ("preprocessing", '{"size": 50}', f"{DAMAGED} .*size: 50, and the model takes multiples of 4"),
        *(
            ("preprocessing", f'{{"size": 48, "{key}": {text}}}', f"{DAMAGED} .*key preprocessing.{key}")
            for key, text in (("size", -1), ("size", 1e5), ("size", '"48"'), ("mean", '"grey"'), ("mean", "[0, 0]"))
        ),
        ("preprocessing", '{"size": 48, "deviation": [1, 1, 0]}', f"{DAMAGED} .*deviation"),
        ("preprocessing", '{"size": 48, "crop_ratio": 1e-9}', f"{DAMAGED} .*crop_ratio"),
    ],
)
def test_tensors_and_metadata_that_cannot_be_used_are_named_in_one_line(file, tmp_path, key, value, words):
    path = tmp_path / "other.safetensors"
    rewrite(file, path, **{"tensors" if "." in key else key: {key: value} if "." in key else value})
    with pytest.raises(UserError, match=f"{path}: .*{words}"):
        plstm.load(path)


def test_a_file_that_is_not_there_or_not_whole(file, tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="cut.safetensors: not a whole safetensors file"):
        plstm.load(tmp_path / "cut.safetensors")
    with pytest.raises(UserError, match=f"{tmp_path}: a folder; a run's weights: python scripts/export.py"):
        plstm.load(tmp_path)
    with pytest.raises(UserError, match="none.safetensors: no such file"):
        plstm.load(tmp_path / "none.safetensors")
