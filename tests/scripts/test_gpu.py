"""`make gpu`: its commands, its order with steps that stand in for the real ones, and all of it with small sizes."""

import json
import re
from pathlib import Path

import pytest

from plstm.runs.compose import compose_experiment
from plstm.runs.identity import run_id
from plstm.studies.definitions import load_table
from plstm.studies.sweeps import planned_runs
from scripts import benchmark, gpu
from scripts.gpu import FULL, RESUMES, Step, plan, run
from tests.commands import ROOT, call, call_here, refused

STEPS = [*plan(FULL, Path("x"), True, [])]
ENVIRONMENT = {"commit": "c0ffee", "hardware": {"platform": "gpu", "device_kind": "NVIDIA H100 80GB"}}


def python(code: str, name: str = "step", minutes: float = 0) -> Step:
    return Step(name, minutes, ["-c", code])


def test_the_most_telling_steps_come_first():
    names = [step.name for step in STEPS]
    first = ["device", "test-operators", "test-models", "step-plstm-192-256-parallel", "step-plstm-192-256-fused"]
    assert names[:5] == first and len({*names}) == len(names) == 1 + 2 + 12 + 2 + 12 + 2 + 4
    assert names.index("arrow-vit-s43") < names.index("grid-12-d_mode") < names.index("arrow-plstm-s44")
    assert all(step.minutes < gpu.LONGEST for step in STEPS)


def test_all_commands_are_right_and_trainings_are_those_of_the_table(monkeypatch):
    trained = {run.id for run in planned_runs(load_table(ROOT / "configs/study/arrow.yaml"))}
    for script, *words in (step.command for step in STEPS):
        if script == "scripts/benchmark.py":
            monkeypatch.setattr("sys.argv", [script, *words])
            options = benchmark.parse_arguments()
            if options.subject == "step":
                compose_experiment(options.experiment, *options.overrides)
        elif script == "train.py":
            experiment, *overrides = words
            assert run_id(compose_experiment(experiment.removeprefix("experiment="), *overrides)) in trained


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('12 passed in 3s')", {"rows": [{"output": "12 passed in 3s"}]}),
        ("print('FAILED x\\n1 failed, 2 passed in 3s'); exit(1)", {"error": "1 failed, 2 passed in 3s"}),
        ("raise MemoryError('too large\\n\\na note')", {"error": "MemoryError: too large"}),
        ("print('killed'); exit(3)", {"error": "killed"}),
        (f"print('stopped by signal 2 at step 3, {RESUMES} the run'); exit(130)", None),
    ],
)
def test_a_step_has_results_or_an_error_or_goes_on(tmp_path, code, expected):
    assert run(python(code), tmp_path / "logs/step.log", 1) == expected


def test_a_step_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    ends = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('saved', flush=True)\n"
    assert run(python(ends + "exit(1)"), tmp_path / "log", 0.02) == {"error": "took too long: saved"}
    monkeypatch.setattr(gpu, "GRACE", 0.01)
    assert run(python(ends + "time.sleep(60)"), tmp_path / "log", 0.02) == {"error": "took too long: saved"}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Function of steps and options: runs the script with these steps; returns status, output and the summary."""
    monkeypatch.setattr(gpu, "query_environment", lambda: ENVIRONMENT)

    def start(steps: list[Step], *options: object) -> tuple[int, str, list[dict]]:
        monkeypatch.setattr(gpu, "plan", lambda *_: steps)
        status, output, _ = call_here(gpu.main, "--small", "--out", tmp_path, *options)
        report = json.loads((tmp_path / "small-nvidia-h100-80gb/report.json").read_text())
        assert report["hardware"] == ENVIRONMENT["hardware"] and {row["commit"] for row in report["rows"]} == {"c0ffee"}
        return status, output, [{key: row[key] for key in row if key != "commit"} for row in report["rows"]]

    return start


def test_a_rerun_does_what_is_missing_and_then_tries_again_what_failed(start):
    steps = [python("print(1)", "good"), python("exit('no')", "bad"), python("print(3)", "long", minutes=5)]
    status, output, rows = start(steps, "--minutes", 1)
    assert status == 1 and "long: left for the next time; it needs 5 minutes" in output
    assert rows == [{"step": "good", "output": "1"}, {"step": "bad", "error": "no"}]
    steps[1] = python("print(2)", "bad")
    status, output, rows = start(steps)
    assert status == 0 and [line.split(":")[0] for line in output.splitlines()[:-1]] == ["long", "bad"]
    assert rows == [{"step": name, "output": str(n)} for n, name in enumerate(("good", "bad", "long"), 1)]


def test_a_training_that_was_stopped_goes_on_in_the_next_process(start, tmp_path):
    assert RESUMES in (ROOT / "train.py").read_text()
    marker = tmp_path / "marker"
    code = f"import pathlib\np = pathlib.Path({str(marker)!r})\nif p.exists(): print('finished'); exit()\n"
    status, output, rows = start([python(code + f"p.touch(); print('{RESUMES}'); exit(130)", "arrow")])
    assert status == 0 and output.count("arrow: python") == 2 and rows == [{"step": "arrow", "output": "finished"}]


def test_a_machine_without_a_gpu_is_told_so(monkeypatch):
    monkeypatch.setattr(gpu, "query_environment", lambda: {"hardware": {"platform": "cpu", "device_kind": "cpu"}})
    assert refused(gpu.main).startswith("JAX finds no GPU here")


@pytest.mark.slow
def test_all_steps_with_small_sizes(tmp_path):
    call("scripts/gpu.py", "--small", "--out", tmp_path)
    rows = json.loads((tmp_path / "small-cpu/report.json").read_text())["rows"]
    assert {row["step"].split("-")[0] for row in rows} == {"device", "test", "step", "arrow", "grid", "tokens"}
    assert not [row for row in rows if "error" in row]
    assert {row.get("passes") for row in rows if row["step"].startswith("grid")} == {"forward", "both"}
    trained = [row for row in rows if row["step"].startswith("arrow")]
    assert len(trained) == 2 and all(
        re.match(rf"{row['step']} \w{{4}}: finished, see", row["output"]) for row in trained
    )
