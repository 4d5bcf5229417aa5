import csv
import io
import json
import os
import re

import pytest

from plstm.errors import UserError
from plstm.studies.definitions import load_table
from plstm.studies.records import record_path
from plstm.studies.sweeps import t_interval
from plstm.studies.tables import DASH, EXPERIMENTS

from .conftest import TABLES, edit_line, example_record, rendered, run_script


def cells_of(text, model):
    """The texts of a model's line in Markdown, by the header above it."""
    lines = text.splitlines()
    number = next(n for n, line in enumerate(lines) if re.match(rf"\| \[?{re.escape(model)}[\] (]", line))
    header = next(line for line in reversed(lines[:number]) if line.startswith("| Model"))
    split = lambda line: [cell.strip() for cell in line.strip("|").split(" | ")]  # noqa: E731
    return list(zip(split(header), split(lines[number]), strict=True))


def csv_lines(text):
    return {(line["model"], line.get("peak_lr")): line for line in csv.DictReader(io.StringIO(text))}


def test_cells(arrow, add, tmp_path):
    runs = [add(seed=seed, test=0.970 + 0.002 * (seed - 43), test_ext=0.75) for seed in range(43, 48)]
    add(experiment="arrow/vit", lr=3e-4, test=0.92, test_ext=0.71)
    text = rendered(arrow, tmp_path)
    assert cells_of(text["md"], "pLSTM") == [
        ("Model", f"[pLSTM]({os.path.relpath(EXPERIMENTS, tmp_path / 'tables')}/arrow/plstm.yaml) (5 of 15 runs)"),
        *[("peak_lr", "0.0001"), ("peak_lr (paper)", "0.0001"), ("Took off", "5 of 5"), ("Took off (paper)", "5 of 5")],
        ("Test acc.", "0.974 ± 0.003 ([n=5](../runs/arrow-plstm.jsonl))"),
        *[("Paper", "0.972 ± 0.003"), ("Difference", "+0.002")],
        ("Test acc. (ext.)", "0.750 ± 0.000 ([n=5](../runs/arrow-plstm.jsonl))"),
        *[("Paper", "0.778 ± 0.031"), ("Difference", "-0.028"), ("Epochs", "50"), ("Parameters", "5,500,000")],
        *[("Examples/s", "1500"), ("Hours a run", "1.00"), ("Commit", "0123456")],
    ]
    assert dict(cells_of(text["md"], "ViT"))["Test acc."] == "0.920 ([n=1](../runs/arrow-vit.jsonl))"
    for target in re.findall(r"\]\(([^)]+)\)", text["md"]):
        assert (tmp_path / "tables" / target).resolve().is_file()
    line = csv_lines(text["csv"])["pLSTM", "0.0001"]
    assert float(line["test"]) == pytest.approx(0.974, abs=1e-12) and (line["chosen"], line["n"]) == ("1", "5")
    assert float(line["test_interval"]) == pytest.approx(t_interval([0.970, 0.972, 0.974, 0.976, 0.978])[1])
    assert line["runs"].split() == [run.id for run in runs] and line["seeds"] == "43 44 45 46 47"


def test_seeds_that_took_off_are_counted_and_listed_where_they_are_far_apart(arrow, add, tmp_path):
    for seed, val, test, test_ext in ((43, 0.99, 0.98, 0.75), (44, 0.97, 0.95, 0.75), (45, 0.6, 0.52, 0.5)):
        add(seed=seed, val=val, test=test, test_ext=test_ext)
        add(experiment="arrow/vit", seed=seed, lr=3e-4, val=0.9, test=0.91, test_ext=0.7 + 0.05 * (seed - 43))
    text = rendered(arrow, tmp_path)
    assert dict(cells_of(text["md"], "pLSTM"))["Took off"] == "2 of 3"
    assert dict(cells_of(text["md"], "ViT"))["Took off"] == "3 of 3"
    assert dict(cells_of(text["md"], "EfficientNet"))["Took off"] == DASH
    listed = "pLSTM, peak_lr 0.0001: 0.980 / 0.750 (seed 43), 0.950 / 0.750 (seed 44), 0.520 / 0.500 (seed 45)."
    assert f"- Seeds that are far apart, test acc. / test acc. (ext.): {listed}\n" in text["md"]
    line = csv_lines(text["csv"])["ViT", "0.0003"]
    assert (line["took_off"], line["test_ext_each"]) == ("3 of 3", "0.700, 0.750, 0.800")


def test_seeds_that_reach_a_column_s_bound_are_counted(arrow, add, tmp_path):
    first, *others = arrow.columns
    table = arrow.model_copy(update={"columns": [first.model_copy(update={"solved": 0.95}), *others]})
    for seed, test in ((43, 0.95), (44, 0.94), (45, 0.99)):
        add(seed=seed, val=0.9, test=test, test_ext=0.7)
    text = rendered(table, tmp_path)
    assert dict(cells_of(text["md"], "pLSTM"))["Seeds from 0.95"] == "2 of 3"
    assert dict(cells_of(text["md"], "ViT"))["Seeds from 0.95"] == DASH
    assert csv_lines(text["csv"])["pLSTM", "0.0001"]["test_solved"] == "2 of 3"


def test_baselines_stand_below_chance(arrow, tmp_path):
    assert "baselines (baselines/arrow-192.json, not measured yet)" in rendered(arrow, tmp_path)["md"]
    path = tmp_path / "baselines/arrow-192.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"baselines": [{"name": "arrow direction only", "val": 0.774, "test": 0.7754}]}))
    text = rendered(arrow, tmp_path)["md"]
    cells = cells_of(text, "arrow direction only")
    assert [(title, cell) for title, cell in cells[1:] if cell != DASH] == [("Test acc.", "0.775")]
    assert dict(cells_of(text, "chance"))["Test acc."] == "0.500"
    assert text.index("| [ViT]") < text.index("| chance") < text.index("| arrow direction")
    path.write_text(json.dumps({"baselines": [{"name": "arrow direction only", "test": "high"}]}))
    with pytest.raises(UserError, match=r"arrow-192.json: field baselines\[0\].test: Input should be a valid number"):
        rendered(arrow, tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"values": {"data.size": 48}},  # not what the table requires
        {"values": {"optim.epochs": 5.0}},
        {"seed": 99},  # not in the sweep
        {"overrides": ["experiment=arrow/plstm", "model.mlp_ratio=2"], "seed": 44},  # not the experiment as it is
        {"id": "0123456789ab", "finished": "2025-07-01T10:00:00+00:00"},  # after one with the same values
    ],
)
def test_a_record_that_does_not_fit_is_left_out_and_noted(arrow, add, tmp_path, fields):
    add(overrides=["experiment=arrow/plstm", "loop.log_every=7", "model.method=recurrent"])
    wrong = add(**{"test": 0.1} | fields)
    add(experiment="reduced/plstm", test=0.2)  # of no row
    text = rendered(arrow, tmp_path)["md"]
    assert f"- Not counted: 1 finished runs that do not fit the table: {wrong.id}." in text
    assert "0.970 ([n=1]" in text and text.count("Not counted") == 1
    of_another_table = [row.model_copy(update={"own": False}) for row in arrow.rows]
    assert "Not counted" not in rendered(arrow.model_copy(update={"rows": of_another_table}), tmp_path)["md"]


@pytest.mark.parametrize("dirty", [True, None])
def test_dirty_records_are_marked(arrow, add, tmp_path, dirty):
    add()
    clean = rendered(arrow, tmp_path)["md"]
    add(dirty=dirty)
    marked = rendered(arrow, tmp_path)["md"]
    assert "0123456\\*" in marked and "may differ from the commit" in marked
    assert "\\*" not in clean and "may differ from the commit" not in clean


@pytest.mark.parametrize("has_start", [False, True])
def test_a_run_fine_tuned_from_another_run_than_the_table_s_is_left_out(add, tmp_path, has_start):
    reduced = load_table(TABLES / "imagenet-small.yaml")
    pretraining, finetuning = reduced.rows[:2]
    if has_start:
        add(experiment=pretraining.experiment, table=reduced.name)
    wrong = add(experiment=finetuning.experiment, table=reduced.name, init_from="0123456789ab")
    assert f"do not fit the table: {wrong.id}." in rendered(reduced, tmp_path)["md"]


def test_a_row_s_own_requirements_and_sweep_are_asked_of_its_records(arrow, add, tmp_path):
    first, _ = (add(seed=seed) for seed in (43, 44))
    row = arrow.rows[0].model_copy(update={"require": {"optim.b1": 0.5}, "sweep": {"seed": [44]}})
    table = arrow.model_copy(update={"rows": [row]})
    assert "Not counted: 2 finished runs" in rendered(table, tmp_path)["md"]
    table = arrow.model_copy(update={"rows": [row.model_copy(update={"require": {}})]})
    text = rendered(table, tmp_path)
    line = csv_lines(text["csv"])["pLSTM", "0.0001"]
    assert (line["runs_planned"], line["seeds"]) == ("1", "44") and f"do not fit the table: {first.id}." in text["md"]


def test_columns_may_be_of_any_metric_at_the_last_or_the_best_step(arrow, add, tmp_path):
    columns = [("Loss", "val", "last", "loss"), ("Best", "val", "best", "accuracy")]
    columns = [{"title": t, "split": s, "at": at, "metric": metric} for t, s, at, metric in columns]
    table = type(arrow).model_validate(
        arrow.model_dump() | {"columns": columns, "rows": [{"name": "pLSTM", "experiment": "arrow/plstm"}]}
    )
    add(best={"val": 0.99})
    cells = dict(cells_of(rendered(table, tmp_path)["md"], "pLSTM"))
    assert cells["Loss"].startswith("0.100 (") and cells["Best"].startswith("0.990 (")
    add(seed=44, metrics={**example_record().metrics, "best": None})  # it lacks what the table shows: left out
    assert dict(cells_of(rendered(table, tmp_path)["md"], "pLSTM"))["Best"] == cells["Best"]


def test_script_writes_what_check_accepts_and_reports_bad_input_in_one_line(add, tmp_path):
    record = add()
    assert run_script("make_tables", "--results", tmp_path, "arrow", "arrow-demo").returncode == 0
    done = run_script("make_tables", "--results", tmp_path, "--check", "arrow", "arrow-demo")
    assert (done.returncode, "up to date" in done.stdout) == (0, True)
    path, missing = (tmp_path / f"tables/arrow.{kind}" for kind in ("md", "csv"))
    path.write_text(path.read_text().replace("0.970 ([n=1]", "0.971 ([n=1]"))
    missing.unlink()
    done = run_script("make_tables", "--results", tmp_path, "--check", "arrow")
    assert done.stdout.splitlines() == [f"stale: {stale}; run: make tables" for stale in (path, missing)]
    assert done.returncode == 1 and not missing.exists()
    edit_line(record_path(record.experiment, tmp_path), lambda fields: fields.pop("id"))
    for arguments, words in ((["--results", tmp_path], "arrow-plstm.jsonl, line 1"), (["tabel"], "arrow-demo")):
        done = run_script("make_tables", *arguments)
        assert done.returncode == 2 and done.stdout == ""
        assert words in done.stderr and len(done.stderr.splitlines()) == 1
