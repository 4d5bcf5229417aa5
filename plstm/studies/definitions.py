"""The definition of a study's table: a file of `configs/study`, read and checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, ValidationError, model_validator

from plstm.errors import UserError, first_problem
from plstm.runs.overrides import as_override
from plstm.studies.records import PRIMARY_METRIC, RunId, Strict

COSTS = ("parameters", "flops")  # of which the paper's words are shown
WORDS = (*COSTS, "above_chance")
CHOICE_TITLES = {"peak_lr": "Learning rate", "depth": "Layers"}  # of a swept key's last part


class Measure(Strict):
    """A metric of a split, at the last step or the best."""

    split: str
    at: Literal["last", "best"] = "last"
    metric: str = PRIMARY_METRIC

    @property
    def name(self) -> str:
        """Such as test, test_best, test_loss."""
        metric = "" if self.metric == PRIMARY_METRIC else f"_{self.metric}"
        return self.split + metric + ("_best" if self.at == "best" else "")


class Column(Measure):
    """A measure that the table shows."""

    title: str
    solved: float | None = None  # counts the seeds that reach it; a number as the table shows it


class Select(Measure):
    """Choose one value of the swept key `over` for each row and section: the one of the highest mean over seeds, of a
    loss the lowest."""

    over: str


class Reference(Strict):
    """A model of which the table has published numbers only.

    Keys of `paper`: a column -> a number or [mean, +-]; in a table with sections a section -> the same for the first
    column, or {column: number or [mean, +-]}. Also the short name of `select.over` -> the paper's best value; with
    `above_chance`, "above_chance" -> text such as "4 of 5"; with `costs`, "parameters" and "flops" -> the paper's
    words. The CSV alone shows `epochs`.
    """

    name: str
    paper: dict[str, Any] = {}
    epochs: str | None = None  # as the paper prints them


class Row(Reference):
    """A model that the study trains: an experiment, what it changes there, and the paper's numbers beside."""

    experiment: str
    variant: str | list[str] = []
    set: dict[str, Any] = {}  # config key, or a group such as model, -> value of this row's runs
    # The name of an earlier row: this row fine-tunes its run of the same swept values or, without one, its only run.
    init_from: str | None = None
    sweep: dict[str, list[Any]] = {}  # some of the table's values
    own: bool = True  # false for a row of another table: not in figures and probes
    epochs: None = None

    @property
    def variants(self) -> list[str]:
        return [self.variant] if isinstance(self.variant, str) else self.variant

    @property
    def overrides(self) -> list[str]:
        """Of `python train.py`, without those of `init_from` and of the swept values."""
        names = ",".join(self.variants)
        variant = [f"variant={names}" if len(self.variants) == 1 else f"variant=[{names}]"] if names else []
        values = [as_override(key, value) for key, value in self.set.items()]
        return [f"experiment={self.experiment}", *variant, *values]


class Stage(Strict):
    """Part of a table's runs: those of `rows`, by name, whose swept values are among those of `sweep`."""

    rows: list[str]
    sweep: dict[str, list[Any]] = {}


LINES = 5  # of an axes, at most


class Clock(Strict):
    """Training loss of a section against the time of the steps alone, which a benchmark measured: as runs are stopped,
    resumed and disturbed, their own times cannot be compared."""

    section: str
    benchmark: str  # a file of `scripts/benchmark.py steps` below the results folder; a row's mean over its entries


class Figure(Strict):
    """What a study's figures show, see `plstm.studies.figures`; each is drawn only where its key is set."""

    small: str | None = None  # what is small about the runs, said in every figure
    groups: dict[str, list[str]] = {}  # title of a panel -> the rows, by name, whose lines it has; without: all rows
    dots: bool = False  # the table's columns beside the paper's numbers
    panels: dict[str, str] = {}  # training curves: split -> title
    paper: str | None = None  # training curves of the paper's runs: a CSV file below the results folder
    baseline: str | None = None  # an entry of the baseline file, drawn in training curves and `sizes`
    lengths: str | None = None  # accuracy against the length in this split, a panel a section
    sizes: bool = False  # accuracy against the canvas, and a table of altered images, from probes
    clock: Clock | None = None  # loss against time, of the rows that the benchmark has
    # The first two columns against the values of `select.over`, and the paper's: row -> value -> numbers.
    choices: dict[str, dict[float, list[float]]] | None = None


class Differences(Strict):
    """Columns, by name, of rows against the first row of their group; see plstm/studies/differences.py. A row is named
    at its chosen value of `select.over`, or as `pLSTM at 0.001` at another."""

    columns: list[str]
    roc_areas: list[int] = []  # canvas sides: also the area under the ROC curve there, of probed runs
    groups: list[list[str]]
    leave_out: list[str] = []  # sets
    sets: dict[str, list[str]] = {}  # column that is a mean over some sets only, such as test_wql_daily -> these sets


class Gap(Strict):
    """An extra column: a row's place on the scale on which the row or baseline `zero` is 0 and the row `one` is 1."""

    title: str
    column: str  # of the table, by its name
    zero: str
    one: str


class TableDefinition(Strict):
    """A study, as its file configs/study/<name>.yaml has it. A key that does not fit the others is a ValueError."""

    name: str
    title: str
    caption: str
    columns: list[Column] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    references: list[Reference] = []
    sweep: dict[str, list[Any]]  # config key -> values run for every row
    sections: str | None = None  # the swept key that has a part of the table for each value
    section_titles: dict[str, str] = {}
    overview: str | None = None  # with sections: the name of the column that the overview shows, else the first
    stages: list[Stage] = []  # what to run, in this order; without: every row times every swept value
    seed_values: bool = False  # shows the highest of the seeds beside the paper's number
    average_over: list[str] = []  # the swept keys that a seed is averaged over
    select: Select | None = None
    above_chance: float | None = None  # with `select`: counts the seeds above it
    choose_once: bool = False  # other seeds run only the chosen value, once one seed has all
    baselines: str | None = None  # a path below the results folder
    chance: float | dict[str, float] | None = None  # or by section
    notes: list[str] = []
    weights: dict[str, RunId] = {}  # of these runs results/weights has <name>.safetensors, name -> the run's id
    figure: Figure = Figure()
    differences: Differences | None = None
    gap: Gap | None = None
    percent: bool = False  # shows 100 times the metrics
    digits: int = 3  # after the point
    costs: bool = False  # shows parameters and multiply-adds

    def __hash__(self) -> int:
        return id(self)  # for caches

    @property
    def measures(self) -> dict[str, Measure]:
        """All that a run must have to stand in the table, by name."""
        return {measure.name: measure for measure in (self.select, *self.columns) if measure}

    @property
    def chosen_key(self) -> str | None:
        return self.select and self.select.over

    @property
    def chosen_name(self) -> str | None:
        """Its short name, such as `peak_lr`."""
        return self.select and self.select.over.rpartition(".")[2]

    @property
    def chosen_title(self) -> str | None:
        return CHOICE_TITLES.get(self.chosen_name, self.chosen_name)

    @property
    def shows_all_choices(self) -> bool:
        """Whether it is a study of the choice itself, so that the values not chosen are results, too."""
        return self.figure.choices is not None

    @property
    def seed_keys(self) -> list[str]:
        """The swept keys that tell the seeds of a cell apart."""
        return [key for key in self.sweep if key not in (self.sections, self.chosen_key, *self.average_over)]

    @property
    def scale(self) -> int:
        return 100 if self.percent else 1

    @property
    def section_values(self) -> list[Any]:
        return self.sweep[self.sections] if self.sections else [None]

    @property
    def overview_column(self) -> Column:
        return next((column for column in self.columns if column.name == self.overview), self.columns[0])

    @property
    def figure_groups(self) -> dict[str, list[str]]:
        """Title of a panel -> the rows, by name, whose lines it has."""
        return self.figure.groups or {"": [row.name for row in self.rows if row.own]}

    def section_title(self, section: Any) -> str:
        return self.section_titles.get(str(section), str(section)) if self.sections else ""

    def paper(self, model: Reference, column: Column, section: Any) -> list[float]:
        """The published [mean, +-], [mean] or nothing."""
        published = model.paper.get(str(section) if self.sections else column.name, [])
        if self.sections:
            by_column = published if isinstance(published, dict) else {self.columns[0].name: published}
            published = by_column.get(column.name, [])
        return published if isinstance(published, list) else [published]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in self._problems():
            raise ValueError(f"key {problem}")
        return self

    def _problems(self) -> Iterator[str]:
        for key in {self.chosen_key, self.sections, *self.average_over} - {None, *self.sweep}:
            yield f"sweep must list {key!r}"
        for where in ("columns", "rows", "references"):
            names = [part.name for part in getattr(self, where)]
            if len(set(names)) < len(names):
                yield f"{where} must not have two of the same name"
        sections = {str(value) for value in self.section_values}
        columns = {column.name for column in self.columns}
        splits = {column.split for column in self.columns}
        if self.figure.lengths not in {None, *splits}:
            yield f"figure.lengths: {self.figure.lengths} is the split of no column"
        if self.differences and (self.sections or not columns.issuperset(self.differences.columns)):
            yield f"differences are for a table without sections, of columns among {', '.join(sorted(columns))}"
        if self.differences and not self.differences.sets.keys() <= {*self.differences.columns}:
            yield f"differences.sets must be of some of {', '.join(self.differences.columns)}"
        if self.select and self.select.metric not in (PRIMARY_METRIC, "loss"):
            yield f"select.metric must be {PRIMARY_METRIC}, the highest, or loss, the lowest"
        if self.above_chance is not None and (self.sections or not self.select):
            yield "above_chance is for a table with select and without sections"
        if self.section_titles.keys() - sections:
            yield f"section_titles must name some of {', '.join(sorted(sections))}"
        if self.sections and (self.costs or self.figure.panels):
            yield "sections are not for a table with costs or figure.panels"
        if self.overview not in {None, *(columns if self.sections else ())}:
            yield f"overview must be one of {', '.join(sorted(columns))}, in a table with sections"
        if self.gap and (self.sections or self.gap.column not in columns):
            yield f"gap is for a table without sections; its column must be one of {', '.join(sorted(columns))}"
        counts = {len(numbers) for values in (self.figure.choices or {}).values() for numbers in values.values()}
        if counts and min(counts) < len(self.columns[:2]):
            yield "figure.choices must have a number for each of the first two columns"
        if len(self.figure.groups) > 1 and (self.figure.choices or self.figure.clock):
            yield "figure.groups must be one panel where figure.choices or figure.clock is set"
        yield from self._problems_of_rows()
        published = {*columns, *COSTS * self.costs, *["above_chance"] * (self.above_chance is not None)}
        if self.sections:
            published = sections | {f"{section}.{column}" for section in sections for column in columns}
        published |= {self.chosen_name} if self.select else set()
        for model, (key, value) in ((m, item) for m in (*self.rows, *self.references) for item in _cells(m.paper)):
            numbers = value if isinstance(value, list) and len(value) == 2 else [value]
            if key not in published or not all(isinstance(n, str if key in WORDS else int | float) for n in numbers):
                what = f"a number or [mean, +-] for one of {', '.join(sorted(published))}"
                yield f"paper.{key} of {model.name} must be {what}"

    def _problems_of_rows(self) -> Iterator[str]:
        names = [row.name for row in self.rows]
        groups = self.figure_groups
        lists = [(f"stages[{number}].rows", stage.rows) for number, stage in enumerate(self.stages)]
        has_others = self.baselines is not None or self.chance is not None  # whose names the definition does not have
        lists += [("gap", [self.gap.one, *([] if has_others else [self.gap.zero])])] if self.gap else []
        lists += [("figure.groups", rows) for rows in groups.values()]
        yield from (f"{where}: no row {min(other)!r}" for where, rows in lists if (other := set(rows) - {*names}))
        if self.stages and (never := {*names} - {name for stage in self.stages for name in stage.rows}):
            yield f"stages: none has row {min(never)!r}, which would never run"
        at_values = {
            f"{row.name} at {value}" for row in self.rows for value in (self.sweep | row.sweep).get(self.chosen_key, ())
        }
        for name in (name for rows in (self.differences.groups if self.differences else ()) for name in rows):
            if name not in {*names, *at_values}:
                yield f"differences.groups: no row {name!r}"
        for group, rows in groups.items():
            count = len(rows) * (2 if self.figure.paper else 1) + bool(self.figure.baseline)
            if (self.figure.panels or self.figure.lengths or self.figure.sizes) and count > LINES:
                yield f"figure.groups: panel {group!r} has {count} lines, more than {LINES}"
        for number, row in enumerate(self.rows):
            if row.init_from not in {None, *names[:number]}:
                yield f"rows[{number}].init_from: no earlier row is named {row.init_from!r}"
            if swept := row.set.keys() & self.sweep.keys():
                yield f"rows[{number}].set: the table sweeps {min(swept)}; choose among its values by the row's sweep"
        for where, parts in (("rows", self.rows), ("stages", self.stages)):
            for number, (key, values) in ((n, item) for n, part in enumerate(parts) for item in part.sweep.items()):
                if any(value not in self.sweep.get(key, ()) for value in values):
                    yield f"{where}[{number}].sweep: the table does not sweep {key} over {values}"


def _cells(paper: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key and value; those of a section's columns as section.column."""
    for key, value in paper.items():
        inner = value.items() if isinstance(value, dict) else ()
        yield from ((f"{key}.{column}", number) for column, number in inner) if inner else [(key, value)]


def load_table(path: Path) -> TableDefinition:
    """Read a table definition; UserError naming the file and a key that is unknown, missing, ill-typed or wrong."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml")))
        raise UserError(f"{path}: no such table; there are: {known}")
    try:
        found = OmegaConf.to_container(OmegaConf.load(path))
        table = TableDefinition.model_validate({"name": path.stem} | found if isinstance(found, dict) else found)
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error, 'key')}") from error
    except (yaml.YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    if table.name != path.stem:  # its results would go to another study's folder
        raise UserError(f"{path}: name: must be {path.stem}, as the file; leave it out")
    return table


class _Baseline(BaseModel, extra="allow", allow_inf_nan=False):
    __pydantic_extra__: dict[str, float]
    name: str


class _Baselines(BaseModel):
    baselines: list[_Baseline]


def read_baselines(table: TableDefinition, results_dir: Path) -> list[dict[str, Any]]:
    """Entries {"name", split or section: value, ...}: chance, then the baseline file's. UserError for another form."""
    keys = map(str, table.section_values) if table.sections else (column.split for column in table.columns)
    values = table.chance if isinstance(table.chance, dict) else dict.fromkeys(keys, table.chance)
    chance = [] if table.chance is None else [{"name": "chance", **values}]
    if table.baselines is None:
        return chance
    path = results_dir / table.baselines
    if not path.is_file():
        return [*chance, {"name": f"baselines ({table.baselines}, not measured yet)"}]
    try:
        return chance + _Baselines.model_validate_json(path.read_bytes()).model_dump()["baselines"]
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; make it again") from error
