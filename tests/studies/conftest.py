"""Example records: finished runs of the tables here with made-up accuracies."""

import csv
import io
import json
import math

import pytest
from matplotlib.text import Text

from plstm.runs.identity import OF_MACHINE, drop, plain_id
from plstm.studies.definitions import load_table
from plstm.studies.plans import planned_config
from plstm.studies.records import Record, read_records, write_record
from plstm.studies.sweeps import planned_runs
from plstm.studies.tables import render_table
from tests.commands import ROOT

TABLES = ROOT / "configs/study"
HARDWARE = {"platform": "gpu", "device_kind": "H100", "device_count": 1, "cpu_model": "Xeon", "cpu_cores": 8}
RECORD = dict(
    task="arrow", commit="0123456789abcdef0123456789abcdef01234567", dirty=False, hardware=HARDWARE,
    versions={"python": "3.11.9", "jax": "0.10.2", "pillow": None}, unit="images", steps=40_000, epochs=50.0,
    started="2025-06-01T10:00:00+00:00", finished="2025-06-01T11:00:00+00:00", wall_seconds=3600.0,
    examples_per_second=1500.0, parameters=5_500_000, flops_per_example=None,
)  # fmt: skip


def example_record(
    experiment="arrow/plstm",
    seed=43,
    lr=1e-4,
    table="arrow",
    best=None,
    init_from=None,
    values=None,
    row=None,
    **changes,
):
    """A record of a row's run as its table plans it: of the experiment's first row or the one named `row`, with other
    `values` or `init_from`; `val`, `test`, `test_ext` are last accuracies, others replace whole fields."""
    definition = load_table(TABLES / f"{table}.yaml")
    planned = next((r for r in definition.rows if row in (r.name, None) and r.experiment == experiment), None)
    swept = {"seed": seed} | ({"optim.peak_lr": lr} if "optim.peak_lr" in definition.sweep else {}) | (values or {})
    settings = (planned.set if planned else {}) | swept | ({"init_from": init_from} if init_from else {})
    config = planned_config(experiment, planned.variants if planned else (), settings)
    variant = ",".join(planned.variants) or None if planned else None
    config |= {"experiment": experiment, "variant": variant}
    for key in OF_MACHINE:
        drop(config, key)
    words = planned.overrides if planned else [f"experiment={experiment}"]
    overrides = [*words, *(f"{key}={value}" for key, value in swept.items())]
    last = {"val": 0.97, "val_ext": 0.77, "test": 0.97, "test_ext": 0.78}
    last |= {split: changes.pop(split) for split in ("val", "test", "test_ext") if split in changes}
    metrics = {
        "last": {split: {"loss": 0.1, "accuracy": value, "count": 5120} for split, value in last.items()},
        "best": {"step": 38_000, **{split: {"accuracy": value} for split, value in (best or last).items()}},
    }
    own = dict(experiment=experiment, variant=variant, overrides=overrides, seed=seed, metrics=metrics, config=config)
    own |= dict(id=plain_id(config), command=" ".join(["python train.py", *overrides]))
    own |= dict(name=f"{experiment.replace('/', '-')}-s{seed}")
    return Record(**RECORD | own | changes)


def example_curve(final, shift=0):
    """Accuracies that stay at chance and then rise to `final`, at 20 evaluations over 50 epochs."""
    points = []
    for step in range(2000, 40_001, 2000):
        rise = 1 / (1 + math.exp(-(step - 14_000 - shift) / 2000))
        for split, top in (("train", min(1, final + 0.02)), ("val", final), ("val_ext", final - 0.2)):
            points.append((step, step / 800, split, "accuracy", float(f"{0.5 + (top - 0.5) * rise:.6g}")))
        points.append((step, step / 800, "train", "loss", float(f"{0.7 * (1 - rise):.6g}")))
    return points


@pytest.fixture
def add(tmp_path):
    """Write example records, with curves, into `tmp_path`; called with the arguments of `example_record`."""

    def write(**fields):
        record = example_record(**fields)
        write_record(record, example_curve(record.metric("val"), 400 * (record.seed - 45)), tmp_path)
        return record

    return write


@pytest.fixture(scope="session")
def arrow():
    return load_table(TABLES / "arrow.yaml")


@pytest.fixture(scope="session")
def graphs():
    return load_table(TABLES / "graphs.yaml")


def rendered(table, folder, order=list):
    """Name -> text of a study's files from the records of a folder, in this order."""
    files = render_table(table, list(order(read_records(folder))), folder)
    return {path.name: data.decode() for path, data in files.items()}


def long_values(text):
    """The numbers of a table.csv by section, row, choice, chosen, seed and metric."""
    found = {}
    for *place, value in list(csv.reader(io.StringIO(text)))[1:]:
        if place[-1] not in ("id", "commit") and " " not in value:
            found[tuple(place)] = float(value)
    return found


def split_cells(line):
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def lines_of(text, row):
    """Title -> text of the cells of a row, of each grid of a table.md that has it."""
    found, titles, before = [], [], ""
    for line in text.splitlines():
        if line.startswith("| ---"):
            titles = split_cells(before)
        elif line.startswith(f"| {row} |"):
            found.append(list(zip(titles, split_cells(line), strict=True)))
        before = line
    return found


def folds_of(table, experiment, name="MUTAG", depth=4, seed=43):
    """The planned runs of one seed of a cell of the graph table, of the row without a variant."""
    wanted = {"data.name": name, "model.depth": depth, "seed": seed}
    runs = [run for run in planned_runs(table) if run.row.overrides == [f"experiment={experiment}"]]
    return [run for run in runs if all(run.values[key] == value for key, value in wanted.items())]


def fold_records(runs, val=0.8, best=0.7, last=0.75, **changes):
    """Records of planned folds, the n-th with n / 100 more on the test set."""
    changes = {"parameters": 1234, "wall_seconds": 20.0, "steps": 300, "epochs": 100.0, "unit": "graphs"} | changes
    return [
        example_record(
            *(run.row.experiment, run.values["seed"]),
            table="graphs",
            values=run.values,
            best={"val": val, "test": best + n / 100},
            val=0.5,
            test=last + n / 100,
            **changes,
        )
        for n, run in enumerate(runs)
    ]


@pytest.fixture
def add_folds(graphs, tmp_path):
    """Write the first `count` folds of a cell into `tmp_path`."""

    def write(*cell, count=10, **accuracies):
        for record in fold_records(folds_of(graphs, *cell)[:count], **accuracies):
            write_record(record, [(3, 1.0, "val", "accuracy", 0.1234567), (6, 2.0, "val", "accuracy", 0.5)], tmp_path)

    return write


@pytest.fixture
def add_lengths(tmp_path):
    """Write a record of a row's run on a task of languages or tokens into `tmp_path`, from accuracies by length."""

    def write(table, row, task, seed, accuracies, loss=0.1, **fields):
        test = {"accuracy": sum(accuracies.values()) / len(accuracies)}
        test |= {f"{kind}@{n}": a for kind in ("accuracy", "accuracy_all", "rescaled") for n, a in accuracies.items()}
        metrics = {"last": {"test": test, "val": {"accuracy": 1.0, "loss": loss}}, "best": None}
        experiment = next(r.experiment for r in load_table(TABLES / f"{table}.yaml").rows if r.name == row)
        own = dict(table=table, row=row, seed=seed, values={"data.name": task}, metrics=metrics)
        write_record(example_record(experiment, **own | fields), [], tmp_path)

    return write


def edit_line(path, edit, number=0):
    lines = path.read_text().splitlines()
    line = json.loads(lines[number])
    edit(line["record"])
    lines[number] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n")


def texts_of(figure):
    """All texts of a figure of Matplotlib, each on one line."""
    return [text.get_text().replace("\n", " ") for text in figure.findobj(Text) if text.get_text()]
