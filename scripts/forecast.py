"""Forecast a series: nine quantiles of each step, as a CSV file and a picture.

    python scripts/forecast.py results/weights/series-gdn.safetensors sales.csv --horizon 24
    python scripts/forecast.py 1f392a sales.csv --column units --horizon 24    # a run's folder or id; a column by name

The CSV file has a header and a line a step, oldest first; an empty cell is a gap. Its last column is taken unless
--column names one. Writes <series>-forecast.csv and .png beside it. Exit status: 0, or 2 for bad input.
"""

import csv
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from plstm.drawing import new_figure, save, style
from plstm.errors import UserError, first_line, run_script
from plstm.files import write_errors, write_file
from plstm.models.series import SeriesModel
from plstm.runs.pictures import draw_forecast
from plstm.runs.weights import from_checkpoint
from scripts.common import Parser, add_source

SHOWN = 4  # so many horizons of the series are drawn
SEPARATORS = "commas separate columns, points decimals"
GAPS = ("", "nan", "na", "null")


def read_column(path: Path, column: str | None) -> np.ndarray:
    """float64 [lines], NaN for empty ones between others; UserError for what cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            names, *lines = [*csv.reader(file)] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV file that can be read ({first_line(error)})") from error
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path}: has no series; it needs a header and a line a step")
    header = [name.strip() for name in names]
    if not header:
        raise UserError(f"{path}: its first line is empty; it needs a header")
    if all(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell, re.IGNORECASE) for cell in header):
        raise UserError(f"{path}: its first line has numbers alone; it needs a header above them")
    if column is not None and column not in header:
        raise UserError(f"--column {column}: {path} has {', '.join(header)}")
    place = header.index(column) if column is not None else len(header) - 1
    values = []
    remedy = "name a column with --column" if len(header) > 1 else SEPARATORS
    for number, cells in enumerate(lines, start=2):
        cells = cells or [""] * len(header)  # an empty line is a gap
        if len(cells) != len(header):
            counts = f"{len(cells)} cells, and the header {len(header)}"
            raise UserError(f"{path}: line {number} has {counts}; {SEPARATORS}")
        cell = cells[place].strip()
        try:
            values.append(np.nan if cell.lower() in GAPS else float(cell))
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {cell!r} is no number; {remedy}") from error
    return np.array(values)


def main() -> None:
    parser = Parser(__doc__)
    add_source(parser)
    parser.add_argument("series", type=Path, help="a CSV file")
    parser.add_argument("--horizon", type=int, default=24, help="steps to forecast")
    parser.add_argument("--column", help="of the CSV file; the last one unless given")
    arguments = parser.parse_args()
    path = arguments.series
    series = read_column(path, arguments.column)
    model = from_checkpoint(arguments.weights, runs=arguments.runs)
    if not isinstance(model, SeriesModel):
        raise UserError(f"{arguments.weights}: this model of family {model.info.config.family} forecasts no series")
    try:
        quantiles = model.forecast(series, arguments.horizon)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    out = path.with_name(f"{path.stem}-forecast.csv")
    lines = [",".join(["step", *(f"0.{level}" for level in range(1, 10))])]
    lines += [
        ",".join([str(step), *(f"{value:.8g}" for value in row)]) for step, row in enumerate(quantiles.T, start=1)
    ]
    with style(), write_errors(out, "choose another place for the series"):
        figure = new_figure(7.0, 2.9)
        axis = figure.subplots()
        draw_forecast(axis, series[-SHOWN * arguments.horizon :], quantiles)
        axis.set_xlabel("steps from the end of the series")
        figure.legend(fontsize=7, ncols=4, loc="outside upper center")  # over the series it would hide a part
        write_file(out, ("\n".join(lines) + "\n").encode())
        print(out)
        print(save(figure, out.with_suffix(".png")))


if __name__ == "__main__":
    run_script(main)
