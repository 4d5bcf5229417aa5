"""Run ids follow everything that can change a run's numbers, and nothing else; bad values are named."""

import copy
import functools
import re
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from data.augment.recipes import AugmentConfig
from plstm.config import Config
from plstm.errors import UserError
from plstm.runs import identity
from plstm.runs.cli import check_command
from plstm.runs.compose import check, compose_config, to_config
from plstm.runs.folders import load_config, write_config
from plstm.runs.identity import plain_config, run_id
from plstm.runs.overrides import as_override
from plstm.tasks import TASKS, programs
from plstm.tasks.arrow import ArrowData
from tests.commands import ROOT

# Where a run lives, what reads its images and where it is shown: not what its numbers are.
OUTSIDE = r"(logger|mesh|paths)\.|data\.(root|generate|download|workers|max_corrupt)$|model\.(remat|method)$"
OUTSIDE += r"|experiment$|variant$|loop\.(log_every|save_every)$"


@pytest.fixture(scope="module")
def config_of(composed):
    """Function of command-line arguments: their config, which is shared: copy it before you change it."""
    return functools.cache(lambda *arguments: to_config(composed(*arguments)))


@pytest.fixture(scope="module")
def arrow(config_of):
    return config_of("experiment=arrow/plstm")


def leaves(node, prefix=""):
    """Dotted key -> value."""
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in leaves(child, f"{prefix}{name}.").items()}


def with_value(config, key, value):
    changed = copy.deepcopy(config)
    *groups, leaf = key.split(".")
    setattr(attrgetter(".".join(groups))(changed) if groups else changed, leaf, value)
    return changed


def another(key, value):
    if key == "augment":
        return AugmentConfig()
    if isinstance(value, bool):
        return not value
    return {int: 7, float: 0.123, str: "other", list: ["other"]}.get(type(value), 3)


@pytest.mark.parametrize("experiment", ["arrow/plstm", "imagenet/vit", "graphs/plstm"])
def test_every_key_is_in_the_id_or_known_to_be_outside(config_of, experiment):
    config = config_of(f"experiment={experiment}")
    own_id = run_id(config)
    assert re.fullmatch("[0-9a-f]{12}", own_id)
    values = leaves(plain_config(config))
    assert len(values) > 40
    for key, value in values.items():
        if key in ("task", "model.family"):
            continue  # another would need other keys
        changed = with_value(config, key, another(key, value))
        assert changed != config, key
        assert (run_id(changed) == own_id) == bool(re.match(OUTSIDE, key)), key


def test_the_same_values_in_other_words_have_one_id(arrow, config_of):
    same = ["optim.epochs=50", "optim.epochs=50.0", "optim.peak_lr=0.0001", "optim.peak_lr=1e-4", "data.train_seed=43"]
    for word in [*same, "seed=43", "model.modes=[P,D]"]:
        assert run_id(config_of("experiment=arrow/plstm", word)) == run_id(arrow), word


@dataclass
class WiderData(ArrowData):
    shear: float = 0.0


@dataclass
class WiderConfig(Config):
    ema: float | None = None
    average: WiderData = field(default_factory=lambda: WiderData(train_seed=1))


@pytest.fixture
def wider_schema(monkeypatch):
    """The schema with new keys."""
    identity._defaults.cache_clear()
    monkeypatch.setattr(TASKS["arrow"], "data_schema", WiderData)
    monkeypatch.setattr(identity, "Config", WiderConfig)
    yield
    identity._defaults.cache_clear()


def test_a_new_key_changes_no_id_until_its_value_does(arrow, wider_schema):
    wider = WiderConfig(**vars(replace(arrow, data=WiderData(**asdict(arrow.data)))))
    assert run_id(wider) == run_id(arrow)
    for key, value in (("data.shear", 0.1), ("ema", 0.99), ("average.size", 96)):
        assert run_id(with_value(wider, key, value)) != run_id(arrow), key


@pytest.mark.parametrize(
    ("experiment", "same", "other"),
    [
        ("graphs/gin", ["data.fold=3", "seed=44", "loop.log_every=3"], ["model.dim=8", "data.name=NCI1"]),
        ("arrow/vit", ["seed=44", "data.train_seed=7"], ["model.dim=96", "optim.peak_lr=1e-3", "mesh.fsdp=2"]),
    ],
)
def test_runs_that_compile_the_same_share_it(config_of, experiment, same, other):
    def shared(*arguments: str) -> Config:
        config = config_of(f"experiment={experiment}", *arguments)
        return TASKS[config.task](config).shared_config()

    assert shared(*same) == shared()
    for word in other:
        assert shared(word) != shared(), word


def test_plans_that_differ_share_no_programs(arrow, monkeypatch):
    monkeypatch.setattr(programs.Programs, "of", lambda task, plan: plan)
    monkeypatch.setattr(programs, "_latest", {})
    task = TASKS["arrow"](arrow)
    plan = task.plan()
    for name in ("steps", "steps_per_epoch", "warmup_steps"):
        for each in (plan, plan._replace(**{name: 7})):
            assert programs.compile_programs(task, each) == each, name


def test_values_that_follow_others(config_of):
    config = config_of("experiment=arrow/plstm", "seed=47", "data.size=384")
    assert (config.data.train_seed, config.model.image_size, config.model.classes) == (47, 384, 2)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["experiment=arrow/plstm", "seed=47"], "arrow-plstm-s47"),
        (["experiment=graphs/gin", "data.fold=3"], "graphs-gin-MUTAG-f3-s43"),
        (["experiment=arrow/plstm", "variant=d_mode"], "arrow-plstm-d_mode-s43"),
        (["experiment=arrow_48/plstm", "variant=[balanced,d_mode]"], "arrow_48-plstm-balanced-d_mode-s43"),
    ],
)
def test_a_run_is_named_after_experiment_and_variant_but_its_id_is_not(config_of, overrides, name):
    config = config_of(*overrides)
    assert identity.run_name(identity.named(config, overrides)) == name
    assert run_id(identity.named(config, ["experiment=x", "variant=y"])) == run_id(config)


@pytest.mark.parametrize("word", ["experiment=tokens/plstm@2", "experiment=" + 70 * "a", "variant=[a,b@2]"])
def test_names_that_a_run_could_not_read_back_are_refused(config_of, word):
    with pytest.raises(UserError, match=f"^{word.split('=')[0]}="):
        identity.named(config_of("experiment=tokens/plstm"), [word])


@pytest.mark.parametrize("mark", ["", "++"])
def test_records_name_the_start_by_its_id_and_no_place(mark):
    overrides = ["experiment=x", f"{mark}init_from=/scratch/run", f"{mark}paths.runs=/scratch", "data.root=/x"]
    overrides += ["data.root_seed=3"]
    expected = ["experiment=x", 'init_from="12345e678901"', "data.root_seed=3"]
    assert identity.portable_overrides(overrides, "12345e678901") == expected
    assert identity.portable_overrides(overrides[:1]) == overrides[:1]


ODD = ["plain", "a b", "pfad ü (1)", "a,b", "a=b", "a'b", 'a"b', "a\\b", "a\\", "a\\\\", '\\"', "[x]", "{x}", "a:b"]
ODD += ["$b", "a#b", "a%b", "a@b", "a;b", "a&b", "1e5", "null", "True", "nan", "-x", "a*?", " a ", "choice(1)", "~"]


@pytest.mark.parametrize("name", ODD)
def test_any_text_passes_through_hydra_as_it_is(composed, name):
    folder = f"/{name}/{name}"
    words = [as_override("paths.runs", folder), as_override("data.root", name), as_override("loop.eval_splits", [name])]
    check_command([*words[:2], "experiment=arrow/vit"], Config)
    node = composed("experiment=arrow/vit", *words)
    assert (node.paths.runs, node.data.root, node.loop.eval_splits) == (folder, name, [name])


def test_an_id_that_looks_like_a_number_is_read_back_as_text(config_of, tmp_path):
    config = config_of("experiment=imagenet/plstm", "variant=finetune", "init_from='45193e791588'")
    write_config(tmp_path, config, [])
    assert load_config(tmp_path).init_from == "45193e791588"


def test_the_config_of_a_run_is_written_once_and_read_back(config_of, tmp_path):
    path, config = tmp_path / ".hydra" / "config.yaml", config_of("experiment=arrow/vit", "seed=44")
    write_config(tmp_path, config, ["experiment=arrow/vit", "seed=44"])
    write_config(tmp_path, config_of("seed=45"), [])
    assert load_config(tmp_path) == config
    assert OmegaConf.load(path.with_name("overrides.yaml")) == ["experiment=arrow/vit", "seed=44"]
    bad_value = "data: {train_seed: 43}\noptim: {epochs: 0}"
    for text, word in (("model: {dims: 3}", "dims"), ("model: [", str(path)), (bad_value, "optim.epochs=0")):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            load_config(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=str(path)):
        load_config(tmp_path)


# What joins several keys; the limits of single ones: tests/test_limits.py.
BAD_VALUES = {
    "arrow/plstm": [
        ("model.channels", 1, "the images have 3"),
        ("experiment", "a b", "a name such as"),
        ("paths.results", "~/results", "without ~"),
        ("optim.warmup_epochs", 50.0, "under optim.epochs"),
        ("data.classes", 3, "2 classes"),
        *((key, 3, "follow data.classes and data.size") for key in ("data.size", "model.classes")),
        ("data.train_images", 127, "optim.batch_size=128"),
        ("augment", AugmentConfig(), "takes its training examples as they are"),
        ("optim.loss", "binary_cross_entropy", "choose one of cross_entropy"),
        ("init_checkpoint", "best", "init_from, which is not set"),
        ("init_new", ["head"], "beside those of init_from, which is not set"),
        ("loop.save_every", 3000, "must be a multiple of loop.eval_every=2000, or null"),
        ("loop.eval_splits", [], "at least one split"),
        *((f"loop.{key}", ["val", "tset"], "'tset'.*test_ext") for key in ("eval_splits", "final_splits")),
        ("loop.best_split", "train", "loop.eval_splits"),
        ("loop.final_splits", ["test", "test_ext"], "loop.best_split=val"),  # its record has the best step's, too
    ],
    "imagenet_small/vit": [
        ("data.classes", 10, "1,000 classes"),
        ("data.held_out", 10**6, "a tenth of data.train_images"),
        ("data.held_out", 0, "no split val"),
        ("optim.batch_size", 65_536, "more than the .* training images"),
        ("optim.loss", "hinge", "cross_entropy, binary_cross_entropy"),
        *(("loop.eval_splits", [split], f"'{split}'; choose from val, test") for split in ("val_ext", "train")),
        ("augment.mixup", -1.0, "at least 0"),
    ],
    "imagenet/plstm": [
        ("augment", None, "augment=deit3"),
        ("optim.label_smoothing", 0.1, "takes classes with any label as present"),
        ("augment.repeats", 4096, "more than optim.batch_size=2048"),
    ],
    "languages/rnn": [
        ("data.name", "parity", "choose one of even_pairs"),
        ("data.longest", 40, "must be above data.max_length=40"),
        ("data.ext_lengths", [64, 64], "has a length twice"),
        ("data.ext_lengths", [501], "data.ext_lengths"),
        ("data.eval_rows", 100, "must be a multiple of "),
        ("optim.label_smoothing", 0.1, "optim.label_smoothing"),
    ],
    "tokens/plstm": [
        ("data.name", "a4", "choose one of parity, z5"),
        ("data.length", 0, "must be from 1, the shortest row of parity, to 2048"),
    ],
    "series/forecast": [
        (
            "data.points",
            100,
            "must be a multiple of model.patch=16, at least two of them and at most 640",
        ),
        ("data.points", 656, "must be a multiple of model.patch=16"),
        ("data.bank", 0, "data.bank=0"),
        ("data.eval_seed", 0, "must differ from data.bank_seed"),
        ("optim.loss", "cross_entropy", "choose one of pinball"),
    ],
    "graphs/gin": [
        ("data.fold", 10, "must be from 0 to data.folds - 1, 9"),
        ("mesh.fsdp", 2, "mesh.fsdp=2"),
        ("optim.batch_size", 10**9, "must be at most 65,536"),
        ("optim.label_smoothing", 0.1, "optim.label_smoothing=0.1"),
        ("init_from", "0123456789ab", "init_from=0123456789ab: graph models start anew"),
        *(("data.name", name, "data.name") for name in ("../x", "/etc/x", "a/b", "", "x?y", "a b")),  # names a folder
    ],
}


@pytest.mark.parametrize(
    ("experiment", "key", "value", "words"), [(name, *row) for name, rows in BAD_VALUES.items() for row in rows]
)
def test_bad_values_are_named(config_of, experiment, key, value, words):
    valid = config_of(f"experiment={experiment}")
    check(valid)
    with pytest.raises(UserError, match=words) as caught:
        check(with_value(valid, key, value))
    assert key in str(caught.value)


def test_relative_folders_lie_in_the_clone_wherever_a_command_is_typed(composed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["paths.runs=outputs/runs", f"paths.results={tmp_path}"]
    paths = to_config(composed(*words)).paths
    assert (Path(paths.runs), Path(paths.results)) == (ROOT / "outputs/runs", tmp_path)
    assert compose_config("train", words, with_hydra=True).hydra.sweep.dir == paths.runs
    monkeypatch.chdir(ROOT)
    assert to_config(composed(*words)).paths.runs == "outputs/runs"
