"""The definition of a results table: a file of `configs/tables`, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plstm.errors import UserError

FREE = ("loop", "model.method")  # keys by which a row's runs may differ from its experiment, beside the swept ones


@dataclass
class Row:
    """A model of the table and the experiment that trains it.

    `paper` is None where nothing is published, else {last part of `select.over`: the paper's best value, split:
    [mean, +-]}; in a table of percentages {"parameters", "flops": the paper's words, split: the percentage}.
    `init_from` is the experiment of an earlier row, whose run of the same swept values this row fine-tunes. `require`
    adds to the table's; `sweep` takes the place of the table's for the keys that it names.
    """

    name: str = MISSING
    experiment: str = MISSING
    paper: dict[str, Any] | None = None
    init_from: str | None = None
    require: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class Folds:
    """What makes a table one of cross-validations, `plstm.results.fold_tables`: two of its swept keys.

    `fold` tells the runs of a cross-validation apart; `over` has the values that are the table's columns. With
    `choose_once` other seeds run only the chosen value of `select.over`, once one seed is whole with every value.
    """

    fold: str = MISSING
    over: str = MISSING
    choose_once: bool = False


@dataclass
class Reference:
    """Another model's published figures, as the paper prints them; `accuracy` maps splits to percentages."""

    name: str = MISSING
    epochs: str = MISSING
    parameters: str = MISSING
    flops: str = MISSING
    accuracy: dict[str, float] = MISSING


@dataclass
class Select:
    """Choose one value of the swept key `over` of a model: highest mean over seeds of a last-step metric of a split."""

    split: str = MISSING
    metric: str = MISSING
    over: str = MISSING


@dataclass
class Figure:
    """The training-curve figure: `panels` maps splits to titles, `baseline` names one entry of the baseline file.

    `paper_curves` is a CSV of the paper's mean curves with the columns row, split, epoch, accuracy.
    """

    panels: dict[str, str] = MISSING
    baseline: str | None = None
    paper_curves: str | None = None


@dataclass
class TableDefinition:
    """A file of `configs/tables`.

    `columns` maps splits to headers; `sweep` maps config keys to the values run for every row; `require` maps config
    keys to the value that every record of the table must have; `baselines` and `figure.paper_curves` are paths below
    the results folder. `digits` are those after the point, of percentages where `percent`. `costs` adds what a row's
    experiment says of itself: pixels, epochs, parameters and multiply-adds.
    """

    name: str = MISSING
    title: str = MISSING
    caption: str = MISSING
    columns: dict[str, str] = MISSING
    rows: list[Row] = MISSING
    sweep: dict[str, list[Any]] = MISSING
    select: Select | None = None
    require: dict[str, Any] = field(default_factory=dict)
    baselines: str | None = None
    chance: float | None = None
    notes: list[str] = field(default_factory=list)
    figure: Figure | None = None
    percent: bool = False
    digits: int = 3
    costs: bool = False
    folds: Folds | None = None
    references: list[Reference] = field(default_factory=list)

    @property
    def swept_name(self) -> str | None:
        """The short name of the chosen hyperparameter, such as `peak_lr`, or None where nothing is chosen."""
        return self.select.over.rpartition(".")[2] if self.select else None


def load_table(path: Path) -> TableDefinition:
    """Read a table definition; UserError naming the file and a key that is unknown, missing, ill-typed or wrong."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: no such table; there are: {known}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(TableDefinition), OmegaConf.load(path))
        table = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: key {error.full_key or error.key}: {error.msg.splitlines()[0]}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    _check_table(table, path)
    return table


def _check_table(table: TableDefinition, path: Path) -> None:
    if table.name != path.stem:
        raise UserError(f"{path}: key name is {table.name!r}; it must be the file's name")
    if table.select and table.select.over not in table.sweep:
        raise UserError(f"{path}: key select.over is {table.select.over!r}, which sweep does not list")
    for key in ("name", "experiment"):
        values = [getattr(row, key) for row in table.rows]
        if len(set(values)) < len(values):
            raise UserError(f"{path}: key rows: two rows have the same {key}")
    _check_sweeps(table, path)
    known: set[str] = set()
    for index, row in enumerate(table.rows):
        _check_paper(table, row, f"{path}: key rows[{index}].paper")
        if row.init_from not in {None, *known}:
            raise UserError(f"{path}: key rows[{index}].init_from: no earlier row has experiment {row.init_from!r}")
        known.add(row.experiment)
    for index, model in enumerate(table.references):
        if not (table.percent and table.costs) or set(model.accuracy) != set(table.columns):
            raise UserError(
                f"{path}: key references[{index}] needs the table's percent and costs, and the accuracy of every column"
            )


def _check_sweeps(table: TableDefinition, path: Path) -> None:
    for index, row in enumerate(table.rows):
        if unknown := row.sweep.keys() - table.sweep.keys():
            raise UserError(f"{path}: key rows[{index}].sweep: the table does not sweep {min(unknown)}")
    for key in ("fold", "over") if table.folds else ():
        if (value := getattr(table.folds, key)) not in table.sweep:
            raise UserError(f"{path}: key folds.{key} is {value!r}, which sweep does not list")
    if table.folds and list(table.columns) != table.sweep[table.folds.over]:
        raise UserError(f"{path}: key columns must have the values of sweep.{table.folds.over}, in their order")


def _check_paper(table: TableDefinition, row: Row, where: str) -> None:
    for key, value in (row.paper or {}).items():
        numbers = [type(number) for number in value] if isinstance(value, list) else type(value)
        if key == table.swept_name or (table.costs and key in ("parameters", "flops") and numbers is str):
            continue
        wanted, words = (float, "a percentage") if table.percent else ([float, float], "[mean, +-]")
        if key not in table.columns or numbers != wanted:
            raise UserError(f"{where}.{key} must be {words} for a split of columns")


def load_tables(folder: Path, names: Sequence[str] = ()) -> list[TableDefinition]:
    """The tables of a folder by name, all of them where no name is given, in alphabetical order."""
    paths = [folder / f"{name}.yaml" for name in names] or sorted(folder.glob("*.yaml"))
    return [load_table(path) for path in paths]


def check_overrides(table: TableDefinition, overrides: Sequence[str]) -> None:
    """Raise UserError for an override that is not key=value, or that the table's runs must not have."""
    from plstm.config import OUTSIDE_ID  # with JAX, which those who only read definitions do without

    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise UserError(f"override {override!r} must be key=value")
        own = {key for row in table.rows for key in row.require}
        if key in {"experiment", "init_from", "report.table", "report.row", *table.sweep, *table.require, *own}:
            raise UserError(f"override {override!r}: table {table.name} sets {key} itself; leave it out")
        if not is_part(key, (*OUTSIDE_ID, *FREE)):
            raise UserError(
                f"override {override!r}: table {table.name} is for its experiments as they are; leave it out, or type "
                "python train.py with report.table=null report.row=null"
            )


def is_part(key: str, of: Sequence[str]) -> bool:
    """Whether a dotted key is one of these or in one of these groups."""
    return any(f"{key}.".startswith(f"{other}.") for other in of)
