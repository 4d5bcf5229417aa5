import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from plstm.results.typesetting import DASH

from plstm.errors import UserError
from plstm.results.definitions import Reference, load_table
from plstm.results.intervals import t_interval
from plstm.results.records import read_records, write_record
from plstm.results.tables import render_table, stale_files, table_rows, write_table
from plstm.runs.cost import experiment_cost

from .conftest import ROOT, example_record


@pytest.fixture
def arrow():
    return load_table(ROOT / "configs/tables/arrow.yaml")


def rendered(table, results):
    files = render_table(table, read_records(results), results)
    return {path.suffix[1:]: data.decode() for path, data in files.items()}


def markdown_cells(text, model):
    lines = [line for line in text.splitlines() if re.match(rf"\| \[?{re.escape(model)}[\] (]", line)]
    return [cell.strip() for cell in lines[0].strip("|").split(" | ")]


def make_tables(*arguments):
    command = [sys.executable, "scripts/make_tables.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_learning_rate_is_chosen_on_val_and_not_on_test(arrow, add, tmp_path):
    for seed, better in ((43, 0.0), (44, 0.01)):
        add(seed=seed, lr=1e-4, val=0.95, test=0.99, test_ext=0.99)
        add(seed=seed, lr=3e-4, val=0.96 + better, test=0.90 + better, test_ext=0.70)
        add(seed=seed, lr=1e-3, val=0.93, test=0.98, test_ext=0.98)
    row = table_rows(arrow, read_records(tmp_path))[0][0]
    assert [run.config_value("optim.peak_lr") for run in row.chosen] == [3e-4, 3e-4]
    assert row.ours("test") == t_interval([0.90, 0.91])
    assert row.difference("test") == pytest.approx(0.905 - 0.972)
    assert (len(row.runs), row.planned) == (6, 15)


def test_cells(arrow, add, tmp_path):
    runs = [add(seed=seed, test=0.970 + 0.002 * (seed - 43), test_ext=0.75) for seed in range(43, 48)]
    single = add(experiment="arrow/vit", row="ViT", lr=3e-4, test=0.92, test_ext=0.71)
    text = rendered(arrow, tmp_path)
    cells = markdown_cells(text["md"], "pLSTM")
    assert cells[0] == "[pLSTM](../../configs/experiment/arrow/plstm.yaml) (5 of 15 runs)"
    links = " ".join(f"[{run.seed}](../runs/{run.id}.json)" for run in runs)
    assert cells[1:6] == ["0.0001", "0.0001", f"0.974 ± 0.003 (n=5: {links})", "0.972 ± 0.003", "+0.002"]
    assert cells[6:9] == [f"0.750 ± 0.000 (n=5: {links})", "0.778 ± 0.031", "-0.028"]
    assert cells[9:] == ["50", "1500", "1.00", "0123456"]
    assert markdown_cells(text["md"], "ViT")[3] == f"0.920 (n=1: [43](../runs/{single.id}.json))"
    for target in re.findall(r"\]\((\.\./(?:runs|curves)/[^)]+)\)", text["md"]):
        assert (tmp_path / "tables" / target).resolve().is_file()
    assert (
        r"pLSTM (5 of 15 runs) & 0.0001 & 0.0001 & $0.974 \pm 0.003$ (n=5) & $0.972 \pm 0.003$ & $+0.002$"
        in text["tex"]
    )
    line = next(line for line in csv.DictReader(io.StringIO(text["csv"])) if line["model"] == "pLSTM")
    assert float(line["test"]) == pytest.approx(0.974, abs=1e-12)
    assert float(line["test_interval"]) == pytest.approx(t_interval([0.970, 0.972, 0.974, 0.976, 0.978]).half_width)
    assert line["runs"].split() == [run.id for run in runs]


def test_a_complete_row_does_not_say_how_many_runs(arrow, add, tmp_path):
    for seed in arrow.sweep["seed"]:
        for lr in arrow.sweep["optim.peak_lr"]:
            add(seed=seed, lr=lr)
    assert (
        markdown_cells(rendered(arrow, tmp_path)["md"], "pLSTM")[0]
        == "[pLSTM](../../configs/experiment/arrow/plstm.yaml)"
    )


def test_rows_not_run_are_dashes_beside_the_paper(arrow, tmp_path):
    text = rendered(arrow, tmp_path)
    assert markdown_cells(text["md"], "ViT")[1:] == [
        *[DASH, "0.0003", DASH, "0.915 ± 0.019", DASH, DASH, "0.707 ± 0.014", DASH],
        *[DASH] * 4,
    ]
    assert set(markdown_cells(text["md"], "pLSTM (gates as printed)")[1:]) == {DASH}
    assert "## Runs" not in text["md"]


def test_baselines_stand_below_chance(arrow, tmp_path):
    assert "baselines (baselines/arrow-192.json, not measured yet)" in rendered(arrow, tmp_path)["md"]
    path = tmp_path / "baselines/arrow-192.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"baselines": [{"name": "arrow direction only", "val": 0.774, "test": 0.7754}]}))
    text = rendered(arrow, tmp_path)["md"]
    cells = markdown_cells(text, "arrow direction only")
    assert [cell for cell in cells[1:] if cell != DASH] == ["0.775"]
    assert cells[3] == "0.775" and markdown_cells(text, "chance")[3] == "0.500"
    assert text.index("| [ViT]") < text.index("| chance") < text.index("| arrow direction")
    path.write_text(json.dumps({"baselines": [{"name": "arrow direction only", "test": "high"}]}))
    with pytest.raises(UserError, match=r"arrow-192.json: field baselines.0.test must be a finite number"):
        rendered(arrow, tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match=r"arrow-192.json must be"):
        rendered(arrow, tmp_path)


def test_a_table_without_published_figures_has_no_paper_column(tmp_path):
    text = rendered(load_table(ROOT / "configs/tables/arrow-demo.yaml"), tmp_path)
    header = next(line for line in text["md"].splitlines() if line.startswith("| Model"))
    assert "Paper" not in header and "peak_lr" not in header
    assert "REDUCED" in text["md"].splitlines()[0] and "not comparable with the paper's table" in text["md"]


def test_records_of_other_tables_do_not_enter(arrow, add, tmp_path):
    add(table="arrow-reduced")
    add(table=None, row=None, seed=44)
    assert all(not row.runs for row in table_rows(arrow, read_records(tmp_path))[0])


@pytest.mark.parametrize(("group", "key", "value"), [("data", "size", 48), ("optim", "epochs", 5.0)])
def test_a_reduced_record_is_refused(arrow, tmp_path, group, key, value):
    record = example_record()
    config = {**record.config, group: {**record.config[group], key: value}}
    write_record(replace(record, config=config), [], tmp_path)
    with pytest.raises(UserError, match=rf"runs/{record.id}.json: {group}.{key} is {value}, but table arrow is for"):
        rendered(arrow, tmp_path)


def test_a_record_of_a_changed_experiment_is_refused(arrow, add, tmp_path):
    swept = example_record().overrides
    record = add(overrides=[*swept, "loop.log_every=7", "model.method=recurrent"])
    assert table_rows(arrow, [record])[0][0].runs
    record = add(overrides=[*swept, "model.mlp_ratio=2"])
    with pytest.raises(UserError, match=rf"runs/{record.id}.json: was run with model.mlp_ratio=2, but table arrow"):
        rendered(arrow, tmp_path)


@pytest.mark.parametrize("fields", [{"row": "pLSTM!"}, {"experiment": "arrow/mamba"}, {"experiment": "arrow/vit"}])
def test_a_record_without_its_row_is_refused(arrow, add, tmp_path, fields):
    add(**fields)
    with pytest.raises(UserError, match="table arrow has no row"):
        rendered(arrow, tmp_path)


def test_two_records_of_one_run_are_refused(arrow, add, tmp_path):
    record = add()
    config = {**record.config, "loop": {"log_every": 7}}
    write_record(replace(record, id="0123456789ab", config=config), [], tmp_path)
    with pytest.raises(UserError, match="the same run of table arrow with different loop; keep one"):
        rendered(arrow, tmp_path)


def test_a_record_outside_the_sweep_is_noted_and_not_counted(arrow, add, tmp_path):
    add()
    outside = add(seed=99, test=0.1)
    text = rendered(arrow, tmp_path)["md"]
    assert f"Not counted, because the sweep of this table does not list their values: runs/{outside.id}.json." in text
    assert "0.970 (n=1: [43]" in text


@pytest.mark.parametrize("dirty", [True, None])
def test_dirty_records_are_marked(arrow, add, tmp_path, dirty):
    add()
    clean = rendered(arrow, tmp_path)["md"]
    add(dirty=dirty)
    marked = rendered(arrow, tmp_path)["md"]
    assert "0.970\\* (n=1" in marked and "0123456\\*" in marked and "may differ from the commit" in marked
    assert "\\*" not in clean and "may differ from the commit" not in clean


@pytest.fixture
def reduced():
    """The first model's two rows, with a published figure, and another model."""
    table = load_table(ROOT / "configs/tables/imagenet-reduced.yaml")
    pretraining, finetuning = table.rows[:2]
    finetuning = replace(finetuning, paper={"parameters": "6M", "flops": "1.4G", "test": 75.2})
    other = Reference("DeiT & Co", "300", "7M", "–", {"test": 72.25})
    return replace(table, rows=[pretraining, finetuning], references=[other])


def test_percentages_costs_and_the_epochs_of_both_stages(reduced, add, tmp_path):
    pretraining, finetuning = reduced.rows
    start = add(experiment=pretraining.experiment, row=pretraining.name, table=reduced.name, test=0.5)
    run = add(
        experiment=finetuning.experiment, row=finetuning.name, table=reduced.name, test=0.7123, init_from=start.id
    )
    text = rendered(reduced, tmp_path)
    header = next(line for line in text["md"].splitlines() if line.startswith("| Model"))
    titles = ["Parameters", "Parameters (paper)", "Multiply-adds", "FLOPS (paper)", "Test acc.", "Paper", "Difference"]
    assert header.startswith(f"| Model | Pixels | Epochs | {' | '.join(titles)} | Images/s")
    cost, initial = (experiment_cost(row.experiment) for row in (finetuning, pretraining))
    assert (initial.pixels, cost.pixels) == (64, 80)
    assert markdown_cells(text["md"], finetuning.name + "]")[1:10] == [
        *["80", f"{initial.epochs:g}+{cost.epochs:g}"],
        *[f"{cost.parameters:,}", "6M", f"{cost.flops / 2e9:.3g}G", "1.4G"],
        *[f"71.2 (n=1: [43](../runs/{run.id}.json))", "75.2", "-4.0"],
    ]
    assert markdown_cells(text["md"], "DeiT & Co")[1:10] == [DASH, "300", DASH, "7M", DASH, "–", DASH, "72.2", DASH]
    assert markdown_cells(text["md"], "chance")[7] == "10.0"
    lines = {line["model"]: line for line in csv.DictReader(io.StringIO(text["csv"]))}
    line = lines[finetuning.name]
    assert float(line["test"]) == pytest.approx(71.23) and float(line["test_difference"]) == pytest.approx(-3.97)
    assert int(line["multiply_adds"]) == cost.flops / 2 and line["init_from"] == pretraining.experiment
    assert float(lines["chance"]["test"]) == 10 and float(lines["DeiT & Co"]["test_paper"]) == 72.25
    body = [line for line in text["tex"].splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in body}) == 1 and r"DeiT \& Co" in text["tex"]


@pytest.mark.parametrize("start", ["0123456789ab", None])
def test_a_run_fine_tuned_from_another_run_than_the_table_s_is_refused(reduced, add, tmp_path, start):
    pretraining, finetuning = reduced.rows
    if start:
        add(experiment=pretraining.experiment, row=pretraining.name, table=reduced.name)
    add(experiment=finetuning.experiment, row=finetuning.name, table=reduced.name, init_from="0123456789ab")
    with pytest.raises(UserError, match=f"fine-tunes 0123456789ab, but .* {'is runs/' if start else 'has no record'}"):
        rendered(reduced, tmp_path)


def test_a_row_s_own_requirements_are_asked_of_its_records(reduced, add, tmp_path):
    row = replace(reduced.rows[0], require={"optim.epochs": 400})
    add(experiment=row.experiment, row=row.name, table=reduced.name)
    with pytest.raises(UserError, match="field config has no key 'optim.epochs'"):
        rendered(replace(reduced, rows=[row]), tmp_path)


def test_latex_is_escaped(tmp_path, arrow):
    tex = rendered(replace(arrow, caption="50% of_it & {all} ± 1 #2 ~ ^ \\"), tmp_path)["tex"]
    escaped = r"50\% of\_it \& \{all\} $\pm$ 1 \#2 \textasciitilde{} \textasciicircum{} \textbackslash{}"
    assert escaped in tex
    header, *rows = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {header.count("&")}
    assert len(re.search(r"begin{tabular}{(\w+)}", tex)[1]) == header.count("&") + 1


def test_same_records_same_bytes_in_any_order(arrow, add, tmp_path):
    for seed in (43, 44, 45):
        add(seed=seed, test=0.9 + 0.0123 * (seed - 43))
    write_table(arrow, read_records(tmp_path), tmp_path)
    first = {path: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    write_table(arrow, list(reversed(read_records(tmp_path))), tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "tables").iterdir()} == first
    assert {path.suffix for path in first} == {".md", ".csv", ".tex"}


def test_check_finds_a_changed_digit_and_a_missing_file(arrow, add, tmp_path):
    add()
    paths = write_table(arrow, read_records(tmp_path), tmp_path)
    assert stale_files(arrow, read_records(tmp_path), tmp_path) == []
    paths[0].write_text(paths[0].read_text().replace("0.970 (n=1", "0.971 (n=1"))
    paths[2].unlink()
    done = make_tables("--results", tmp_path, "--check", "arrow")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"missing: {paths[2]}", f"stale: {paths[0]}", "run: make tables"]


def test_script_writes_what_check_accepts(add, tmp_path):
    add()
    assert make_tables("--results", tmp_path, "arrow", "arrow-demo").returncode == 0
    done = make_tables("--results", tmp_path, "--check", "arrow", "arrow-demo")
    assert (done.returncode, "up to date" in done.stdout) == (0, True)
    add(test=0.98)
    assert make_tables("--results", tmp_path, "--check", "arrow").returncode == 1


def test_script_reports_bad_input_in_one_line(add, tmp_path):
    record = add()
    (tmp_path / "runs" / f"{record.id}.json").write_text("{}")
    for arguments, words in ((["--results", tmp_path], f"{record.id}.json"), (["tabel"], "arrow-demo")):
        done = make_tables(*arguments)
        assert done.returncode == 2 and done.stdout == ""
        assert words in done.stderr and len(done.stderr.splitlines()) == 1
