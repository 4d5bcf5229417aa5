import os
import re
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from plstm.errors import UserError
from plstm.runs.compose import compose_config, to_config
from plstm.runs.identity import run_id
from plstm.studies import sweeps
from plstm.studies.definitions import LINES, load_table
from plstm.studies.records import write_record
from plstm.studies.sweeps import planned_runs
from plstm.training.environment import describe_environment
from scripts import run_table
from tests.commands import ROOT, call_here, refused

from .conftest import HARDWARE, TABLES, example_curve, example_record, fold_records, folds_of

PLANNED = 8 * 15 + 5 * (4 + 3 + 1 + 2 + 1)  # runs of the arrow table


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("arrow", "chance: 0.5", "chanse: 0.5", "key chanse: Extra inputs are not permitted"),
        ("arrow", "title: Arrow pointing\n", "", "key title: Field required"),
        ("arrow", "    experiment: arrow/vit", "    experimnt: arrow/vit", "key rows[5].experiment: Field required"),
        ("arrow", "name: ViT", "name: pLSTM", "key rows must not have two of the same name"),
        ("arrow", "over: optim.peak_lr,", "over: optim.lr,", "key sweep must list 'optim.lr'"),
        ("arrow", "test: [0.972, 0.003]", "tset: [0.972, 0.003]", "key paper.tset of pLSTM must be"),
        ("arrow", "test: [0.972, 0.003]", "test: [0.972]", "paper.test of pLSTM must be a number or [mean, +-]"),
        ("arrow", "split: test}", "split: test_ext}", "key columns must not have two of the same name"),
        ("arrow", "select: {over: optim.peak_lr, split: val}\n", "", "key above_chance is for a table with select"),
        ("arrow", "columns:", "columns: [", "not a YAML file"),
        ("imagenet", "from: pLSTM-Vis-T pre", "from: pLSTM-Vis-U pre", "rows[1].init_from: no earlier row"),
        ("imagenet", "flops: 1.4G", "flop: 1.4G", "paper.flop of pLSTM-Vis-T"),
        ("graphs", "{PTC_FM: PTC-FM}", "{PTC: PTC-FM}", "key section_titles must name some of"),
        ("graphs", "sweep: {model.depth: [4]}\n", "sweep: {model.deepth: [4]}\n", "does not sweep model.deepth"),
        ("graphs", "choose_once: true", "costs: true", "key sections are not for a table with costs"),
        ("languages-small", "rows: [Stack-RNN, ", "rows: [Stack, ", "key stages[2].rows: no row 'Stack'"),
        ("languages-small", "seed: [43],", "seed: [7],", "stages[1].sweep: the table does not sweep seed over [7]"),
        ("arrow-48", "[EfficientNet, ", "[pLSTM, EfficientNet, ", f"panel 'Other models' has {LINES + 1} lines"),
        ("arrow-48", "[EfficientNet, ", "[Efficient, ", "key figure.groups: no row 'Efficient'"),
        ("tokens", "majority: {test_rescaled", "majority: {rescaled", "majority.rescaled@2048 of xLSTM[1:0] must be"),
        (
            "distill-small",
            "column: test_bits",
            "column: bits",
            "gap is for a table without sections; its column must be",
        ),
        (
            "series-small",
            "columns: [test_mase, test_wql,",
            "columns: [test_mase, mase,",
            "key differences are for a table without sections, of columns among test_mase, ",
        ),
        ("series-small", "    test_wql_daily:", "    test_wql_day:", "differences.sets must be of some of test_mase, "),
        ("arrow-small", "ViT at 0.0005,", "ViT at 0.0007,", "key differences.groups: no row 'ViT at 0.0007'"),
        (
            "arrow-small",
            "rows: [pLSTM / (P-mode only)]",
            "rows: [ViT]",
            "key stages: none has row 'pLSTM / (P-mode only)', which would never run",
        ),
        (
            "arrow-small",
            "split: val}",
            "split: val, metric: bits}",
            "key select.metric must be accuracy, the highest, or",
        ),
        ("arrow-demo", "set: {optim.peak_lr: 2e-3}", "set: {seed: 44}", "rows[1].set: the table sweeps seed; choose"),
        ("arrow-small", "1e-3: [0.905, 0.679]", "1e-3: [0.905]", "figure.choices must have a number for each of the"),
        ("tokens", "lengths: test", "lengths: tset", "key figure.lengths: tset is the split of no column"),
        (
            "arrow",
            "title: Arrow pointing\n",
            "title: Arrow pointing\nname: graphs\n",
            "name: must be arrow, as the file",
        ),
        ("distill-small", "one: teacher}", "one: teachers}", "key gap: no row 'teachers'"),
        (
            "arrow-small",
            "  sizes: true\n",
            "  sizes: true\n  groups: {A: [pLSTM], B: [ViT]}\n",
            "groups must be one panel",
        ),
        ("tokens", "overview: test_rescaled@512", "overview: test_loss", "overview must be one of test_accuracy@128, "),
    ],
)
def test_a_wrong_definition_names_file_and_key(tmp_path, name, old, new, words):
    text = (TABLES / f"{name}.yaml").read_text()
    assert old in text
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        load_table(path)
    assert str(path) in str(error.value) and words in str(error.value)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            "series-small",
            "split: val, metric: wql}",
            "split: val, metric: wql, at: best}",
            "columns: at=best: runs of row 'xLSTM[3:1]' have loop.best_split=null",
        ),
        (
            "series-small",
            "split: val, metric: loss}",
            "split: vall, metric: loss}",
            "select: split=vall: runs of row 'xLSTM[3:1]' measure",
        ),
        (
            "arrow-small",
            "panels: {val:",
            "panels: {test:",
            "figure.panels: test: runs of row 'pLSTM' measure val, val_ext during",
        ),
    ],
)
def test_a_measure_that_no_run_has_is_named_before_any_run(tmp_path, name, old, new, words):
    path = tmp_path / f"{name}.yaml"
    path.write_text((TABLES / path.name).read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=f"^table {name}: ") as error:
        planned_runs(load_table(path))
    assert words in str(error.value)


def test_order_fills_every_row_at_the_papers_best_value_first(arrow):
    runs = planned_runs(arrow)
    rows = len(arrow.rows)
    rates = sum(len(row.sweep.get("optim.peak_lr", arrow.sweep["optim.peak_lr"])) for row in arrow.rows)
    assert len(runs) == len({run.id for run in runs}) == 5 * rates == PLANNED
    best = {row.name: row.paper.get("peak_lr", 1e-4) for row in arrow.rows}
    for seed, start in zip(range(43, 48), range(0, 5 * rows, rows), strict=True):
        first = runs[start : start + rows]
        assert {run.row.name: run.values["optim.peak_lr"] for run in first} == best
        assert {run.values["seed"] for run in first} == {seed}
    assert [run.values["seed"] for run in runs[5 * rows :]][: rates - rows] == [43] * (rates - rows)
    assert sweeps.Job(runs[:1]).overrides == ["experiment=arrow/plstm", "seed=43", "optim.peak_lr=0.0001"]


QUICK = ("arrow-48-balanced", "tokens-small", "walk")


@pytest.mark.parametrize(
    "name",
    [pytest.param(path.stem, marks=[pytest.mark.slow] * (path.stem not in QUICK)) for path in TABLES.glob("*.yaml")],
)
def test_a_planned_run_is_what_its_command_trains(name):
    """Of each row, one run."""
    for run in {run.row.name: run for run in planned_runs(load_table(TABLES / f"{name}.yaml"))}.values():
        assert run.id == run_id(to_config(compose_config("train", run.overrides))), run.row.name


def test_an_int_in_the_place_of_a_float_is_what_its_command_trains(arrow):
    row = arrow.rows[0].model_copy(update={"set": {"loop.stop_at": 1}})
    run = planned_runs(arrow.model_copy(update={"rows": [row]}))[0]
    assert run.id == run_id(to_config(compose_config("train", run.overrides)))


def test_a_setting_that_the_experiment_does_not_have_is_named(arrow):
    row = arrow.rows[0].model_copy(update={"set": {"model.experts": 3}})
    with pytest.raises(UserError, match=r"experiment=arrow/plstm model.experts=3: there is no such key"):
        planned_runs(arrow.model_copy(update={"rows": [row]}))
    row = arrow.rows[0].model_copy(update={"variant": "d_mod"})
    with pytest.raises(UserError, match=r"variant=d_mod: there is no such choice; there are 0r, 2r, balanced"):
        planned_runs(arrow.model_copy(update={"rows": [row]}))


def test_whole_cells_are_planned_section_by_section_and_seed_by_seed(graphs):
    runs = planned_runs(graphs)
    jobs = sweeps.jobs(graphs, runs)
    assert {len(job.runs) for job in jobs} == {10} and sum(len(job.runs) for job in jobs) == len(runs)
    assert len({run.id for run in runs}) == len(runs)
    first = [job.overrides for job in jobs[:11]]
    swept = ["data.name=MUTAG", "seed=43", "model.depth=4", "data.fold=0,1,2,3,4,5,6,7,8,9"]
    assert first[0] == ["experiment=graphs/gat", *swept]
    assert all({"data.name=MUTAG", "seed=43"} <= set(overrides) for overrides in first)
    assert [o[0] for o in first[-2:]] == ["experiment=graphs/mpnn", "experiment=graphs/plstm"]
    assert {"seed=44", "data.name=MUTAG"} <= set(jobs[11].overrides)
    published = [bool(job.runs[0].row.paper) for job in jobs]
    assert published == sorted(published, reverse=True)  # variants come last
    assert sweeps.jobs(graphs, runs[3:5])[0].overrides[-1] == "data.fold=3,4"


def expected(table, run, records):
    return sweeps.expected_seconds(table, run, sweeps.match_records(table, records), HARDWARE)


def test_cost_comes_from_the_same_experiment_hardware_section_and_depth(arrow, graphs):
    run = planned_runs(arrow)[0]
    alike = [example_record(seed=seed, wall_seconds=seconds) for seed, seconds in ((44, 100.0), (45, 300.0))]
    others = [
        example_record(seed=46, wall_seconds=9e9, hardware={**HARDWARE, "device_kind": "A100"}),
        example_record(experiment="arrow/vit", wall_seconds=9e9),
        example_record(seed=47, values={"data.size": 48}, wall_seconds=9e9),
    ]
    assert expected(arrow, run, alike + others) == 200 and expected(arrow, run, others) is None
    assert expected(arrow, run, [example_record(lr=3e-4, wall_seconds=50)]) == 50
    run = folds_of(graphs, "graphs/gin")[0]
    alike = fold_records(folds_of(graphs, "graphs/gin", "MUTAG", 4, 44))
    others = fold_records(folds_of(graphs, "graphs/gin", "NCI1", 4, 44), wall_seconds=9e9)
    deeper = fold_records(folds_of(graphs, "graphs/gin", "MUTAG", 8, 44), wall_seconds=9e9)
    assert expected(graphs, run, alike + others + deeper) == 20 and expected(graphs, run, others) is None


def test_dry_run_lists_every_run(add, tmp_path):
    add(wall_seconds=7200.0)
    begun = example_record("arrow/vit", lr=0.0003).id
    for folder in (f"{begun}/checkpoints/2000", f"{example_record('arrow/vit', lr=0.001).id}/checkpoints"):
        (tmp_path / "runs-open" / folder).mkdir(parents=True)
    options = ["--results", tmp_path, "--runs", tmp_path / "runs-open", "loop.log_every=7"]
    done = call_here(run_table.main, "arrow", "--dry-run", *options)
    assert done.status == 0, done.errors
    *lines, total = done.output.splitlines()
    tail = "loop.log_every=7"
    commands = [line.partition("python train.py ")[2] for line in lines]
    assert len(lines) == len(set(commands)) == PLANNED and all(command.endswith(tail) for command in commands)
    first = rf"finished +2\.00 h +python train\.py experiment=arrow/plstm seed=43 \S+=0\.0001 {tail}"
    assert re.fullmatch(first, lines[0])
    partial = [line for line in lines if line.startswith("partial")]
    assert len(partial) == 1 and "experiment=arrow/vit seed=43 optim.peak_lr=0.0003" in partial[0]
    assert re.match(r"partial +~\d+\.\d core-hours  python", partial[0])  # by FLOPs: no run on this hardware
    assert total == f"{PLANNED} runs: 1 finished, 0 not needed, {PLANNED - 1} to run"
    add(wall_seconds=7200.0, hardware=describe_environment(ROOT)["hardware"])
    total = call_here(run_table.main, "arrow", "--dry-run", "--results", tmp_path).output.splitlines()[-1]
    assert f"{PLANNED - 1} to run, about 28.00 h for 14 of them, going by finished runs on this hardware" in total


def test_runs_of_days_on_a_cpu_take_a_yes(tmp_path, monkeypatch):
    monkeypatch.setattr(run_table, "query_hardware", lambda: CPU)
    started = Mock(return_value=[])
    monkeypatch.setattr(run_table, "execute", started)
    options = ["--results", tmp_path / "results", "--runs", tmp_path / "runs"]

    def told(*words: str) -> tuple[float, ...]:
        ended = call_here(run_table.main, "arrow", "--seeds", "43", *options, *words)  # prints the plan first
        assert ended.status == 2 and not started.called
        line = r"error: about ([\d,]+) hours on this machine's CPU, up to ([\d,]+) a run, .*--yes starts them\n"
        return tuple(float(hours.replace(",", "")) for hours in re.fullmatch(line, ended.errors).groups())

    (total, longest), (same, shortest) = told(), told("--processes", "1")
    assert total == same and longest == pytest.approx(8 * shortest, rel=0.02)  # of eight cores, one each
    for command in (["arrow", "--yes", "logger.mode=disabled"], ["arrow-demo"], ["graphs", "--seeds", "43"]):
        assert call_here(run_table.main, *command, *options).status == 0
    assert started.call_count == 3


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=44", "override 'seed=44': would make other runs than the table's; leave it out"),
        ("data.worker=3", "data.worker: there is no such key; did you mean data.workers?"),
        ("logger.mode=offlin", "logger.mode=offlin: choose one of auto"),
        ("+paths.runs=x", "+paths.runs=x: use --results and --runs"),
    ],
)
def test_a_wrong_override_is_refused_before_the_first_run(override, words):
    assert words in refused(run_table.main, "arrow-demo", override, "--dry-run")


@pytest.mark.parametrize(
    "options",
    [("arrow", "--sections", "val"), ("graphs", "--sections", "MUTAG,PTC"), ("arrow", "--seeds", "43,7")]
    + [("arrow", override) for override in ("seed=1", "variant=d_mode", "fast", "model.dtype=float32")],
)
def test_options_and_overrides_that_are_not_for_the_table_are_refused(tmp_path, options):
    assert options[1] in refused(run_table.main, *options, "--dry-run", "--results", tmp_path)


@pytest.fixture
def project(tmp_path):
    """Function of a table, a body and options: how to run the table where `train.py` has this body."""

    def start(table, body, *options):
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts/run_table.py").write_text((ROOT / "scripts/run_table.py").read_text())
        (tmp_path / "configs").symlink_to(ROOT / "configs")
        (tmp_path / "train.py").write_text(body)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "scripts/run_table.py", table, *options]
        return {"args": command, "cwd": tmp_path, "env": environment, "text": True, "stdout": subprocess.PIPE}

    return start


TRAIN = """
import os, shutil, sys
own = [a for a in sys.argv[1:] if not a.startswith("paths.")]
print(" ".join(["training", *sys.argv[1:]]))  # in one piece: another may print at the same time
if " ".join(own) in open("fails").read().splitlines():
    sys.exit(3)
os.makedirs("results/runs", exist_ok=True)
name = next(a.partition("=")[2] for a in own if a.startswith("experiment=")).replace("/", "-") + ".jsonl"
lines = open("ready/" + " ".join(own).replace("/", "-")).read()
open("results/runs/" + name, "a").write(lines)
"""


def prepare(folder, table):
    """Writes the records that TRAIN leaves of a table's runs, which costs it less than making them."""
    (folder / "ready").mkdir()
    for run in planned_runs(load_table(TABLES / f"{table}.yaml")):
        own = {"row": run.row.name, "table": table, "init_from": run.init_from, "values": run.values}
        record = example_record(run.row.experiment, seed=run.values["seed"], **own)
        assert record.id == run.id
        path = write_record(record, example_curve(0.9), folder / "one")
        path.rename(folder / "ready" / " ".join(run.overrides).replace("/", "-"))


def test_runs_what_is_missing_and_goes_on_after_a_failure(project, tmp_path):
    command = project("arrow-demo", TRAIN, "--seeds", "43")
    prepare(tmp_path, "arrow-demo")
    first = "experiment=arrow_small/plstm variant=demo seed=43"
    second = "experiment=arrow_small/vit variant=demo optim.peak_lr=0.002 seed=43"
    (tmp_path / "fails").write_text(first)
    done = subprocess.run(**command)
    assert done.returncode == 1
    assert f"training {first}" in done.stdout and f"training {second}" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["1 runs failed:", f"{first}: exit status 3"]
    assert "ViT" in (tmp_path / "results/arrow-demo/table.md").read_text()
    assert (tmp_path / "results/arrow-demo/curves.png").is_file()
    left = call_here(run_table.main, "arrow-demo", "--dry-run", "--seeds", "43", "--results", tmp_path / "results")
    states = {line.partition("python train.py ")[2]: line.split()[0] for line in left.output.splitlines()}
    assert states[second] == "finished" != states[first]


@pytest.mark.slow
def test_fine_tuning_starts_from_the_table_s_pretraining(project, tmp_path):
    prepare(tmp_path, "imagenet-small")
    commands = [" ".join(run.overrides) for run in planned_runs(load_table(TABLES / "imagenet-small.yaml"))]
    command = project("imagenet-small", TRAIN, "--processes", "1")
    (tmp_path / "fails").write_text(commands[2])
    done = subprocess.run(**command)
    lines = done.stdout.splitlines()
    assert commands[0] == "experiment=imagenet_small/plstm seed=43"
    assert re.fullmatch(r'\S+/plstm variant=finetune_small init_from="[0-9a-f]{12}" seed=43', commands[1])
    trained = [line.partition(" paths.")[0] for line in lines if line.startswith("training")]
    assert trained == [f"training {each}" for each in commands[:3]]
    failures = (f"{commands[2]}: exit status 3", f"{commands[3]}: fine-tunes ViT pre-training, which has not finished")
    assert lines[-2:] == list(failures)


def test_a_run_without_a_record_is_a_failure(project):
    command = project("arrow-demo", "print('done')")
    command["args"] += ["--max-runs", "1"]
    done = subprocess.run(**command)
    assert done.returncode == 1 and done.stdout.count("run 1/1") == 1
    assert "finished without a record in " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupt_lets_the_run_save_and_stops(project, tmp_path, number):
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
    command = project("arrow-demo", body)
    command["args"] += ["--processes", "1"]
    process = subprocess.Popen(**command, start_new_session=True)
    for line in process.stdout:
        if line == "ready\n":
            break
    started = time.monotonic()
    os.killpg(process.pid, number)
    rest = process.stdout.read()
    assert process.wait() == 130 and time.monotonic() - started < 10
    assert rest == "stopped; the same command resumes from here\n"
    assert (tmp_path / "saved").read_text() == "x"


WAIT_FOR_EACH_OTHER = """
import os, sys, time
name = next(a.partition("=")[2] for a in sys.argv if a.startswith("experiment=")).replace("/", "-")
if name == "graphs-gcn":
    sys.exit(3)
open(name, "w").write(os.environ["NPROC"])
other = {"graphs-gat": "graphs-gin", "graphs-gin": "graphs-gat"}[name]
end = time.monotonic() + 60
while not os.path.exists(other) and time.monotonic() < end:
    time.sleep(0.01)
sys.exit(0 if os.path.exists(other) else 4)
"""


CPU = {"platform": "cpu", "device_kind": "cpu", "device_count": 1, "cpu_model": "", "cpu_cores": 8}


def test_runs_side_by_side_share_cores_and_devices(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plain = {"TERM": "dumb"}
    assert run_table.place(1, None, CPU) == run_table.place(20, 1, CPU) == run_table.place(0, None, CPU) == [{}]
    assert run_table.place(2, None, CPU) == [{"NPROC": "4", "OMP_NUM_THREADS": "4"} | plain] * 2
    assert run_table.place(20, None, CPU) == [run_table.ONE_THREAD | plain] * 8
    gpus = CPU | {"platform": "gpu", "device_count": 4}
    assert run_table.place(9, None, gpus) == [{}]  # which takes all
    assert [each["CUDA_VISIBLE_DEVICES"] for each in run_table.place(9, 2, gpus)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in run_table.place(9, 4, gpus)] == ["4", "5", "6", "7"]
    with pytest.raises(UserError, match="--processes 5: this machine has 4 devices"):
        run_table.place(9, 5, gpus)


def test_jobs_run_side_by_side_a_thread_each_and_pass_one_that_waits_for_another(graphs, tmp_path):
    """GAT and GIN need each other at work; of the two jobs between them, one never finds what it needs."""
    (tmp_path / "train.py").write_text(WAIT_FOR_EACH_OTHER)
    runs = [run for name in ("gat", "lstm", "gcn", "gin") for run in folds_of(graphs, f"graphs/{name}")[:2]]
    done = []

    def overrides(job):
        name = job.runs[0].row.name
        if name == "LSTM GNN" or name == "GCN" and not done:
            raise UserError("not yet")
        return []

    places = [run_table.ONE_THREAD] * 2
    failures = run_table.execute(sweeps.jobs(graphs, runs), overrides, tmp_path, done.append, places)
    experiment = "experiment=graphs/{} data.name=MUTAG seed=43 model.depth=4 data.fold=0,1: {}"
    assert sorted(failures) == [experiment.format("gcn", "exit status 3"), experiment.format("lstm", "not yet")]
    assert sorted(job.runs[0].row.name for job in done) == ["GAT", "GIN"]
    assert (tmp_path / "graphs-gat").read_text() == "1"


def test_processes_are_stopped_where_a_table_cannot_be_written(graphs, tmp_path):
    code = "import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: (open('saved', 'w'), sys.exit(130)))"
    wait = "open('ready', 'w'); time.sleep(0 if 'experiment=graphs/gat' in sys.argv else 60)"
    first = "\nwhile 'experiment=graphs/gat' in sys.argv and not os.path.exists('ready'): time.sleep(0.01)\n"
    (tmp_path / "train.py").write_text(f"import os; {code}{first}{wait}")
    runs = [folds_of(graphs, f"graphs/{name}")[0] for name in ("gat", "gin")]

    def disk_full(job):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        run_table.execute(sweeps.jobs(graphs, runs), lambda job: [], tmp_path, disk_full, [{}, {}])
    assert (tmp_path / "saved").exists()


def test_a_job_that_is_no_longer_needed_is_left_out(graphs, tmp_path, capsys):
    (tmp_path / "train.py").write_text("import sys; open('started', 'a').write(sys.argv[1] + ' ')")
    runs = [folds_of(graphs, f"graphs/{name}")[0] for name in ("gat", "gcn", "gin")]
    done = []

    def overrides(job):
        return None if "gat" in str(done) and job.runs[0].row.name == "GCN" else ["x=1"]

    assert run_table.execute(sweeps.jobs(graphs, runs), overrides, tmp_path, done.append) == []
    assert (tmp_path / "started").read_text() == "experiment=graphs/gat experiment=graphs/gin "
    assert "run 2/3: no longer needed: experiment=graphs/gcn" in capsys.readouterr().out
