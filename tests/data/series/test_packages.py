"""Real series: how files are read, and which wheels are refused. The packages themselves are not fetched here."""

import functools
import hashlib
import io
import lzma
import zipfile

import numpy as np
import pytest

from data.series import __main__ as program
from data.series import packages
from data.series.packages import SOURCES, Source, fetch, load_sets
from data.series.scoring import GROUPS, HORIZONS, SEASONS
from plstm.errors import UserError
from tests.commands import call_here, refused

command = functools.partial(call_here, program.main)
NAN = np.nan


def read(name, text):
    return SOURCES[name].read(text.encode() if isinstance(text, str) else text)


def test_what_is_declared_fits_together():
    assert len(SOURCES) == 38
    assert HORIZONS.keys() == SEASONS.keys() == {frequency for group in GROUPS.values() for frequency in group}
    assert {source.file.partition("/")[0] for source in SOURCES.values()} == packages.PACKAGES.keys()
    assert {name for name, source in SOURCES.items() if not source.is_counted} == {
        "seattle_normals",
        "san_francisco_normals",
    }


def test_missing_and_repeated_times():
    (values,) = read("page_views", "ts,y\n2020-01-01,1\n2020-01-03,3\n2020-01-03,9\n2020-01-05,5\n")
    np.testing.assert_array_equal(values, [1, NAN, 3, NAN, 5])


def test_a_module_is_parsed_and_not_run():
    source = 'raise SystemExit\n"""np.array([9])"""\ndef load():\n    rows = np.array([[1., 2.],\n [3, 4]][0])\n'
    with pytest.raises((StopIteration, ValueError)):  # no literal
        read("lynx", source)
    (values,) = read("lynx", 'raise SystemExit\ndef load():\n    """np.array([9])"""\n    x = np.array([1., -2, 3])\n')
    np.testing.assert_array_equal(values, [1, -2, 3])


def test_minutes_become_hours_with_gaps_where_all_minutes_are_missing():
    lines = [f"16/12/2006,x,{minute % 60},0,{'' if 96 <= minute < 156 else 240}" for minute in range(36 + 180)]
    header = "Date,Time,Global_active_power,Global_reactive_power,Voltage"
    power, volts = read("household", lzma.compress("\n".join([header, *lines]).encode()))
    np.testing.assert_allclose(power, [29.5] * 3)
    np.testing.assert_array_equal(volts, [240, NAN, 240])


def test_days_begin_after_the_minutes_that_fill_none():
    lines = ["Date,Time,Global_active_power,Reactive,Voltage"]
    lines += [f"x,x,{9 if minute < 396 else 1},0,{minute - 396}" for minute in range(396 + 1440)]
    power, volts = read("household_daily", lzma.compress("\n".join(lines).encode()))
    assert (power.tolist(), volts.tolist()) == ([1], [719.5])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bikes_daily", "count\n" + "9\n" * 12 + "1\n" * 24 + "2\n" * 24, [[24, 48]]),
        ("road", "date_time,traffic_volume\n2015-06-30 23:00,1\n2015-07-01 00:00,2\n2015-07-01 01:00,3\n", [[2, 3]]),
        ("equipment", "date,a\nx,1\ny,2\n", [[1, 2]]),
        ("employment", "month,a,b,change\nx,1,2,9\ny,3,4,9\n", [[1, 3], [2, 4]]),
        ("economy", "year,quarter,a\n1959,1,5\n1959,2,6\n", [[5, 6]]),
    ],
)
def test_where_series_begin(name, text, expected):
    assert [values.tolist() for values in read(name, text)] == expected


def test_car_parks_at_half_hours():
    head = "SystemCodeNumber,Capacity,Occupancy,LastUpdated"
    days = [f"2016-{month}-{day:02}" for month in (10, 12) for day in range(1, 31)]
    months = [f"{day} {8 + half // 2:02}:{half % 2 * 29:02}:50" for day in days for half in range(18)]
    lines = [f"A,9,{n},{time}" for n, time in enumerate(months)] + [f"few,9,1,{time}" for time in months[:99]]
    (values,) = read("parking", "\n".join([head, *lines]))
    np.testing.assert_array_equal(values[:540], range(540))
    assert len(values) == 91 * 18 and np.isnan(values[540:-540]).all()


def test_years_in_lines_and_series_one_after_another():
    (values,) = read("el_nino", "YEAR,JAN,FEB\n1950,1,2\n1951,3,4\n")
    np.testing.assert_array_equal(values, [1, 2, 3, 4])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.csv", "series_id,value\nb,1\nb,2\na,3\n")
    a, b = read("fuel", file.getvalue())
    assert (a.tolist(), b.tolist()) == ([3], [1, 2])


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A folder with the wheel of the only package, and the root of data sets."""
    path = tmp_path / "wheels" / "vega_datasets-0.9.0-py3-none-any.whl"
    path.parent.mkdir()
    file = "vega_datasets/_data/seattle-temps.csv"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(file, "date,temp\na,\nb,1.5\nc,\nd,2.5\n")
    known = {"vega_datasets": ("0.9.0", hashlib.sha256(path.read_bytes()).hexdigest())}
    monkeypatch.setattr(packages, "PACKAGES", known)
    source = Source("D", file, packages.columns("temp"))
    monkeypatch.setattr(packages, "SOURCES", {"seattle": source})
    monkeypatch.setenv("PLSTM_DATA", str(tmp_path))
    return path


def test_fetch_reads_wheels_of_a_folder_and_list_prints_them(wheel, tmp_path, monkeypatch):
    code, out, _ = command("fetch", "--wheels", str(wheel.parent))
    assert (code, out) == (0, f"{tmp_path / 'series.npz'}\n")
    code, _, err = command("list")
    assert (
        code == 2 and f"series.npz: its digest is {(own := err.split()[5][:-1])}, not {packages.DIGEST}; fetch" in err
    )
    monkeypatch.setattr(packages, "DIGEST", own)
    (each,) = load_sets(None)
    np.testing.assert_array_equal(each.series[0], [1.5, NAN, 2.5])  # without the gaps at its ends
    assert "1 sets, 1 series, 1 windows" in command("list")[1]


def test_wheels_that_are_refused(wheel, tmp_path):
    with pytest.raises(UserError, match=r"series\.npz: no such file; fetch it"):
        load_sets(None)
    content = wheel.read_bytes()
    wheel.write_bytes(content + b" ")
    with pytest.raises(UserError, match=r"vega_datasets-0\.9\.0-.*: its SHA-256 is "):
        fetch(None, wheel.parent)
    wheel.rename(wheel.with_name("vega_datasets-0.8.0-py3-none-any.whl"))
    with pytest.raises(UserError, match=r"vega_datasets-0\.8\.0-.*: version 0\.9\.0 of vega_datasets is needed"):
        fetch(None, wheel.parent)
    with pytest.raises(UserError, match="has no wheel of vega_datasets; version 0.9.0 is needed"):
        fetch(None, tmp_path)
    assert not (tmp_path / "series.npz").exists()
    (tmp_path / "series.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"series\.npz cannot be read .*fetch it"):
        load_sets(None)


def test_an_index_without_the_package_is_named_in_one_line(wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    refusal = refused(program.main, "fetch")
    assert refusal.startswith("pip download: ") and "--wheels FOLDER" in refusal
