"""Run ids follow everything that can change a run's numbers, and nothing else; bad values are named."""

from __future__ import annotations

import copy
import re
from operator import attrgetter

import pytest
from hydra import compose
from omegaconf import OmegaConf

from data.augment.recipes import AugmentConfig
from plstm.config import Config, check, plain_config, run_id, run_name, to_config
from plstm.errors import UserError
from plstm.models import VisionConfig
from plstm.runs.folders import load_config
from plstm.tasks.arrow import ArrowData

# Where a run lives, what reads its images and where it is shown: not what its numbers are.
OUTSIDE = re.compile(r"(logger|mesh|paths|report)\.|data\.(root|generate|placement|workers)$|model\.remat$")


@pytest.fixture(scope="module")
def identify(composed):
    return lambda *arguments: run_id(plain_config(to_config(composed(*arguments))))


@pytest.fixture(scope="module")
def plain(composed):
    return plain_config(to_config(composed("experiment=arrow/plstm")))


def leaves(node, prefix=""):
    """Dotted key -> value."""
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in leaves(child, f"{prefix}{name}.").items()}


def another(value):
    """A different value of the same kind."""
    if isinstance(value, bool):
        return not value
    return {int: 7, float: 0.123, str: "other", list: ["other"]}.get(type(value), 3)


def test_every_key_is_in_the_id_or_known_to_be_outside(plain):
    start = run_id(plain)
    assert re.fullmatch("[0-9a-f]{12}", start)
    for key, value in leaves(plain).items():
        changed = copy.deepcopy(plain)
        *parents, leaf = key.split(".")
        node = changed
        for parent in parents:
            node = node[parent]
        node[leaf] = another(value)
        assert (run_id(changed) == start) == bool(OUTSIDE.match(key)), key


def test_the_order_of_keys_changes_no_id(plain):
    backwards = {key: plain[key] for key in reversed(plain)}
    backwards["optim"] = {key: plain["optim"][key] for key in reversed(plain["optim"])}
    assert list(backwards) != list(plain) and run_id(backwards) == run_id(plain)


def test_every_key_can_be_given_on_the_command_line(composed, plain, identify):
    follow = ("model.image", "model.classes", "augment")
    kept = {key: value for key, value in leaves(plain).items() if not key.startswith(follow)}
    values = {key: "null" if value is None else value for key, value in kept.items()}
    arguments = [f"{key}={value}".replace("'", "").replace(" ", "") for key, value in values.items()]
    assert identify(*arguments) == run_id(plain)
    assert len(arguments) > 50


def test_the_same_values_in_other_words_have_one_id(identify):
    start = identify("experiment=arrow/plstm")
    for words in (
        ["seed=43"],
        ["optim.epochs=50"],
        ["optim.epochs=50.0"],
        ["optim.peak_lr=0.0001"],
        ["optim.peak_lr=1e-4"],
        ["data.train_seed=43"],
        ["model.modes=[P,D]"],
        ["data.placement=stream", "data.workers=2", "data.root=/elsewhere", "logger.mode=offline", "paths.runs=/there"],
        ["mesh.fsdp=8", "mesh.timeout=60"],
        ["model.remat=true"],
    ):
        assert identify("experiment=arrow/plstm", *words) == start, words
    others = [["seed=44"], ["optim.peak_lr=3e-4"], ["data.train_seed=44"], ["model.modes=[D,P]"], ["debug=smoke"]]
    assert len({identify("experiment=arrow/plstm", *words) for words in others} | {start}) == 1 + len(others)


def test_hydra_s_folder_is_the_run_s_id(composed, plain):
    node = compose("train", overrides=["experiment=arrow/plstm", "paths.runs=/scratch"], return_hydra_config=True)
    assert node.hydra.run.dir == f"/scratch/{run_id(plain)}"
    assert node.hydra.sweep.subdir == run_id(plain)


def test_values_that_follow_others(composed):
    config = to_config(composed("experiment=arrow/plstm", "seed=47", "data.size=96"))
    assert (config.data.train_seed, config.model.image_size, config.model.classes) == (47, 96, 2)
    assert run_name(config) == "arrow-plstm-s47"


def test_the_config_of_a_run_is_read_back(composed, tmp_path):
    (tmp_path / ".hydra").mkdir()
    path = tmp_path / ".hydra" / "config.yaml"
    node = composed("experiment=arrow/vit", "seed=44")
    OmegaConf.save(node, path)
    assert load_config(tmp_path) == to_config(node)
    bad_value = "data: {train_seed: 43}\noptim: {epochs: 0}"
    for text, word in (("model: {dims: 3}", "dims"), ("model: [", str(path)), (bad_value, "optim.epochs=0")):
        path.write_text(text)
        with pytest.raises(UserError, match=word) as caught:
            load_config(tmp_path)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match=str(path)):
        load_config(tmp_path)


def valid() -> Config:
    return Config(model=VisionConfig(classes=2), data=ArrowData())


def test_the_defaults_pass():
    check(valid())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        *((key, 0, "at least 1") for key in ("optim.batch_size", "loop.log_every", "loop.eval_every")),
        *((key, 0.0, "positive") for key in ("optim.epochs", "optim.peak_lr", "optim.eps", "optim.clip_norm")),
        ("mesh.fsdp", 0, "at least 1"),
        ("mesh.timeout", 0.0, "positive"),
        ("optim.peak_lr", float("nan"), "float32"),
        *((key, -1, "at least 0") for key in ("optim.warmup_epochs", "optim.weight_decay", "seed")),
        ("data.workers", -1, "from 0 to 1024"),
        ("model.channels", 1, "the images have 3"),
        ("experiment", "a b", "a name such as"),
        ("paths.runs", "", "given, or left out"),
        ("seed", 2**31, r"under 2\^31"),
        ("experiment", "a\n", "printable"),
        ("model.dim", 10**6, "at most 65536"),
        *((key, 1.0, r"in \[0, 1\)") for key in ("optim.b1", "optim.b2", "optim.label_smoothing")),
        *((key, -0.1, r"in \[0, 1\)") for key in ("optim.b1", "optim.b2", "optim.label_smoothing")),
        ("optim.end_factor", 1.1, r"in \[0, 1\]"),
        ("optim.end_factor", -0.1, r"in \[0, 1\]"),
        ("optim.warmup_epochs", 50.0, "under optim.epochs"),
        ("data.name", "imagenet", "arrow_pointing"),
        ("data.placement", "disk", "device, stream"),
        ("optim.name", "sgd", "adamw, lamb"),
        ("data.classes", 3, "2 classes"),
        ("data.size", 96, "follow data.classes and data.size"),
        ("model.classes", 3, "follow data.classes and data.size"),
        ("model.heads", 5, "model.dim=192"),
        ("data.train_images", 127, "optim.batch_size=128"),
        ("augment", AugmentConfig(), "takes its training examples as they are"),
        ("optim.loss", "binary_cross_entropy", "choose one of cross_entropy"),
        ("init_checkpoint", "first", "last, best"),
        ("init_checkpoint", "best", "init_from, which is not set"),
        ("loop.eval_splits", [], "at least one split"),
        ("loop.eval_splits", ["val", "tset"], "'tset'.*test_ext"),
        ("loop.final_splits", ["val", "tset"], "'tset'.*test_ext"),
        ("loop.best_metric", "train", "loop.eval_splits"),
        ("loop.final_splits", ["test", "test_ext"], "loop.best_metric=val"),  # its record tells the best step's, too
    ],
)
def test_bad_values_are_named(key, value, words):
    config = valid()
    *groups, leaf = key.split(".")
    setattr(attrgetter(*groups)(config) if groups else config, leaf, value)
    with pytest.raises(UserError, match=words) as caught:
        check(config)
    assert key in str(caught.value) and "\n" not in str(caught.value)
