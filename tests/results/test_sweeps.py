import os
import re
import signal
import subprocess
import sys
import time

import pytest

from plstm.errors import UserError
from plstm.results import execution, sweeps
from plstm.results.definitions import load_table, load_tables
from plstm.results.sweeps import planned_runs
from plstm.runs.cost import experiment_cost

from .conftest import HARDWARE, ROOT, example_record, run_table

TABLES = ROOT / "configs/tables"


def test_every_table_loads_and_names_a_figure():
    tables = load_tables(TABLES)
    assert {"arrow", "arrow-demo", "arrow-reduced"} <= {table.name for table in tables}
    assert all(table.figure for table in tables if table.name.startswith("arrow"))


def test_arrow_has_the_figures_of_table_3():
    paper = {row.experiment: row.paper for row in load_table(TABLES / "arrow.yaml").rows}
    assert paper == {
        "arrow/plstm": {"peak_lr": 1e-4, "test": [0.972, 0.003], "test_ext": [0.778, 0.031]},
        "arrow/plstm_no_posemb": {"peak_lr": 1e-4, "test": [0.975, 0.003], "test_ext": [0.769, 0.018]},
        "arrow/plstm_p_mode": {"peak_lr": 3e-4, "test": [0.978, 0.005], "test_ext": [0.746, 0.027]},
        "arrow/plstm_d_mode": {"peak_lr": 1e-4, "test": [0.957, 0.002], "test_ext": [0.828, 0.028]},
        "arrow/plstm_stm_bias": {"peak_lr": 1e-4, "test": [0.975, 0.003], "test_ext": [0.784, 0.020]},
        "arrow/vit": {"peak_lr": 3e-4, "test": [0.915, 0.019], "test_ext": [0.707, 0.014]},
        "arrow/plstm_printed": None,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("chance: 0.5", "chanse: 0.5"), "chanse"),
        (("chance: 0.5", "chance: half"), "chance"),
        (("title: Arrow-pointing extrapolation\n", ""), "title"),
        (("    experiment: arrow/vit", "    experimnt: arrow/vit"), "experimnt"),
        (("    experiment: arrow/vit", "    experiment: arrow/plstm"), "same experiment"),
        (("over: optim.peak_lr}", "over: optim.lr}"), "select.over"),
        (("over: optim.peak_lr}", "over: optim.peak_lr, best: max}"), "best"),
        (("test: [0.972, 0.003]", "test: 0.972"), "rows[0].paper.test"),
        (("test: [0.972, 0.003]", "tset: [0.972, 0.003]"), "rows[0].paper.tset"),
        (("name: arrow\n", "name: bow\n"), "name"),
        (("columns:", "columns: ["), "not a YAML file"),
    ],
)
def test_a_wrong_definition_names_file_and_key(tmp_path, change, words):
    text = (TABLES / "arrow.yaml").read_text()
    assert text.count(change[0]) >= 1
    path = tmp_path / "arrow.yaml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(UserError) as error:
        load_table(path)
    assert str(path) in str(error.value) and words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("init_from: imagenet/plstm_t\n", "init_from: imagenet/vit_t\n"), "rows[1].init_from"),
        (("test: 75.2}", "test: [75.2, 0.1]}"), "rows[1].paper.test must be a percentage"),
        (("flops: 1.4G", "flop: 1.4G"), "rows[1].paper.flop"),
        (("accuracy: {test: 77.1}", "accuracy: {val: 77.1}"), "references[0]"),
        (("costs: true", "costs: false"), "rows[1].paper.parameters"),
    ],
)
def test_a_wrong_table_of_percentages_names_file_and_key(tmp_path, change, words):
    text = (TABLES / "imagenet.yaml").read_text()
    path = tmp_path / "imagenet.yaml"
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(UserError) as error:
        load_table(path)
    assert str(path) in str(error.value) and words in str(error.value) and "\n" not in str(error.value)


def test_order_fills_every_row_at_the_papers_best_value_first():
    table = load_table(TABLES / "arrow.yaml")
    runs = planned_runs(table)
    assert len(runs) == len({run.key for run in runs}) == 7 * 15
    best = {row.experiment: (row.paper or {"peak_lr": 1e-4})["peak_lr"] for row in table.rows}
    for seed, start in zip(range(43, 48), range(0, 35, 7), strict=True):
        assert {run.key for run in runs[start : start + 7]} == {(name, seed, lr) for name, lr in best.items()}
    assert [run.values["seed"] for run in runs[35:49]] == [43] * 14
    assert runs[0].overrides == ["experiment=arrow/plstm", "seed=43", "optim.peak_lr=0.0001"]


def test_cost_comes_from_the_same_experiment_table_and_hardware():
    table = load_table(TABLES / "arrow.yaml")
    run = planned_runs(table)[0]
    records = [
        example_record(seed=44, wall_seconds=100.0),
        example_record(seed=45, wall_seconds=300.0),
        example_record(seed=46, wall_seconds=9e9, hardware={**HARDWARE, "device_kind": "A100"}),
        example_record(experiment="arrow/vit", row="ViT", wall_seconds=9e9),
        example_record(table="arrow-reduced", wall_seconds=9e9),
    ]
    assert sweeps.expected_seconds(run, records, table, HARDWARE) == 200
    assert sweeps.expected_seconds(run, records[2:], table, HARDWARE) is None


def test_dry_run_lists_every_run(add, tmp_path):
    add(wall_seconds=7200.0)
    folder = tmp_path / "runs-open/abc"
    for name in (".hydra", "checkpoints/2000"):
        (folder / name).mkdir(parents=True)
    (folder / ".hydra/config.yaml").write_text(
        "experiment: arrow/vit\nseed: 43\noptim: {peak_lr: 0.0003}\nreport: {table: arrow}\n"
    )
    done = run_table("arrow", "--dry-run", "--results", tmp_path, "--runs", tmp_path / "runs-open", "loop.log_every=7")
    assert done.returncode == 0, done.stderr
    *lines, total = done.stdout.splitlines()
    tail = f"loop.log_every=7 paths.results={tmp_path} paths.runs={tmp_path}/runs-open"
    commands = [line.partition("python train.py ")[2] for line in lines]
    assert len(lines) == len(set(commands)) == 105 and all(command.endswith(tail) for command in commands)
    assert re.fullmatch(
        rf"finished +2\.00 h +python train\.py experiment=arrow/plstm seed=43 \S+=0\.0001 {tail}", lines[0]
    )
    partial = [line for line in lines if line.startswith("partial")]
    assert len(partial) == 1 and "experiment=arrow/vit seed=43 optim.peak_lr=0.0003" in partial[0]
    assert total == "105 runs: 1 finished, 104 to run, 104 of unknown cost (no finished run to measure from)"


def test_dry_run_measures_cost_on_this_machine(add, tmp_path):
    add(wall_seconds=7200.0, hardware=execution.query_hardware(ROOT))
    done = run_table("arrow", "--dry-run", "--results", tmp_path)
    assert (
        "104 to run, about 28.00 h for 14 of them on this hardware, 90 of unknown cost" in done.stdout.splitlines()[-1]
    )


@pytest.mark.parametrize(
    "options",
    [("arrow", "--columns", "val"), ("graphs", "--columns", "MUTAG,PTC"), ("graphs", "--measure", "64")]
    + [("graphs", "--images-per-second", "10")],
)
def test_options_that_the_table_has_no_use_for_are_refused(tmp_path, options):
    done = run_table(*options, "--dry-run", "--results", tmp_path)
    assert done.returncode == 2 and options[1] in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("override", ["seed=1", "data.size=48", "report.table=null", "fast", "model.dtype=float32"])
def test_overrides_that_the_table_sets_are_refused(tmp_path, override):
    done = run_table("arrow", "--dry-run", "--results", tmp_path, override)
    assert done.returncode == 2 and override in done.stderr and len(done.stderr.splitlines()) == 1


def fake_project(folder, body):
    """A copy of the script and the definitions beside a `train.py` that has `body`."""
    (folder / "scripts").mkdir()
    (folder / "scripts/run_table.py").write_text((ROOT / "scripts/run_table.py").read_text())
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "train.py").write_text(body)
    return {
        "args": [sys.executable, "scripts/run_table.py", "arrow-demo"],
        "cwd": folder,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "text": True,
    }


WRITE_RECORD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.experiments.conftest import example_curve, example_record
from plstm.results.records import write_record
experiment = sys.argv[1].partition("=")[2]
print("training", *sys.argv[1:])
if "fails" in Path("state").read_text() and experiment == "demo/plstm":
    sys.exit(3)
row = {{"demo/plstm": "pLSTM", "demo/vit": "ViT"}}[experiment]
write_record(example_record(experiment, row, table="arrow-demo"), example_curve(0.9), "results")
"""


def test_runs_what_is_missing_and_goes_on_after_a_failure(tmp_path):
    project = fake_project(tmp_path, WRITE_RECORD.format(root=str(ROOT)))
    (tmp_path / "state").write_text("fails")
    done = subprocess.run(**project, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert "training experiment=demo/plstm seed=43" in done.stdout and "training experiment=demo/vit" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["1 runs failed:", "experiment=demo/plstm seed=43: exit status 3"]
    assert "ViT" in (tmp_path / "results/tables/arrow-demo.md").read_text()
    assert (tmp_path / "results/figures/arrow-demo-curves.png").is_file()
    (tmp_path / "state").write_text("works")
    done = subprocess.run(**project, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "training experiment=demo/plstm" in done.stdout and "training experiment=demo/vit" not in done.stdout
    done = subprocess.run(**project, capture_output=True)
    assert (done.returncode, "training experiment=" in done.stdout) == (0, False)


WRITE_BOTH_STAGES = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.experiments.conftest import example_curve, example_record
from plstm.results.records import write_record
from plstm.results.definitions import load_table
given = dict(argument.split("=", 1) for argument in sys.argv[1:])
print("training", *sys.argv[1:])
if given["experiment"] == "reduced/imagenet_vit":
    sys.exit(3)
rows = load_table(Path("configs/tables/imagenet-reduced.yaml")).rows
row = next(row.name for row in rows if row.experiment == given["experiment"])
start = given.get("init_from", "").strip('"') or None
record = example_record(given["experiment"], row, table="imagenet-reduced", init_from=start)
write_record(record, example_curve(0.9), "results")
"""


def test_fine_tuning_starts_from_the_table_s_pretraining(tmp_path):
    project = fake_project(tmp_path, WRITE_BOTH_STAGES.format(root=str(ROOT)))
    project["args"][2:] = ["imagenet-reduced"]
    done = subprocess.run(**project, capture_output=True)
    assert done.returncode == 1, done.stderr
    first, second = "reduced/imagenet_plstm", "reduced/imagenet_plstm_finetune"
    start = example_record(first).id
    assert [line for line in done.stdout.splitlines() if line.startswith("training")] == [
        f"training experiment={first} seed=43",
        f'training experiment={second} seed=43 init_from="{start}"',
        "training experiment=reduced/imagenet_vit seed=43",
    ]
    assert done.stdout.splitlines()[-2:] == [
        "experiment=reduced/imagenet_vit seed=43: exit status 3",
        "experiment=reduced/imagenet_vit_finetune seed=43: fine-tunes reduced/imagenet_vit, which has not finished",
    ]


def test_dry_run_of_two_stages_at_a_given_throughput(tmp_path):
    done = run_table("imagenet-reduced", "--dry-run", "--results", tmp_path, "--images-per-second", "10")
    *lines, total = done.stdout.splitlines()
    seconds = [3600 * float(line.split()[2]) for line in lines]
    views = [64 * 1_120, 64 * 140] * 2
    flops = [experiment_cost(row.experiment).flops for row in load_table(TABLES / "imagenet-reduced.yaml").rows]
    assert seconds == pytest.approx([n / 10 * own / flops[0] for n, own in zip(views, flops, strict=True)], abs=20)
    assert [line.partition(f" paths.results={tmp_path}")[0].partition("train.py ")[2] for line in lines[:2]] == [
        "experiment=reduced/imagenet_plstm seed=43",
        "experiment=reduced/imagenet_plstm_finetune seed=43 init_from=ID",
    ]
    assert total.startswith("4 runs: 0 finished, 4 to run, about ")
    assert total.endswith("at 10 images/s of the first row's model")


@pytest.mark.slow
def test_dry_run_measures_the_throughput_it_estimates_by(tmp_path):
    done = run_table("imagenet-reduced", "--dry-run", "--results", tmp_path, "--measure", "2")
    first, *_, total = done.stdout.splitlines()
    rate = float(re.fullmatch(r"measured: (\S+) images/s of reduced/imagenet_plstm, data not counted", first)[1])
    assert rate > 0 and float(total.split(" images/s of the first row")[0].split()[-1]) == pytest.approx(rate, abs=0.1)
    assert "4 runs: 0 finished, 4 to run, about " in total


def test_measuring_is_refused_before_a_run(tmp_path):
    done = run_table("imagenet-reduced", "--results", tmp_path, "--measure", "2")
    assert done.returncode == 2 and "--measure goes with --dry-run" in done.stderr


def test_imagenet_has_the_figures_of_tables_4_and_5():
    table = load_table(TABLES / "imagenet.yaml")
    keys = ("parameters", "flops", "test")
    ours = {row.name: tuple(row.paper[key] for key in keys) for row in table.rows if row.paper}
    assert ours == {
        "pLSTM-Vis-T": ("6M", "1.4G", 75.2),
        "pLSTM-Vis-S": ("23M", "4.9G", 80.7),
        "pLSTM-Vis-B": ("89M", "18.2G", 82.5),
        "ViT-T": ("6M", "1.1G", 75.4),  # DeiT-III (reimpl.), which the paper quotes
        "ViT-S": ("22M", "4.6G", 80.3),
        "ViT-B": ("87M", "16.8G", 83.5),
    }
    for pretraining, finetuning in zip(table.rows[::2], table.rows[1::2], strict=True):
        assert (pretraining.init_from, finetuning.init_from) == (None, pretraining.experiment)
    assert len(table.references) == 22
    ablation = [row.paper and row.paper["test"] for row in load_table(TABLES / "ablation.yaml").rows]
    assert ablation == [75.51, 75.22, 74.86, 75.13, 75.10, 74.66, None]


def test_a_run_without_a_record_is_a_failure(tmp_path):
    project = fake_project(tmp_path, "print('done')")
    project["args"] += ["--max-runs", "1"]
    done = subprocess.run(**project, capture_output=True)
    assert done.returncode == 1
    assert "finished without a record for table arrow-demo" in done.stdout.splitlines()[-1]
    assert done.stdout.count("run 1/1") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_the_run_save_and_stops(tmp_path, number):
    body = """
import signal, sys, time
def save(*_):
    time.sleep(0.3)
    open("saved", "a").write("x")
    sys.exit(1)
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
time.sleep(30)
"""
    process = subprocess.Popen(**fake_project(tmp_path, body), stdout=subprocess.PIPE, start_new_session=True)
    for line in process.stdout:
        if line == "ready\n":
            break
    started = time.monotonic()
    os.killpg(process.pid, number)
    rest = process.stdout.read()
    assert process.wait() == 130 and time.monotonic() - started < 10
    assert rest == "stopped; the same command goes on from here\n"
    assert (tmp_path / "saved").read_text() == "x"
