import json
import re

import pytest

from plstm.errors import UserError
from plstm.studies.definitions import Gap, load_table
from plstm.studies.markdown import DASH
from plstm.studies.records import read_records, record_path
from plstm.studies.sweeps import planned_runs, t_interval
from plstm.studies.tables import text_table
from scripts import make_tables
from tests.commands import ROOT, begin, call_here, end, refused
from tests.wandb_files import history

from .conftest import TABLES, edit_line, lines_of, long_values, rendered


def cells_of(text, row):
    (cells,) = lines_of(text, row)
    return cells


def test_cells(arrow, add, tmp_path):
    runs = [add(seed=seed, test=0.970 + 0.002 * (seed - 43), test_ext=0.75) for seed in range(43, 48)]
    add(experiment="arrow/vit", lr=3e-4, test=0.92, test_ext=0.71)
    files = rendered(arrow, tmp_path)
    assert cells_of(files["table.md"], "pLSTM") == [
        *[("Model", "pLSTM"), ("Above chance", "[5 of 5](../runs/arrow-plstm.jsonl)"), ("Learning rate", "0.0001")],
        *[("Test acc.", "0.974 ± 0.003"), ("Paper", "0.972 ± 0.003")],
        *[("Test acc. (ext.)", "0.750 ± 0.000"), ("Paper", "0.778 ± 0.031")],
    ]
    assert dict(cells_of(files["table.md"], "ViT"))["Test acc."] == "0.920"
    for target in re.findall(r"\]\(([^)]+)\)", files["table.md"]):
        assert (tmp_path / "arrow" / target).resolve().is_file() or target == "table.csv"
    found = {key[4:]: value for key, value in long_values(files["table.csv"]).items() if key[1] == "pLSTM"}
    assert found["mean", "test"] == pytest.approx(0.974) and found["47", "test"] == 0.978
    assert found["interval", "test"] == pytest.approx(t_interval([0.970, 0.972, 0.974, 0.976, 0.978])[1])
    assert (found["n", "test"], found["paper", "peak_lr"], found["count", "val"]) == (5, 1e-4, 5)
    assert found["difference", "test_ext"] == pytest.approx(-0.028) and found["mean", "wall_seconds"] == 3600
    assert f",pLSTM,0.0001,1,47,id,{runs[-1].id}\n" in files["table.csv"]
    assert ",pLSTM,0.0001,1,mean,commit,0123456789ab\n" in files["table.csv"]


def test_without_a_finished_seed_there_is_no_table(arrow, add_folds, graphs, tmp_path):
    add_folds("graphs/gin", count=9)
    assert rendered(graphs, tmp_path) == rendered(arrow, tmp_path) == {}
    assert text_table(arrow, [], tmp_path).splitlines()[1].startswith("chance ")


def test_seeds_that_reach_a_bound_are_counted(arrow, add, tmp_path):
    first, *others = arrow.columns
    table = arrow.model_copy(update={"columns": [first.model_copy(update={"solved": 0.95}), *others]})
    for seed, val, test in ((43, 0.99, 0.95), (44, 0.97, 0.94), (45, 0.6, 0.99)):
        add(seed=seed, val=val, test=test)
    files = rendered(table, tmp_path)
    assert dict(cells_of(files["table.md"], "pLSTM"))["Above chance"].startswith("[2 of 3]")
    assert dict(cells_of(files["table.md"], "EfficientNet"))["Above chance"] == DASH
    assert long_values(files["table.csv"])["", "pLSTM", "0.0001", "1", "count", "test"] == 2


def test_the_gap_between_two_rows_is_a_column(arrow, add, tmp_path):
    gap = Gap(title="Closed", column="test", zero="ViT", one="EfficientNet")
    table = arrow.model_copy(update={"gap": gap, "columns": arrow.columns[:1]})
    for seed, test in ((43, 0.75), (44, 0.85)):
        add(seed=seed, test=test)
    add(experiment="arrow/vit", lr=3e-4, test=0.9)
    assert dict(cells_of(rendered(table, tmp_path)["table.md"], "pLSTM"))["Closed"] == DASH
    add(experiment="arrow/efficientnet", test=0.7)
    files = rendered(table, tmp_path)
    width = t_interval([0.75, 0.85])[1] / 0.2
    assert dict(cells_of(files["table.md"], "pLSTM"))["Closed"] == f"0.500 ± {width:.3f}"
    assert dict(cells_of(files["table.md"], "EfficientNet"))["Closed"] == "1.000"
    found = long_values(files["table.csv"])
    assert found["", "pLSTM", "0.0001", "1", "43", "gap"] == pytest.approx(0.75)
    assert {key[4] for key in found if key[-1] == "gap"} == {"mean", "interval", "43", "44"}
    add(lr=3e-4, seed=43, test=0.5)  # a rate that is not chosen
    again = long_values(rendered(table, tmp_path)["table.csv"])
    assert {key: value for key, value in again.items() if key[-1] == "gap"} == {
        key: value for key, value in found.items() if key[-1] == "gap"
    }


def test_baselines_stand_below_chance(arrow, add, tmp_path):
    add()
    assert "baselines (baselines/arrow-192.json, not measured yet)" in rendered(arrow, tmp_path)["table.md"]
    path = tmp_path / "baselines/arrow-192.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"baselines": [{"name": "arrow direction only", "val": 0.774, "test": 0.7754}]}))
    files = rendered(arrow, tmp_path)
    text = files["table.md"]
    cells = cells_of(text, "arrow direction only")
    assert [(title, cell) for title, cell in cells[1:] if cell != DASH] == [("Test acc.", "0.775")]
    assert dict(cells_of(text, "chance"))["Test acc."] == "0.500"
    assert text.index("| ViT |") < text.index("| chance |") < text.index("| arrow direction")
    assert ",arrow direction only,,1,mean,test,0.7754\n" in files["table.csv"]
    path.write_text(json.dumps({"baselines": [{"name": "arrow direction only", "test": "high"}]}))
    with pytest.raises(UserError, match=r"arrow-192.json: field baselines\[0\].test: Input should be a valid number"):
        rendered(arrow, tmp_path)


def test_the_table_for_a_terminal_fits_in_80_columns(add, tmp_path):
    table = load_table(TABLES / "arrow-48.yaml")
    for row in table.rows[:3]:
        for seed in (43, 44):
            add(experiment=row.experiment, table="arrow-48", seed=seed, lr=1e-3, test=0.9)
    (tmp_path / "baselines").symlink_to(ROOT / "results/baselines")
    header, first, *lines = text_table(table, read_records(tmp_path), tmp_path).splitlines()
    assert header.startswith("Model  ") and first.split() == ["pLSTM", "0.900", "±", "0.000", "0.780", "±", "0.000"]
    assert 60 < max(map(len, lines)) < 80 and not any("](" in line or DASH in line for line in lines)


@pytest.mark.parametrize(
    "fields",
    [
        {"values": {"data.size": 48}},
        {"values": {"optim.epochs": 5.0}},
        {"seed": 99},  # not in the sweep
        {"experiment": "arrow_48/plstm"},  # of no row
        {"seed": 44, "test_ext": None},  # which was not finite
    ],
)
def test_a_run_of_another_config_or_without_a_metric_is_not_of_the_table(arrow, add, tmp_path, fields):
    add(values={"loop.log_every": 7, "model.method": "recurrent"})  # which change nothing
    add(**{"test": 0.1} | fields)
    assert dict(cells_of(rendered(arrow, tmp_path)["table.md"], "pLSTM"))["Test acc."] == "0.970"


@pytest.mark.parametrize("dirty", [True, None])
def test_dirty_records_are_noted(arrow, add, tmp_path, dirty):
    add()
    assert "may differ from their commit" not in rendered(arrow, tmp_path)["table.md"]
    add(dirty=dirty)
    assert (
        "- Runs whose code may differ from their commit: pLSTM, peak_lr 0.0001."
        in rendered(arrow, tmp_path)["table.md"]
    )


def test_a_run_fine_tuned_from_another_run_than_the_table_s_is_left_out(add):
    small = load_table(TABLES / "imagenet-small.yaml")
    start, tuned = planned_runs(small)[:2]
    experiment = tuned.row.experiment
    assert tuned.init_from == start.id == add(experiment=experiment, table=small.name).id
    for init_from, is_planned in ((start.id, True), ("0123456789ab", False)):
        record = add(experiment=experiment, row=tuned.row.name, table=small.name, init_from=init_from)
        assert (record.id == tuned.id) == is_planned


def test_costs_stand_in_the_table_that_asks_for_them(add, tmp_path):
    small = load_table(TABLES / "imagenet-small.yaml")
    own = {"experiment": "imagenet_small/plstm", "table": small.name}
    start = add(**own, epochs=40.0, flops_per_example=3e6)
    add(**own, row="pLSTM", init_from=start.id, epochs=5.0)
    text = rendered(small, tmp_path)["table.md"]
    assert [cell for _, cell in cells_of(text, "pLSTM pre-training")][2:4] == ["5,500,000", "1,500,000"]
    assert [cell for _, cell in cells_of(text, "pLSTM")][2:4] == ["5,500,000", DASH]
    full = load_table(TABLES / "imagenet.yaml")
    add(experiment="imagenet/plstm", table=full.name)
    cells = [cell for _, cell in cells_of(rendered(full, tmp_path)["table.md"], "DeiT-T (Touvron et al., 2021)")]
    assert cells[1:] == [DASH, "6M", "1.3G", DASH, "72.2", DASH]


@pytest.mark.slow
def test_script_logs_a_table_to_wandb(add, tmp_path):
    add()
    (tmp_path / "results").mkdir()
    (tmp_path / "runs").rename(tmp_path / "results/runs")
    _, said = end(begin("scripts/make_tables.py", "--results", tmp_path / "results", "arrow", "--wandb"))
    assert "W&B: offline" in said
    row = {key: value for row in history(tmp_path / "outputs") for key, value in row.items()}
    logged = json.loads((tmp_path / "outputs/wandb/latest-run/files" / row["table/path"]).read_text())
    lines = [dict(zip(logged["columns"], line, strict=True)) for line in logged["data"]]
    (mean,) = [line for line in lines if (line["row"], line["seed"]) == ("pLSTM", "mean")]
    assert mean["test"] == 0.97 and mean["wall_seconds"] == 3600


def test_script_writes_what_check_accepts_and_reports_bad_input_in_one_line(add, tmp_path):
    record = add()
    assert call_here(make_tables.main, "--results", tmp_path, "arrow", "arrow-demo").status == 0
    done = call_here(make_tables.main, "--results", tmp_path, "--check", "arrow", "arrow-demo")
    assert (done.status, "up to date" in done.output) == (0, True)
    path, missing = (tmp_path / f"arrow/table.{kind}" for kind in ("md", "csv"))
    path.write_text(path.read_text().replace("| 0.970 |", "| 0.971 |"))
    missing.unlink()
    done = call_here(make_tables.main, "--results", tmp_path, "--check", "arrow")
    assert done.output.splitlines() == [f"stale: {stale}; run: make tables" for stale in (path, missing)]
    assert done.status == 1 and not missing.exists()
    edit_line(record_path(record.experiment, tmp_path), lambda fields: fields.pop("id"))
    for arguments, words in ((["--results", tmp_path], "arrow-plstm.jsonl, line 1"), (["tabel"], "arrow-demo")):
        assert words in refused(make_tables.main, *arguments)
