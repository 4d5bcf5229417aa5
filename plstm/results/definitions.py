"""The definition of a results table: a file of `configs/tables`, read and checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError, model_validator

from plstm.errors import UserError
from plstm.results.records import PRIMARY_METRIC, Record, Strict, first_problem

FREE = ("loop", "model.method")  # keys by which a row's runs may differ from its experiment, beside the swept ones
COSTS = ("parameters", "flops")


class Measure(Strict):
    """A metric of a split at the last step or at the best one."""

    split: str
    at: Literal["last", "best"] = "last"
    metric: str = PRIMARY_METRIC

    @property
    def name(self) -> str:
        """Such as test, test_best, test_loss."""
        metric = "" if self.metric == PRIMARY_METRIC else f"_{self.metric}"
        return self.split + metric + ("_best" if self.at == "best" else "")

    def of(self, record: Record) -> float:
        """Its value in a record."""
        return record.metric(self.split, self.metric, self.at)


class Column(Measure):
    """A column of the table."""

    title: str


class Select(Measure):
    """Choose one value of the swept key `over` for each row and section: the one of the highest mean over seeds."""

    over: str


class Row(Strict):
    """A model of the table and the experiment that trains it.

    `paper` has the published numbers, each alone or as [mean, +-]: {column's name: ...}, or with sections {section: ...}
    for the first column; also the paper's best value under the last part of `select.over`, and with the table's `costs`
    its words under "parameters" and "flops". `init_from` is the experiment of an earlier row, whose run of the same swept
    values this row fine-tunes. `require` adds to the table's; `sweep` replaces the table's values of the keys it names.
    """

    name: str
    experiment: str
    paper: dict[str, Any] | None = None
    init_from: str | None = None
    require: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}


class Reference(Strict):
    """Another model's figures, as the paper prints them; `paper` maps column names to its numbers."""

    name: str
    epochs: str
    parameters: str
    flops: str
    paper: dict[str, float]


class Figure(Strict):
    """Which figures are drawn.

    `panels` maps splits to titles of training curves of `metric`, with one entry of the baseline file and the paper's mean
    curves (a CSV with the columns row, split, epoch, value). `dots` draws the table's columns beside the paper's numbers.
    """

    dots: bool = False
    panels: dict[str, str] = {}
    metric: str = PRIMARY_METRIC
    baseline: str | None = None
    paper_curves: str | None = None


class TableDefinition(Strict):
    """A file of `configs/tables`.

    `sweep` maps config keys to the values run for every row; `sections` is the swept key that has a part of the table for
    each value, `average_over` those that a seed is averaged over. With `choose_once` other seeds run only the chosen value
    of `select.over`, once one seed has all. `require` maps config keys to the value that every run must have. `baselines`
    and `figure.paper_curves` are paths below the results folder. `percent` shows 100 times the metrics. `costs` adds what
    a row's experiment says of itself: pixels, epochs, parameters and multiply-adds.
    """

    name: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    sweep: dict[str, list[Any]]
    sections: str | None = None
    section_titles: dict[str, str] = {}
    average_over: list[str] = []
    select: Select | None = None
    choose_once: bool = False
    require: dict[str, Any] = {}
    baselines: str | None = None
    chance: float | None = None
    notes: list[str] = []
    figure: Figure = Figure()
    percent: bool = False
    digits: int = 3
    costs: bool = False
    references: list[Reference] = []

    @property
    def swept_name(self) -> str | None:
        """The short name of the chosen key, such as `peak_lr`, or None where nothing is chosen."""
        return self.select.over.rpartition(".")[2] if self.select else None

    @property
    def scale(self) -> int:
        """What metrics are multiplied with."""
        return 100 if self.percent else 1

    @property
    def section_values(self) -> list[Any]:
        """One None without sections."""
        return self.sweep[self.sections] if self.sections else [None]

    def section_title(self, section: Any) -> str:
        """As the table shows it."""
        return self.section_titles.get(str(section), str(section))

    def paper(self, row: Row, column: Column, section: Any) -> list[float] | None:
        """The published [mean] or [mean, +-]."""
        key = column.name if self.sections is None else str(section) if column is self.columns[0] else None
        published = (row.paper or {}).get(key)
        return published if isinstance(published, list | None) else [published]

    @model_validator(mode="after")
    def _check(self) -> TableDefinition:
        for problem in (*self._wrong_keys(), *self._wrong_rows()):
            raise ValueError(problem)
        return self

    def _wrong_keys(self) -> Iterator[str]:
        swept = {"select.over": self.select and self.select.over, "sections": self.sections}
        swept |= {f"average_over[{n}]": key for n, key in enumerate(self.average_over)}
        for where, key in swept.items():
            if key is not None and key not in self.sweep:
                yield f"key {where} is {key!r}, which sweep does not list"
        if unknown := self.section_titles.keys() - set(map(str, self.section_values)):
            yield f"key section_titles: no section {min(unknown)}"
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            yield "key columns must name at least one metric, and none twice"
        if self.choose_once and self.select is None:
            yield "key choose_once needs select"
        if self.figure.baseline and self.baselines is None:
            yield "key figure.baseline needs baselines"
        if self.sections and (self.costs or self.figure.panels):
            yield "key costs and key figure.panels are not for a table with sections"
        for index, model in enumerate(self.references):
            if not self.costs or set(model.paper) != set(names):
                yield f"key references[{index}] needs the table's costs, and a number for every column"

    def _wrong_rows(self) -> Iterator[str]:
        for key in ("name", "experiment"):
            values = [getattr(row, key) for row in self.rows]
            if not values or len(set(values)) < len(values):
                yield f"key rows: there must be some, and no two with the same {key}"
        published = list(map(str, self.section_values)) if self.sections else [column.name for column in self.columns]
        for index, row in enumerate(self.rows):
            where = f"key rows[{index}]"
            if row.init_from not in {None, *(earlier.experiment for earlier in self.rows[:index])}:
                yield f"{where}.init_from: no earlier row has experiment {row.init_from!r}"
            if unknown := row.sweep.keys() - self.sweep.keys():
                yield f"{where}.sweep: the table does not sweep {min(unknown)}"
            for key, value in row.sweep.items():
                if not set(map(str, value)) <= set(map(str, self.sweep[key])):
                    yield f"{where}.sweep.{key} must be some of the table's values"
            for key, value in (row.paper or {}).items():
                words = self.costs and key in COSTS and isinstance(value, str)
                number = key in published and _is_published(value)
                if not (words or number or (key == self.swept_name and value in self.sweep[self.select.over])):
                    yield f"{where}.paper.{key} must be a number or [mean, +-] for one of {', '.join(published)}"


def _is_published(value: Any) -> bool:
    numbers = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)


def load_table(path: Path) -> TableDefinition:
    """Read a table definition; UserError naming the file and a key that is unknown, missing, ill-typed or wrong."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: no such table; there are: {known}")
    try:
        table = TableDefinition.model_validate(OmegaConf.to_container(OmegaConf.load(path), resolve=False))
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error, 'key')}") from error
    except (yaml.YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    if table.name != path.stem:
        raise UserError(f"{path}: key name is {table.name!r}; it must be the file's name")
    return table


def load_tables(folder: Path, names: Sequence[str] = ()) -> list[TableDefinition]:
    """The tables of a folder by name, all of them where no name is given, in alphabetical order."""
    paths = [folder / f"{name}.yaml" for name in names] or sorted(folder.glob("*.yaml"))
    return [load_table(path) for path in paths]


def read_baselines(table: TableDefinition, results_dir: Path) -> list[dict[str, Any]]:
    """Entries {"name", split or section: value, ...}: chance, then those under "baselines" in the table's baseline file.

    A file not made yet gives one entry without values; a file of another form raises UserError.
    """
    keys = map(str, table.section_values) if table.sections else (column.split for column in table.columns)
    chance = [] if table.chance is None else [{"name": "chance", **dict.fromkeys(keys, table.chance)}]
    if table.baselines is None:
        return chance
    path = results_dir / table.baselines
    if not path.is_file():
        return [*chance, {"name": f"baselines ({table.baselines}, not measured yet)"}]
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))["baselines"]
        for entry in measured:
            if not all(_is_published(value) or (key, type(value)) == ("name", str) for key, value in entry.items()):
                raise ValueError(f"values of {entry.get('name')!r} must be numbers")
            entry["name"] = str(entry["name"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: field baselines must be a list of {{name, split: number}} ({error})") from error
    return chance + measured


def check_overrides(table: TableDefinition, overrides: Sequence[str], outside_id: Collection[str]) -> None:
    """Raise UserError for an override that is not key=value, or that the table's runs must not have.

    outside_id: the keys that do not change a run's numbers.
    """
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise UserError(f"override {override!r} must be key=value")
        if key in {
            "experiment",
            "init_from",
            *table.sweep,
            *table.require,
            *(k for r in table.rows for k in r.require),
        }:
            raise UserError(f"override {override!r}: table {table.name} sets {key} itself; leave it out")
        if not is_part(key, (*outside_id, *FREE)):
            raise UserError(
                f"override {override!r}: table {table.name} is for its experiments as they are; leave it out, or start "
                "python train.py by hand"
            )


def is_part(key: str, of: Sequence[str]) -> bool:
    """Whether a dotted key is one of these or in one of these groups."""
    return any(f"{key}.".startswith(f"{other}.") for other in of)
