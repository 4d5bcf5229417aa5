"""Bad input to train.py and eval.py: one clear line that names the key or path, status 2, and nothing written."""

import errno
import importlib
import os
import re
import sys
import weakref

import jax
import pytest
from hydra.core.global_hydra import GlobalHydra

from plstm.config import Config, EvalConfig
from plstm.errors import DownloadError, UserError
from plstm.runs import folders
from plstm.runs.cli import check_command, one_line_errors, run_entry
from plstm.runs.compose import compose_experiment
from plstm.runs.folders import lock_folder
from plstm.runs.identity import run_id
from plstm.runs.overrides import known_keys
from tests.commands import ROOT, files, paths

TINY = ["debug=smoke", "experiment=arrow/plstm", "model.dim=16", "model.heads=2", "optim.epochs=1"]
TUNE = ["experiment=imagenet/plstm", "variant=finetune"]


@pytest.fixture
def entry(tmp_path, monkeypatch, capsys):
    """Calls train.py or eval.py as the command line does; returns the exit status and what stood on stderr."""

    def call(script: str, *arguments: str) -> tuple[int, str]:
        module = importlib.import_module(script)
        for name in ("core.utils", "_internal.hydra", "_internal.core_plugins.basic_launcher"):
            hydra_module = importlib.import_module(f"hydra.{name}")
            monkeypatch.setattr(hydra_module, "configure_log", lambda *_: None)  # it closes what pytest captures
        monkeypatch.setattr(folders, "OTHER_RUNS", ())  # this clone's demo may have been run
        monkeypatch.setattr(sys, "argv", [str(ROOT / f"{script}.py"), *arguments])
        GlobalHydra.instance().clear()
        monkeypatch.chdir(tmp_path)
        try:
            run_entry(module.main, Config if script == "train" else EvalConfig)
        except SystemExit as stop:
            return stop.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("", "experiment: choose one, such as experiment=arrow/plstm"),
        ("seed=44 optim.peak_lr=1e-3", "experiment: choose one, such as experiment=arrow/plstm"),
        ("-m seed=43,44", "experiment: choose one, such as experiment=arrow/plstm"),
        ("optim.peak_lrr=1e-3", "optim.peak_lrr: there is no such key; did you mean optim.peak_lr?"),
        ("optim.lr=1e-3", "optim.lr: there is no such key; did you mean optim.peak_lr?"),
        ("lr=1e-3", "lr: there is no such key; did you mean optim.peak_lr?"),
        ("dataset=arrow", "dataset: there is no such key; did you mean data?"),
        ("m.del.method=auto", "m.del.method: there is no such key; did you mean model.method?"),
        ("+colour=3", "colour: there is no such key"),
        ("model/code=gdn", "model/code: choose by model=code/<name>"),
        ("experiment=", "experiment=: there is no such choice"),
        ("experiment=folder", "experiment=folder: there is no such choice (there are folder/plstm)"),
        ("experiment=arrow/plstmm", "experiment=arrow/plstmm: there is no such choice; did you mean arrow/plstm?"),
        (
            "experiment=arrow/vit variant=[balanced,d_mod]",
            "variant=d_mod: there is no such choice; did you mean d_mode?",
        ),
        (
            "variant=d_mode variant=no_posemb",
            "variant=no_posemb: variant is chosen twice; leave one out; both: variant",
        ),
        ("experiment=arrow/vit experiment=arrow/plstm", "experiment=arrow/plstm: experiment is chosen twice; leave"),
        (
            "variant=d_mode,p_mode",
            "variant=d_mode,p_mode: several values take -m, first; both at once: variant=[",
        ),
        ("augment=null", "augment=null: there is no such choice"),
        ("-m seed=43,44 --cfg job", "-m and --cfg do not go together; give one of them"),
        ("augment.mixup=1 --cfg job", "augment.mixup=1: there is no augmentation to change; choose one"),
        ("experiment=graphs/plstm,graphs/gin", "experiment=graphs/plstm,graphs/gin: several values take -m, first"),
        ("-m experiment=tokens/xlstm,graphs/gin", "experiment=graphs/gin: sweeps over other keys than the first"),
        ("seed=43 --resolve", "--resolve: goes with --cfg job alone"),
        ("model=${oc.env:HOME}", "model=${oc.env:HOME}: there is no such choice"),
        ("arrow/plstm", "arrow/plstm: write key=value; did you mean experiment=arrow/plstm?"),
        ("study=arrow", "study=arrow: a study is many runs; python scripts/run_table.py"),
        ("--experiment=arrow/vit", "unrecognized arguments: --experiment=arrow/vit; write flags"),
        ("seed=43 -m optim.epochs=1,2", "unrecognized arguments: optim.epochs=1,2; write flags such as -m first"),
        ("seed=43,44", "seed=43,44: several values take -m, first"),
        ("-m experiment=arrow/vit seed=range(5,5)", "seed=range(5,5): has no value"),
        ("-m experiment=arrow/vit seed=range(0,5,0)", "seed=range(0,5,0): "),
        ("-m seed=interval(1,2)", "seed=interval(1,2): write the values, separated by commas"),
        *(
            (word, f"{word.split()[-1]}: of Hydra's own keys, only hydra/<group>, ")
            for word in ("-m hydra.sweeper=null", "hydra.run.dir=here", "+hydra.callbacks.x.y=3", "-m hydra.launcher=3")
        ),
        (
            "-m hydra.launcher.x=3",
            "hydra.launcher.x: no key of this run's hydra/launcher; choose another hydra/launcher=...",
        ),
        ("hydra/launcher=null", "hydra/launcher=null: cannot be composed"),
        ("experiment=arrow/vit hydra/launcher=basic", "hydra/launcher=basic: takes -m, first; without it the run"),
        ("experiment=arrow/vit hydra.sweeper.max_batch_size=3", "hydra.sweeper.max_batch_size=3: takes -m, first"),
        ("seed=[1", "seed=[1: cannot be read (no viable alternative at input '[1' See"),
        ("~seed", "~seed: keys cannot be removed"),
        ("seed=abc", "seed: Value 'abc' of type 'str' could not be converted to Integer"),
        ("seed=null", "seed: must have a value, and not null"),
        ("loop=3", "loop: is a group of keys"),
        ("augment.mixup=1", "augment.mixup=1: there is no augmentation to change; choose one"),
        ("data.root='${no.such}'", "data.root: Interpolation key 'no.such' not found"),
        ("model=graph", "model: family graph takes graphs, and data=... gives images; choose another model=..."),
        ("data=tudataset", "model: family vision takes images, and data=... gives graphs"),
        (
            "model=graph model.modes=[P]",
            "model.modes: no key of this run's model; did you mean model.method? or choose another model=...",
        ),
        (
            "experiment=tokens/plstm model.dims=9",
            "model.dims: no key of this run's model; did you mean model.dim? or choose another",
        ),
        (
            "experiment=arrow_small/plstm model=efficientnet_small",
            "experiment/arrow_small/plstm sets model.patch_size: no key of this run's model; did you mean",
        ),
        (
            "experiment=tokens/plstm variant=balanced",
            "variant/balanced sets data.distribution: no key of this run's data",
        ),
        (f"experiment=code/distill data.teacher={'0' * 12}", f"data.teacher={'0' * 12}: only for distillation"),
        ("data.size=-48", "data.size=-48: must be at least 1"),
        ("loop.eval_splits=[val,val_ext,val]", "loop.eval_splits: val is named twice"),
        (
            "experiment=graphs/gin data.name=PTC-FM",
            "experiment=graphs/gin data.name=PTC-FM data.fold=0: data.name=PTC-FM",
        ),
    ],
)
def test_a_command_line_is_refused_in_one_line(command, line):
    with pytest.raises(UserError) as caught:
        check_command(command.split(), Config)
    assert str(caught.value).startswith(line)


@pytest.mark.slow
def test_several_experiments_in_one_sweep(entry, tmp_path, monkeypatch):
    """They sweep over their folds as each does alone; a key of their data may be set, which the config before any
    experiment does not have."""
    started = []
    monkeypatch.setattr("train.start", lambda config, *_: started.append((config.experiment, config.data.fold)))
    assert entry("train", "-m", "experiment=graphs/gin,graphs/gcn", "seed=46", *paths(tmp_path))[0] == 0
    assert started == [(f"graphs/{name}", fold) for name in ("gin", "gcn") for fold in range(10)]
    started.clear()
    words = ["-m", "experiment=graphs/gin,graphs/gcn", "data.fold=3", "model.depth=2"]
    assert entry("train", *words, *paths(tmp_path))[0] == 0
    assert started == [("graphs/gin", 3), ("graphs/gcn", 3)]
    started.clear()
    assert entry("train", "-m", "experiment=graphs/gin", "data.fold=0,4", *paths(tmp_path))[0] == 0
    assert started == [("graphs/gin", 0), ("graphs/gin", 4)]
    monkeypatch.setattr("train.start", lambda config, *_: started.append(config.augment.mixup))
    words = ["-m", "experiment=imagenet/plstm,imagenet/vit", "augment.mixup=0.5"]
    assert entry("train", *words, *paths(tmp_path))[0] == 0 and started[2:] == [0.5, 0.5]
    ended = entry("train", "-m", "experiment=arrow/vit", "data.fold=3", *paths(tmp_path))
    assert_refused(ended, ["data.fold: no key of this run's data"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["seed=${oc.env:\x1b[31mX}"], ["seed: ", r"\x1b"]),
        ([*TINY, "data.root=/nowhere/at/all"], ["data.root=/nowhere/at/all", "mkdir"]),
        ([*TINY, "data.generate=false", "data.train_images=255", "data.root=."], ["no data there; data.generate="]),
        ([*TUNE], ["init_from: name the run or the .safetensors file to fine-tune"]),
        (["experiment=folder/plstm"], ["data.path: name the folder of pictures, data.path=..."]),
        (["data=folder", "data.path=/nowhere"], ["/nowhere: no such folder of images"]),
        ([*TUNE, "init_from=no-such"], ["init_from=no-such", "no such run"]),
        ([*TUNE, f"init_from={'a' * 300}"], ["init_from=aaa", "no such run"]),
        (  # before the data are asked for
            ["experiment=arrow_48/plstm", "init_from=aaaaaaaaaaaa", "data.generate=false", "data.root=/absent"],
            ["init_from=aaaaaaaaaaaa", "no such run", "paths.results=outputs/again paths.runs=outputs/again/runs"],
        ),
        ([*TINY, "data.size=32"], ["data.size=32", "45"]),
        ([*TINY, "optim.batch_size=512"], ["optim.batch_size=512", "data.train_images=256"]),
    ],
)
def test_train_names_the_key_and_leaves_nothing(entry, tmp_path, arguments, parts):
    arguments = ["data.root=/nowhere/at/all", *arguments]  # nothing must get as far as training
    assert_refused(entry("train", *arguments, *paths(tmp_path)), parts)
    assert not files(tmp_path)


def assert_refused(ended: tuple[int, str], parts: list[str]) -> None:
    status, message = ended
    assert status == 2 and message.startswith("error: ") and message.endswith("\n"), message
    assert message[:-1].isprintable(), message
    assert all(part in message for part in parts), message


def test_a_sweep_s_configs_are_checked_before_its_first_job(entry, tmp_path, monkeypatch):
    monkeypatch.setattr("train.start", lambda *_: pytest.fail("it has started"))
    sweep = ["-m", *TINY, "seed=43,44", "optim.clip_norm=1,0"]
    words = ["seed=43 optim.clip_norm=0 ", ": optim.clip_norm=0.0: must be positive; no job was started"]
    assert_refused(entry("train", *sweep, *paths(tmp_path)), words)


def test_a_job_that_fails_does_not_keep_the_others_of_a_sweep_from_starting(entry, tmp_path, monkeypatch):
    class State:
        """What a run has on its device."""

    started, states = [], []

    def start(config, *_):
        assert not any(state() for state in states), "the next job has less memory"
        state = State()
        states.append(weakref.ref(state))
        started.append(config.seed)
        if config.seed > 43:
            raise UserError(f"seed {min(config.seed, 45)} is not finite")

    monkeypatch.setattr("train.start", start)
    status, said = entry("train", "-m", *TINY, "seed=43,44,45,46", *paths(tmp_path))
    assert (status, started) == (2, [43, 44, 45, 46])
    first, second, last = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "seed=44" in first and first.endswith(": seed 44 is not finite") and "seed 45 is not" in second
    assert last == "error: jobs of this sweep failed, each reason with a line above"


def test_a_sweep_whose_data_cannot_be_fetched_ends_at_once(entry, tmp_path, monkeypatch):
    def start(*_):
        raise DownloadError("no network")

    monkeypatch.setattr("train.start", start)
    assert_refused(entry("train", "-m", *TINY, "seed=43,44,45", *paths(tmp_path)), ["error: no network"])


def test_evaluations_are_swept_as_well(entry, tmp_path):
    status, said = entry("eval", "-m", "run=abc,abd", *paths(tmp_path))
    assert status == 2 and "run=abc" in said and "run=abd" in said and "jobs of this sweep failed" in said
    assert_refused(entry("eval", "-m", "run=abc,abd", "checkpoint=3,'a\tb'", *paths(tmp_path)), ["no job was started"])


def test_a_backend_that_is_not_there_is_named(entry, tmp_path, monkeypatch):
    find = jax.devices
    monkeypatch.setattr(jax, "devices", lambda: find("nowhere"))
    ended = entry("train", *TINY, *paths(tmp_path))
    assert_refused(ended, [f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}: JAX finds no such devices (Unknown backend"])


def test_a_full_disk_of_which_no_file_is_named(capsys):
    with pytest.raises(SystemExit, match="2"), one_line_errors():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert capsys.readouterr().err == "error: a file: No space left on device\n"


def test_folders_that_cannot_be_written_and_a_missing_login_are_named_first(entry, tmp_path, monkeypatch):
    monkeypatch.setattr("train.train", lambda *_: pytest.fail("it has started"))
    (tmp_path / "file").write_text("")
    runs, results = paths(tmp_path)
    assert_refused(entry("train", *TINY, f"paths.runs={tmp_path}/file", results), [f"{tmp_path}/file", "paths.runs"])
    ended = entry("train", *TINY, runs, f"paths.results={tmp_path}/file/results")
    assert_refused(ended, [f"paths.results={tmp_path}/file/results: {tmp_path}/file cannot be written"])
    monkeypatch.setenv("WANDB_MODE", "loud")
    assert_refused(entry("train", *TINY, "logger.mode=auto", *paths(tmp_path)), ["WANDB_MODE", "loud"])
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for mode, variable in (("online", "offline"), ("auto", "online")):
        monkeypatch.setenv("WANDB_MODE", variable)
        ended = entry("train", *TINY, *paths(tmp_path), f"logger.mode={mode}")
        assert_refused(ended, ["logger.mode=online: not logged in", "`wandb login`", "logger.mode=offline"])
    assert files(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run=0123abcd"], ["run=0123abcd", "no such run", "train one first"]),
        ([], ["run: give a value"]),
        (["run=x", "checkpoint=newest"], ["checkpoint=newest", "last, best"]),
        (["run=abc", "data.split=tests"], ["data.split=tests", "test_ext"]),
        (["0123abcd"], ["0123abcd: write key=value; did you mean run=0123abcd?"]),
        (["a.safetensors"], ["a.safetensors: write key=value; did you mean weights=a.safetensors?"]),
        (["runn=x"], ["runn", "did you mean run?"]),
        (["weights=nothere"], ["weights=nothere: no such file"]),
        (["run=train.py"], ["run=train.py: a file of weights; write weights=train.py"]),
        (["weights=train.py", "checkpoint=best"], ["checkpoint=best: weights=... have one step only"]),
        (["run=abc", "data.max_corrupt=0.1"], ["data.max_corrupt: the data of this run have no such key"]),
    ],
)
def test_eval_names_the_key(entry, tmp_path, arguments, parts):
    if "run=abc" in arguments:
        config = tmp_path / "runs" / "abc" / ".hydra" / "config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text("data: {train_seed: 43}\nmodel: {classes: 2}\n")
    (tmp_path / "train.py").write_text("")
    assert_refused(entry("eval", *arguments, *paths(tmp_path)), parts)


def test_a_second_start_of_a_run_is_refused(entry, tmp_path):
    entry("train", *TINY, *paths(tmp_path), "data.root=/nowhere/at/all")
    assert not any((tmp_path / "runs").iterdir())  # refused, it leaves nothing
    folder = tmp_path / "runs" / run_id(compose_experiment("arrow/plstm", *(TINY[:1] + TINY[2:])))
    with lock_folder(folder):
        told = f"error: {folder}: another process trains or evaluates this run; wait for it or stop it\n"
        assert entry("train", *TINY, *paths(tmp_path)) == (2, told)


@pytest.mark.parametrize("script", ["train", "eval"])
def test_help_has_examples_whose_keys_exist(entry, script, monkeypatch):
    seen = []
    monkeypatch.setattr("builtins.print", lambda *words, **options: seen.extend(map(str, words)))
    assert entry(script, "--help")[0] == 0
    (text,) = seen
    commands = re.findall(rf"python {script}\.py (.*?)(?:   |$)", text, re.MULTILINE)
    words = [word.partition("=")[0] for command in commands for word in command.split() if word != "-m"]
    known = {*known_keys(Config if script == "train" else EvalConfig), "experiment", "debug"}
    assert len(commands) > 2 and set(words) <= known
    assert script == "eval" or "\ndata: arrow, " in text and "arrow/vit" in text and "study:" not in text
