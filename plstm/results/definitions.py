"""The definition of a results table: a file of `configs/tables`, read and checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from plstm.errors import UserError
from plstm.results.records import PRIMARY_METRIC, Record, Strict, first_problem

FREE = ("loop", "model.method")  # keys by which a row's runs may differ from its experiment, beside the swept ones
COSTS = ("parameters", "flops")  # of which the paper's words are shown


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


class Reference(Strict):
    """A model of which the table has published numbers only.

    `paper` maps column names (with sections these, for the first column) to a number or [mean, +-], the last part of
    `select.over` to the paper's best value, and with the table's `costs` "parameters" and "flops" to its words.
    """

    name: str
    paper: dict[str, Any] = {}
    epochs: str | None = None  # with `costs`, as the paper prints them


class Row(Reference):
    """A model of the table and the experiment that trains it.

    `init_from` is the experiment of an earlier row, whose run of the same swept values this row fine-tunes. `require`
    adds to the table's; `sweep` has some of the table's values for the keys it names.
    """

    experiment: str
    init_from: str | None = None
    require: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    epochs: None = None


class Figure(Strict):
    """Which figures are drawn."""

    dots: bool = False  # the table's columns beside the paper's numbers
    panels: dict[str, str] = {}  # training curves: split -> title
    metric: str = PRIMARY_METRIC  # of these
    baseline: str | None = None  # in these, an entry of the baseline file


class TableDefinition(Strict):
    """A file of `configs/tables`."""

    name: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    references: list[Reference] = []
    sweep: dict[str, list[Any]]  # config key -> values run for every row
    sections: str | None = None  # the swept key that has a part of the table for each value
    section_titles: dict[str, str] = {}
    average_over: list[str] = []  # the swept keys that a seed is averaged over
    select: Select | None = None
    choose_once: bool = False  # other seeds run only the chosen value, once one seed has all
    require: dict[str, Any] = {}  # config key -> the value that every run must have
    baselines: str | None = None  # a path below the results folder
    chance: float | None = None
    notes: list[str] = []
    figure: Figure = Figure()
    percent: bool = False  # shows 100 times the metrics
    digits: int = 3  # after the point
    costs: bool = False  # shows what experiments say of themselves: pixels, epochs, parameters and multiply-adds

    @property
    def chosen_key(self) -> str | None:
        """The key of `select`, or None where nothing is chosen."""
        return self.select.over if self.select else None

    @property
    def chosen_name(self) -> str | None:
        """Its short name, such as `peak_lr`."""
        return self.select.over.rpartition(".")[2] if self.select else None

    @property
    def seed_keys(self) -> list[str]:
        """The swept keys that tell the seeds of a cell apart."""
        return [key for key in self.sweep if key not in (self.sections, self.chosen_key, *self.average_over)]

    @property
    def scale(self) -> int:
        """What metrics are multiplied with."""
        return 100 if self.percent else 1

    @property
    def section_values(self) -> list[Any]:
        """One None without sections."""
        return self.sweep[self.sections] if self.sections else [None]

    def section_title(self, section: Any) -> str:
        """As the table shows it; nothing without sections."""
        return self.section_titles.get(str(section), str(section)) if self.sections else ""

    def paper(self, model: Reference, column: Column, section: Any) -> list[float]:
        """The published [mean, +-], [mean] or nothing."""
        if self.sections and column is not self.columns[0]:
            return []
        published = model.paper.get(str(section) if self.sections else column.name, [])
        return published if isinstance(published, list) else [published]

    @model_validator(mode="after")
    def _check(self) -> TableDefinition:
        for problem in (*self._wrong_keys(), *self._wrong_rows()):
            raise ValueError(f"key {problem}")
        return self

    def _wrong_keys(self) -> Iterator[str]:
        keys = {"select.over": self.chosen_key, "sections": self.sections}
        keys |= {f"average_over[{n}]": key for n, key in enumerate(self.average_over)}
        for where, key in keys.items():
            if key not in {None, *self.sweep}:
                yield f"{where} is {key!r}, which sweep does not list"
        names = [column.name for column in self.columns]
        for where, is_wrong, words in (
            ("columns", not names or len(set(names)) < len(names), "must name at least one metric, and none twice"),
            ("choose_once", self.choose_once and not self.select, "needs select"),
            (
                "figure.baseline",
                self.figure.baseline and not (self.baselines and self.figure.panels),
                "needs baselines and panels",
            ),
            ("costs", self.costs and self.sections, "is not for a table with sections"),
            ("figure.panels", self.figure.panels and self.sections, "is not for a table with sections"),
            ("section_titles", self.section_titles.keys() - set(map(str, self.section_values)), "must name sections"),
        ):
            if is_wrong:
                yield f"{where} {words}"

    def _wrong_rows(self) -> Iterator[str]:
        for key in ("name", "experiment"):
            if len({getattr(row, key) for row in self.rows}) < max(len(self.rows), 1):
                yield f"rows must have some, and no two with the same {key}"
        models = [(f"rows[{index}]", row) for index, row in enumerate(self.rows)]
        for where, model in models + [(f"references[{index}]", model) for index, model in enumerate(self.references)]:
            for key in (key for key, value in model.paper.items() if not self._is_published(key, value)):
                yield f"{where}.paper.{key} must be a number or [mean, +-] for one of the columns or sections"
            if model.epochs and not self.costs:
                yield f"{where}.epochs needs the table's costs"
        known: set[str | None] = {None}
        for where, row in models:
            if row.init_from not in known:
                yield f"{where}.init_from: no earlier row has experiment {row.init_from!r}"
            known.add(row.experiment)
            for key, values in row.sweep.items():
                if any(value not in self.sweep.get(key, ()) for value in values):
                    yield f"{where}.sweep: the table does not sweep {key} over {values}"

    def _is_published(self, key: str, value: Any) -> bool:
        if key in COSTS:
            return self.costs and isinstance(value, str)
        if key == self.chosen_name:
            return value in self.sweep[self.chosen_key]
        numbers = value if isinstance(value, list) and len(value) == 2 else [value]
        known = map(str, self.section_values) if self.sections else (column.name for column in self.columns)
        return key in known and all(type(number) in (int, float) for number in numbers)


def load_table(path: Path) -> TableDefinition:
    """Read a table definition; UserError naming the file and a key that is unknown, missing, ill-typed or wrong."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: no such table; there are: {known}")
    try:
        table = TableDefinition.model_validate(OmegaConf.to_container(OmegaConf.load(path)))
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error, 'key')}") from error
    except (yaml.YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    if table.name != path.stem:
        raise UserError(f"{path}: key name is {table.name!r}; it must be the file's name")
    return table


def load_tables(folder: Path, names: Sequence[str] = ()) -> list[TableDefinition]:
    """The tables of a folder by name, all of them where no name is given, in alphabetical order."""
    return [load_table(path) for path in [folder / f"{name}.yaml" for name in names] or sorted(folder.glob("*.yaml"))]


class _Baseline(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, float]
    name: str


class _Baselines(BaseModel):
    baselines: list[_Baseline]


def read_baselines(table: TableDefinition, results_dir: Path) -> list[dict[str, Any]]:
    """Entries {"name", split or section: value, ...}: chance, then those of the table's baseline file.

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
        return chance + [entry.model_dump() for entry in _Baselines.model_validate_json(path.read_bytes()).baselines]
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; make it again") from error


def check_overrides(table: TableDefinition, overrides: Sequence[str], outside_id: Collection[str]) -> None:
    """Raise UserError for an override that is not key=value, or that the table's runs must not have.

    outside_id: the keys that do not change a run's numbers.
    """
    own = {"experiment", "init_from", *table.sweep, *table.require, *(key for row in table.rows for key in row.require)}
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise UserError(f"override {override!r} must be key=value")
        if key in own:
            raise UserError(f"override {override!r}: table {table.name} sets {key} itself; leave it out")
        if not is_part(key, (*outside_id, *FREE)):
            why = f"table {table.name} is for its experiments as they are"
            raise UserError(f"override {override!r}: {why}; leave it out, or start python train.py by hand")


def is_part(key: str, of: Sequence[str]) -> bool:
    """Whether a dotted key is one of these or in one of these groups."""
    return any(f"{key}.".startswith(f"{other}.") for other in of)
