"""A series in a CSV file is forecast by weights in a file; what cannot be is named in one line."""

import csv
import functools

import numpy as np
import pytest
from PIL import Image

import plstm
from plstm.models import SequenceConfig, SeriesConfig, build_model
from scripts import forecast
from tests.commands import call_here, refused

run = functools.partial(call_here, forecast.main)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    config = SeriesConfig(blocks=["attention", "gated_mlp"], dim=8, patch=4, context=16, mlp_width=8)
    plstm.save(build_model(config, 0), path)
    return path


@pytest.fixture
def series(tmp_path):
    path = tmp_path / "sales.csv"
    path.write_text("day,units,price\n1,5,1\n2,,2\n3,8,NaN\n4,6,4\n")
    return path


def test_quantiles_and_a_picture_lie_beside_the_series(weights, series):
    code, out, err = run(str(weights), str(series), "--horizon", "6", "--column", "units")
    assert (code, err) == (0, "") and out.split() == [
        str(series.with_name(f"sales-forecast.{e}")) for e in ("csv", "png")
    ]
    lines = list(csv.DictReader(series.with_name("sales-forecast.csv").read_text().splitlines()))
    found = np.array([[float(line[f"0.{level}"]) for line in lines] for level in range(1, 10)])
    np.testing.assert_allclose(found, plstm.load(weights).forecast([5, np.nan, 8, 6], 6), rtol=1e-6)
    assert [line["step"] for line in lines] == list("123456")
    assert Image.open(series.with_name("sales-forecast.png")).size[0] > 500
    run(str(weights), str(series), "--horizon", "6")
    lines = csv.DictReader(series.with_name("sales-forecast.csv").read_text().splitlines())
    last = [float(line["0.5"]) for line in lines]
    np.testing.assert_allclose(last, plstm.load(weights).forecast([1, 2, np.nan, 4], 6)[4], rtol=1e-6)


def test_an_empty_line_between_others_is_a_gap(tmp_path):
    path = tmp_path / "one.csv"
    for text in ("a\n5\n\n8\n\n\n", "a,b\n1,5\n\n1,8\n\n"):
        path.write_text(text)
        np.testing.assert_array_equal(forecast.read_column(path, None), [5, np.nan, 8])


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a\n1\n", ["--horizon", "0"], "sales.csv: horizon=0: must be from 1 to 16"),
        ("a\n1\ninf\n", [], "sales.csv: context: has a value beyond 1e+150"),
        ("\na\n1\n", [], "sales.csv: its first line is empty; it needs a header"),
        ("5\n-6.5\n7e3\n", [], "sales.csv: its first line has numbers alone; it needs a header"),
        ("a\n\n", [], "sales.csv: has no series; it needs a header and a line a step"),
        ("", [], "sales.csv: has no series"),
        ("a,b\n1,\n2,nan\n", ["--horizon", "4"], "sales.csv: context: none of the last 16 values is known"),
        ("a,b\n1,x\n", [], "sales.csv: line 2: 'x' is no number; name a column with --column"),
        ("a\n1;2\n", [], "sales.csv: line 2: '1;2' is no number; commas separate columns, points decimals"),
        ("a,b\n1,2,5\n", [], "sales.csv: line 2 has 3 cells, and the header 2; commas separate columns"),
        ("a,b\n1\n1,2\n", [], "sales.csv: line 2 has 1 cells, and the header 2"),
        ("a,b\n1,2\n", ["--column", "c"], "--column c: "),
        (b"\xff\xfe", [], "sales.csv: not a CSV file that can be read"),
    ],
)
def test_bad_series_are_named_and_nothing_is_written(weights, series, text, options, words):
    series.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refused(forecast.main, weights, series, "--horizon", "6", *options)
    assert [path.name for path in series.parent.iterdir()] == ["sales.csv"]


def test_a_model_of_tokens_is_refused(tmp_path, series):
    path = tmp_path / "tokens.safetensors"
    plstm.save(build_model(SequenceConfig(dim=8), 0, {"vocabulary": 2, "classes": 2}), path)
    assert "this model of family sequence forecasts no series" in refused(forecast.main, path, series)
