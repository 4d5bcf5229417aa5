import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from plstm.errors import UserError
from plstm.studies import figures
from plstm.studies.definitions import load_table
from plstm.studies.figures import draw_table
from plstm.studies.probes import points_by_size, read_probes
from plstm.studies.records import read_records, record_path, write_record
from plstm.studies.sweeps import t_interval
from scripts import make_tables
from tests.commands import ROOT, call_here

from .conftest import TABLES, example_curve, example_record, rendered, texts_of


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Function of a table: the figures of what is in `tmp_path`, by name, not written."""

    def draw(table):
        made = {}
        monkeypatch.setattr(figures, "save", lambda figure, path: made.update({path.stem: figure}))
        draw_table(table, read_records(tmp_path), tmp_path)
        return made

    return draw


def lines_of(axis):
    return {line.get_label(): line for line in axis.lines}


def test_curves_have_a_panel_a_group_and_split_with_band_and_baseline(arrow, add, drawn, tmp_path):
    assert drawn(arrow) == {}
    for seed in (43, 44, 45):
        add(seed=seed)
    add(experiment="arrow/vit", lr=3e-4, val=0.91)
    add(experiment="arrow/mamba2d")
    (tmp_path / "baselines").mkdir()
    baseline = {"name": "arrow direction only", "val": 0.775, "val_ext": 0.633}
    (tmp_path / "baselines/arrow-192.json").write_text(json.dumps({"baselines": [baseline]}))
    (figure,) = drawn(arrow).values()
    titles = [
        f"{group}, {split} pixels" for group in ("pLSTM and ViT", "Mamba in two dimensions") for split in (192, 384)
    ]
    assert [axis.get_title() for axis in figure.axes] == titles
    lines = lines_of(figure.axes[0])
    assert set(lines) == {"pLSTM (n=3)", "ViT (n=1)", "arrow direction only"} and len(figure.axes[0].collections) == 1
    assert lines["pLSTM (n=3)"].get_color() == figures.COLOURS["pLSTM"]
    assert lines["arrow direction only"].get_ydata()[0] == 0.775
    before = lines["pLSTM (n=3)"].get_ydata().tolist()
    (band,) = figure.axes[0].collections
    of_seeds = [[point[4] for point in example_curve(0.97, shift) if point[2] == "val"] for shift in (-800, -400, 0)]
    mean, half_width, _ = t_interval([curve[10] for curve in of_seeds])
    corners = band.get_paths()[0].vertices
    assert sorted({*corners[corners[:, 0] == 27.5, 1]}) == pytest.approx([mean - half_width, mean + half_width])
    add(lr=1e-3, val=0.9)  # a learning rate that is not chosen changes nothing
    assert lines_of(drawn(arrow)["curves"].axes[0])["pLSTM (n=3)"].get_ydata().tolist() == before


def test_each_figure_says_what_its_runs_are(add, drawn):
    table = load_table(TABLES / "arrow-48.yaml")
    add(experiment=table.rows[0].experiment, table=table.name, lr=1e-3)
    title = drawn(table)["curves"].get_suptitle()
    assert title.startswith(f"{table.title}\n{table.figure.small}\nMean over n runs") and "48-pixel" in title


def test_curves_of_the_papers_runs_stand_beside_ours(arrow, add, drawn, tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / arrow.figure.paper).write_bytes((ROOT / "results" / arrow.figure.paper).read_bytes())
    add()
    assert list(lines_of(drawn(arrow)["curves"].axes[1])) == ["pLSTM (n=1)", "pLSTM (paper)"]
    curves = figures._paper_curves(arrow, tmp_path)
    assert len(curves) == 3 * 6 and {len(curve) for curve in curves.values()} == {20}
    assert {row for row, _ in curves} <= {row.name for row in arrow.rows}
    last = curves["2DMamba", "val_ext"].iloc[-1]
    assert last["epoch"] == 50 and last["mean"] == pytest.approx(0.589, abs=5e-4)


def test_all_values_stand_beside_the_papers_numbers(add, drawn, tmp_path):
    table = load_table(TABLES / "arrow-small.yaml")
    for seed, lr, test_ext in ((43, 1e-3, 0.7), (44, 1e-3, 0.8), (43, 2e-3, 0.6)):
        assert "choices" not in drawn(table)  # which need two values of a row
        run = add(experiment="arrow_small/plstm", table=table.name, seed=seed, lr=lr, test_ext=test_ext)
    first, second = drawn(table)["choices"].axes
    ours, paper = (line for line in second.lines if len(line.get_xdata()) > 1 and line.get_linestyle() != "None")
    assert ours.get_xydata().tolist() == [[1e-3, 0.75], [2e-3, 0.6]]
    assert paper.get_xydata().tolist() == [[1e-4, 0.7784], [3e-4, 0.703], [1e-3, 0.679]]
    assert second.get_xlabel() == "Learning rate" and "ViT (paper, its size)" not in lines_of(
        first
    )  # which has no run of ours
    probe_file(tmp_path, run, 0.02)
    files = rendered(table, tmp_path)  # with the seeds of each value, chosen or not
    assert ",pLSTM,0.001,1,44,test_ext,0.8\n" in files["table.csv"]
    assert ",pLSTM,0.002,0,43,test_ext,0.6\n" in files["table.csv"]
    assert "pLSTM at 0.002,48,as given,43,accuracy,0.92\n" in files["probes.csv"]


def test_the_mean_curve_is_taken_where_all_runs_were_evaluated(arrow, add, drawn, tmp_path):
    add(seed=43, val=0.9)
    write_record(example_record(seed=44, val=0.7), example_curve(0.7)[:-4], tmp_path)  # without its last evaluation
    for axis, mean in zip(drawn(arrow)["curves"].axes, (0.8, 0.6), strict=True):
        points = lines_of(axis)["pLSTM (n=2)"].get_xydata()
        assert points[:, 0].tolist() == [2.5 * (n + 1) for n in range(19)]
        assert points[-1, 1] == pytest.approx(mean, abs=1e-4)


def test_a_missing_curve_is_named(arrow, add, tmp_path):
    record = add()
    records, path = read_records(tmp_path), record_path(record.experiment, tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=f"{path}: has no run {record.id}"):
        draw_table(arrow, records, tmp_path)


def test_script_draws_what_has_runs_the_same_byte_for_byte(add, tmp_path):
    add()
    done = call_here(make_tables.main, "arrow", "arrow-demo", "--results", tmp_path)
    assert done.status == 0, done.errors
    png = tmp_path / "arrow/curves.png"
    assert [line for line in done.output.splitlines() if line.startswith("drew")] == [f"drew {png}"]
    first = png.read_bytes()
    call_here(make_tables.main, "arrow", "--results", tmp_path)
    assert png.read_bytes() == first and Image.open(png).size[0] == 1200


def test_dots_lie_where_they_should(graphs, add_folds, drawn, tmp_path):
    add_folds("graphs/gin", "NCI1", 8, 43, count=9)
    assert drawn(graphs) == {}
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/graphs.json").write_text('{"baselines": [{"name": "majority class", "MUTAG": 0.665}]}')
    add_folds("graphs/plstm", "MUTAG", 4, 43, best=0.7, last=0.75)  # the n-th of ten folds has n / 100 more
    figure = drawn(graphs)["dots"]
    (axis,) = figure.axes  # NCI1 has no whole seed
    at = {label: line.get_xdata()[0] for label, line in lines_of(axis).items()}
    expected = {"ours, best epoch": 0.745, "ours, last epoch": 0.795, "paper": 0.8512, "majority class": 0.665}
    assert at == pytest.approx(expected)
    assert {"MUTAG", "pLSTM", "Test accuracy"} <= set(texts_of(figure)) and "GIN" not in texts_of(figure)
    add_folds("graphs/plstm", "MUTAG", 4, 44, best=0.6)
    figure = drawn(graphs)["dots"]
    assert "90% interval" in lines_of(figure.axes[0]) and "n = 2 seeds" in figure.get_suptitle()


def probe_file(folder, run, shift):
    def row(size, probe, accuracy):
        scores = {"accuracy": accuracy + shift, "balanced_accuracy": accuracy + shift}
        scores |= {"area_under_roc": 0.95} if shift else {}  # older files have none
        return {"canvas_pixels": size, "probe": probe, "images": 1000, "labelled_at": 0.5, **scores}

    rows = [row(48, "as given", 0.9), row(48, "arrow reversed", 0.8), row(64, "as given", 0.85)]
    rows += [row(96, "as given", 0.7), row(96, "arrow reversed", 0.6) | {"labelled_at": 0.049}]
    none = {"labelled_at": 0.0, "balanced_accuracy": None}
    rows += [row(size, "circle of another image", 0.6) | none for size in (48, 96)]
    path = folder / "probes" / f"{run.name}-{run.id}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"rows": rows}))
    return path


def test_probes_are_drawn_by_size_and_tabulated(arrow, add, drawn, tmp_path):
    runs = [add(seed=seed) for seed in (43, 44)]
    assert drawn(arrow).keys() == {"curves"}
    for run, shift in zip(runs, (0, 0.02), strict=True):
        path = probe_file(tmp_path, run, shift)
    (tmp_path / "baselines").mkdir()
    name = arrow.figure.baseline
    sizes = [row | {"name": name} for row in json.loads(path.read_text())["rows"] if row["probe"] == "as given"]
    baseline = {"baselines": [{"name": name, "test": 0.8}], "sizes": sizes}
    (tmp_path / "baselines/arrow-192.json").write_text(json.dumps(baseline))
    (axis,) = drawn(arrow)["sizes"].axes
    assert axis.get_xlabel() == "Canvas side (pixels)" and set(lines_of(axis)) == {"pLSTM (n=2)", name}
    files = rendered(arrow, tmp_path)
    table = files["probes.md"]
    assert "| pLSTM | 2 | 48 | 0.910 ± 0.063 | 0.810 ± 0.063 |" in table
    assert "| pLSTM | 2 | 48 | 0.950 (n=1) | 0.950 (n=1) |" in table.partition("Area under the ROC curve\n")[2]
    assert f"| {name} | 1 | 96 | 0.720 | – |" in table and f"| {name} | 1 | 64 |" not in table
    assert "| pLSTM | 2 | 96 | 0.710 ± 0.063 | – |" in table and "of another image" not in table  # too few images
    assert "| images: points at it / not |  | 96 | 500 / 500 | 49 / 951 |" in table
    scores = (
        pd.read_csv(io.StringIO(files["probes.csv"]))
        .set_index(["canvas", "probe", "seed", "metric"])["value"]
        .sort_index()
    )
    assert len(scores.groupby(level=[0, 1])) == 4 and scores[48, "arrow reversed", "n", "accuracy"] == 2
    given = scores.xs((48, "as given"))
    np.testing.assert_allclose([given["mean", "accuracy"], given["interval", "accuracy"]], [0.91, 0.06314], 1e-4)
    assert scores[64, "as given", "n", "area_under_roc"] == 1
    for run in runs:
        few = tmp_path / "probes" / f"{run.name}-{run.id}.json"
        few.write_text(few.read_text().replace('"images": 1000', '"images": 98'))
    table = rendered(arrow, tmp_path)["probes.md"]
    assert "| pLSTM | 2 | 48 |\n" in table and "as given |" not in table  # no score of fewer than 50 of a label
    path.write_text(path.read_text().replace('"images": 98', '"images": 100', 1))
    with pytest.raises(UserError, match="runs of table arrow were probed on different images"):
        rendered(arrow, tmp_path)
    path.write_text("half a fi")
    with pytest.raises(UserError, match=f"{path}: not a file of scores"):
        drawn(arrow)


def test_a_second_training_stands_for_a_run_that_was_not_probed(arrow, add, drawn, tmp_path):
    run, other = add(seed=43), add(seed=44)
    path = probe_file(tmp_path, run, 0.02)
    path.rename(path.with_name(f"{path.stem}-retrained.json"))
    assert read_probes([run, other], tmp_path).count == "n=1, all retrained"
    assert "pLSTM (n=1, all retrained)" in lines_of(drawn(arrow)["sizes"].axes[0])
    assert "pLSTM (n=1, all retrained)." in rendered(arrow, tmp_path)["probes.md"]
    probe_file(tmp_path, other, 0)
    assert read_probes([run, other], tmp_path).count == "n=2, 1 retrained"
    probe_file(tmp_path, run, 0)
    found = read_probes([run], tmp_path)  # its own scores where there are any
    assert found.count == "n=1" and points_by_size(found.rows[43])[0] == (48, 0.9)


def test_probes_of_another_kind_make_no_table_of_images(arrow, add, tmp_path):
    probe_file(tmp_path, add(seed=43), 0).write_text('{"scores": {"pass@1": 0.5}}')
    assert "probes.md" not in rendered(arrow, tmp_path)
