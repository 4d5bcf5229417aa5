import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from plstm.drawing import legend_below, new_figure
from plstm.errors import UserError
from plstm.studies import figures
from plstm.studies.figures import draw_table
from plstm.studies.probes import points_by_distance, points_by_size, read_probes
from plstm.studies.records import read_records, record_path
from plstm.studies.tables import render_table

from .conftest import ROOT, run_script, svg_texts


def drawn(table, folder):
    return draw_table(table, read_records(folder), folder)


def has_colour(image, colour):
    return (image == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum() > 20


def test_curves_show_a_line_a_model_with_band_chance_and_baseline(arrow, add, tmp_path):
    assert drawn(arrow, tmp_path) == []
    for seed in (43, 44, 45):
        add(seed=seed)
    add(experiment="arrow/vit", lr=3e-4, val=0.91)
    (tmp_path / "baselines").mkdir()
    baseline = {"name": "arrow direction only", "val": 0.775, "val_ext": 0.633}
    (tmp_path / "baselines/arrow-192.json").write_text(json.dumps({"baselines": [baseline]}))
    png, svg = drawn(arrow, tmp_path)
    assert (png, svg) == tuple(tmp_path / f"figures/arrow-curves.{kind}" for kind in ("png", "svg"))
    image = np.asarray(Image.open(png).convert("RGB"))
    assert image.shape[1] > 1200 and has_colour(image, "#0072B2") and has_colour(image, "#D55E00")
    assert not has_colour(image, "#009E73")
    texts = svg_texts(svg)
    titles = ["Training", "Validation", "Validation (ext.)"]
    assert [text for text in texts if text in titles] == titles and texts.count("Epoch") == 3
    for text in ("pLSTM (n=3)", "ViT (n=1)", "chance", "arrow direction only", "Accuracy"):
        assert texts.count(text) == 1
    assert svg.read_text().count("FillBetweenPolyCollection") == 3
    first = [png.read_bytes(), svg.read_bytes()]
    add(lr=1e-3, val=0.9)  # a learning rate that is not chosen changes nothing
    assert [path.read_bytes() for path in drawn(arrow, tmp_path)] == first


def test_curves_of_the_papers_runs_stand_beside_ours_or_alone(arrow, add, tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / arrow.figure.paper).write_bytes((ROOT / "results" / arrow.figure.paper).read_bytes())
    models = ["pLSTM", "ViT", "EfficientNet", "ViL (released grid)", "Mamba2D", "2DMamba"]
    for own in ([], ["pLSTM (n=1)"]):
        texts = svg_texts(drawn(arrow, tmp_path)[1])
        legend = texts[texts.index("chance") - len(models) - len(own) : texts.index("chance")]
        assert legend == [*own, *(f"{name} (paper)" for name in models)]
        add()
    curves = figures._paper_curves(arrow, tmp_path)
    assert len(curves) == 3 * len(models) and {len(curve) for curve in curves.values()} == {20}
    last = curves["arrow/2dmamba", "val_ext"].iloc[-1]
    assert last["epoch"] == 50 and last["mean"] == pytest.approx(0.589, abs=5e-4)


def test_the_mean_curve_is_taken_where_all_runs_were_evaluated(add, tmp_path):
    runs = [add(seed=seed, val=val) for seed, val in ((43, 0.9), (44, 0.7))]
    curves = figures._mean_curves(runs, tmp_path)
    assert len(curves["val"]) == 20 and curves["val"]["mean"].iloc[-1] == pytest.approx(0.8, abs=1e-4)
    assert set(curves) == {"train", "val", "val_ext"} and curves["val"]["x"].iloc[0] == 2.5


def test_a_missing_curve_is_named(arrow, add, tmp_path):
    record = add()
    records, path = read_records(tmp_path), record_path(record.experiment, tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=f"{path}: has no run {record.id}"):
        draw_table(arrow, records, tmp_path)


def test_script_draws_what_has_runs(add, tmp_path):
    add()
    done = run_script("make_tables", "arrow", "arrow-demo", "--results", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("drew")]
    assert lines == [f"drew {tmp_path}/figures/arrow-curves.{kind}" for kind in ("png", "svg")]


def test_dots_lie_where_they_should(graphs, add_folds, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(figures, "save", lambda figure, path: made.append(figure) or [])
    add_folds("graphs/plstm", "MUTAG", 4, 43, best=0.7, last=0.75)  # the n-th of ten folds has n / 100 more
    drawn(graphs, tmp_path)
    at = {line.get_label(): line.get_xdata()[0] for line in made[0].axes[0].lines}
    assert at == pytest.approx({"ours, best epoch": 0.745, "ours, last epoch": 0.795, "paper": 0.8512})


def test_dots_show_whole_seeds_beside_the_papers(graphs, add_folds, tmp_path):
    add_folds("graphs/gin", "NCI1", 8, 43, count=9)
    assert drawn(graphs, tmp_path) == []
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/graphs.json").write_text('{"baselines": [{"name": "majority class", "MUTAG": 0.665}]}')
    add_folds("graphs/plstm", "MUTAG", 4, 43)
    png, svg = drawn(graphs, tmp_path)
    assert png == tmp_path / "figures/graphs-dots.png" and png.stat().st_size > 1000
    shown = {"MUTAG", "pLSTM", "paper", "majority class", "ours, last epoch", "ours, best epoch", "Test accuracy"}
    assert shown <= set(svg_texts(svg)) and not {"GIN", "NCI1", "90% interval over seeds"} & set(svg_texts(svg))
    one_seed = svg.read_bytes()
    drawn(graphs, tmp_path)
    assert svg.read_bytes() == one_seed
    add_folds("graphs/plstm", "MUTAG", 4, 44, best=0.6)
    drawn(graphs, tmp_path)
    assert "90% interval over seeds" in svg_texts(svg)


def test_dots_of_a_table_without_sections(arrow, add, tmp_path):
    add()
    figure = arrow.figure.model_copy(update={"dots": True, "panels": {}})
    (_, svg) = drawn(arrow.model_copy(update={"figure": figure}), tmp_path)
    assert {"Test acc.", "ours, test acc. (ext.)", "paper", "chance", "pLSTM"} <= set(svg_texts(svg))


def probe_file(folder, run, shift):
    def row(size, probe, accuracy):
        bands = [{"from_pixels": 8 * n, "to_pixels": 8 * n + 8, "images": 60 * n, "accuracy": 0.9} for n in range(3)]
        scores = {"accuracy": accuracy + shift, "balanced_accuracy": accuracy + shift, "by_distance": bands}
        scores |= {"area_under_roc": 0.95} if shift else {}  # older files have none
        return {"canvas_pixels": size, "probe": probe, "images": 1000, "labelled_at": 0.5, **scores}

    rows = [row(48, "as given", 0.9), row(48, "arrow reversed", 0.8), row(64, "as given", 0.85)]
    rows += [row(96, "as given", 0.7), row(96, "arrow reversed", 0.6) | {"labelled_at": 0.049}]
    none = {"labelled_at": 0.0, "balanced_accuracy": None}
    rows += [row(size, "circle of another image", 0.6) | none for size in (48, 96)]
    path = folder / "probes" / f"{run.id}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"rows": rows}))
    return path


def test_probes_are_drawn_by_size_and_by_distance_and_tabulated(arrow, add, tmp_path):
    runs = [add(seed=seed) for seed in (43, 44)]
    assert not [path for path in drawn(arrow, tmp_path) if "sizes" in path.name]
    for run, shift in zip(runs, (0, 0.02), strict=True):
        path = probe_file(tmp_path, run, shift)
    (tmp_path / "baselines").mkdir()
    sizes = [row | {"name": "arrow only"} for row in json.loads(path.read_text())["rows"] if row["probe"] == "as given"]
    baseline = {"baselines": [{"name": "arrow only", "test": 0.8}], "sizes": sizes}
    (tmp_path / "baselines/arrow-192.json").write_text(json.dumps(baseline))
    for kind, label in (("sizes", "Canvas side (pixels)"), ("distances", "Distance between arrow and circle (pixels)")):
        (svg,) = (path for path in drawn(arrow, tmp_path) if path.name == f"arrow-{kind}.svg")
        texts = svg_texts(svg)
        assert {label, "Test accuracy", "pLSTM (n=2)", "arrow only", "chance"} <= set(texts)
    tables = render_table(arrow, read_records(tmp_path), tmp_path)
    table = tables[tmp_path / "tables/arrow-probes.md"].decode()
    assert "| pLSTM | 2 | 48 | 0.910 ± 0.063 | 0.810 ± 0.063 |" in table
    assert "| pLSTM | 2 | 48 | 0.950 (n=1) | 0.950 (n=1) |" in table.partition("Area under")[2]
    assert "| arrow only | 1 | 96 | 0.720 | – |" in table and "| arrow only | 1 | 64 |" not in table
    assert "| pLSTM | 2 | 96 | 0.710 ± 0.063 | – |" in table and "of another image" not in table  # too few images
    assert "| images: points at it / not |  | 96 | 500 / 500 | 49 / 951 |" in table
    scores = pd.read_csv(io.BytesIO(tables[tmp_path / "tables/arrow-probes.csv"])).set_index(["canvas_pixels", "probe"])
    assert len(scores) == 4 and scores.loc[(48, "arrow reversed"), "n"] == 2  # none of too few images
    np.testing.assert_allclose(scores.loc[(48, "as given"), ["accuracy", "accuracy_interval"]], [0.91, 0.06314], 1e-4)
    assert scores.loc[(64, "as given"), "area_under_roc_n"] == 1
    for run in runs:
        few = tmp_path / "probes" / f"{run.id}.json"
        few.write_text(few.read_text().replace('"images": 1000', '"images": 98'))
    table = render_table(arrow, read_records(tmp_path), tmp_path)[tmp_path / "tables/arrow-probes.md"].decode()
    assert "| pLSTM | 2 | 48 |\n" in table and "as given |" not in table  # no score of fewer than 50 of a label
    path.write_text(path.read_text().replace('"images": 98', '"images": 100', 1))
    with pytest.raises(UserError, match="runs of table arrow were probed on different images"):
        render_table(arrow, read_records(tmp_path), tmp_path)
    path.write_text("half a fi")
    with pytest.raises(UserError, match=f"{path}: not a file of scores"):
        drawn(arrow, tmp_path)


def test_a_second_training_stands_for_a_run_that_was_not_probed(arrow, add, tmp_path):
    run, other = add(seed=43), add(seed=44)
    path = probe_file(tmp_path, run, 0.02)
    path.rename(path.with_name(f"{run.id}-retrained.json"))
    assert read_probes([run, other], tmp_path).count == "n=1, 1 trained again"
    (svg,) = (path for path in drawn(arrow, tmp_path) if path.name == "arrow-sizes.svg")
    assert "pLSTM (n=1, 1 trained again)" in svg_texts(svg)
    tables = render_table(arrow, read_records(tmp_path), tmp_path)
    assert "pLSTM: n=1, 1 trained again." in tables[tmp_path / "tables/arrow-probes.md"].decode()
    probe_file(tmp_path, run, 0)
    found = read_probes([run, other], tmp_path)  # its own scores where there are any
    assert found.count == "n=1" and points_by_size(found.rows[0])[0] == (48, 0.9)


def test_points_of_too_few_images_are_not_drawn(add, tmp_path):
    rows = json.loads(probe_file(tmp_path, add(), 0).read_text())["rows"]
    assert points_by_distance(rows) == [(12, 0.9), (20, 0.9)]  # the first band has no image
    assert points_by_size(rows) == [(48, 0.9), (64, 0.85), (96, 0.7)]


@pytest.mark.parametrize(("length", "lines"), [(5, 1), (30, 2), (200, 4)])
def test_a_legend_is_as_wide_as_its_figure_at_most(length, lines):
    figure = new_figure(6, 3)
    axis = figure.subplots()
    for letter in "abcd":
        axis.plot([0], [0], label=letter * length)
    legend_below(figure, [axis], 4)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) == lines
    assert length == 200 or legend.get_window_extent().width <= figure.bbox.width
