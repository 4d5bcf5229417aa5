"""The typed schema of a run's configuration; the files under `configs/` fill it, the command line overrides it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from operator import attrgetter
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from data.augment.recipes import AugmentConfig
from plstm.errors import UserError
from plstm.tasks import TASKS
from plstm.training import tracking

# Parts of a config that change where a run lives and how it is shown, but not its numbers.
OUTSIDE_ID = ("logger", "mesh", "paths", "report", "data.root", "data.generate", "data.placement", "data.workers")
OUTSIDE_ID += ("data.max_corrupt",)  # how many before the run ends with an error
OUTSIDE_ID += ("data.download",)
OUTSIDE_ID += ("model.remat",)  # memory for time; like another mesh, it may change the rounding, not what is computed
# Keys newer than the first finished runs, with the value that leaves their numbers and ids as they are.
NEUTRAL = {"task": "arrow", "augment": None, "init_from": None, "init_checkpoint": "last"}
NEUTRAL |= {"optim.loss": "cross_entropy", "optim.schedule_per": "step"}
NEUTRAL |= {"loop.unit": "steps", "loop.save_every": None, "loop.best_tie": "latest"}
SMALLEST, LARGEST = 1e-37, 1e38  # of float32's numbers, a little rounded
LONGEST_NAME = 64  # letters; W&B's tags have no more


@dataclass
class OptimConfig:
    """Optimizer, schedule and batch."""

    name: str = "adamw"  # or "lamb"
    peak_lr: float = 1e-4  # not scaled with the batch
    end_factor: float = 1e-3  # the last step's learning rate over the peak
    schedule_per: str = "step"  # or "epoch": the learning rate stays as it is over an epoch
    warmup_epochs: float = 1.0  # linear from 0
    epochs: float = 50.0  # cosine from the end of the warm-up to the last step
    batch_size: int = 128  # over all devices
    weight_decay: float = 0.05  # decoupled, on kernels and gate weights only
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 1.0  # of the global gradient norm
    loss: str = "cross_entropy"  # or "binary_cross_entropy" on thresholded labels
    label_smoothing: float = 0.0


@dataclass
class LoopConfig:
    """What happens at which step."""

    unit: str = "steps"  # or "epochs": what the next three count
    log_every: int = 100
    eval_every: int = 2000
    save_every: int | None = None  # a checkpoint; none: at each evaluation, so that the best one is kept, too
    eval_splits: list[str] = field(default_factory=lambda: ["val", "val_ext"])
    final_splits: list[str] = field(default_factory=lambda: ["val", "val_ext", "test", "test_ext"])
    best_metric: str | None = "val"  # the split whose accuracy names the best checkpoint; none: no best one
    best_tie: str = "latest"  # or "earliest": which of equal accuracies is the best

    @property
    def keeps_best(self) -> bool:
        """Whether there is a checkpoint of the best step."""
        return self.best_metric is not None and self.save_every is None

    @property
    def why_no_best(self) -> str:
        """The key that says so."""
        return "loop.best_metric is null" if self.best_metric is None else f"loop.save_every is {self.save_every}"


@dataclass
class LoggerConfig:
    """Weights & Biases: project and entity, and online, offline, disabled, or auto (online when logged in)."""

    mode: str = "auto"
    project: str = "plstm"
    entity: str | None = None


@dataclass
class MeshConfig:
    """How a run lies on its devices; each has its part of the batch."""

    fsdp: int = 1  # so many devices hold one copy of parameters and optimizer state between them; 1: each has its own
    timeout: float = 300.0  # seconds that the processes of a run wait for each other at the start


@dataclass
class PathsConfig:
    """Where runs (checkpoints, logs) and results (records, tables, figures) are written."""

    runs: str = "runs"
    results: str = "results"


@dataclass
class ReportConfig:
    """The table and row that the finished run enters; none: no table."""

    table: str | None = None
    row: str | None = None


@dataclass
class Config:
    """One training run."""

    experiment: str = "custom"
    task: str = "arrow"  # what is learnt; it goes with `data`, and says which keys `data` and `model` have
    seed: int = 43
    model: Any = MISSING  # the task's model_schema
    data: Any = MISSING  # the task's data_schema
    augment: AugmentConfig | None = None  # of the training images; none: they are taken as they are
    optim: OptimConfig = field(default_factory=OptimConfig)
    init_from: str | None = None  # the finished run to fine-tune: its id, the first digits of it, or its folder
    init_checkpoint: str = "last"  # or "best"; of that run
    loop: LoopConfig = field(default_factory=LoopConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


@dataclass
class EvalDataConfig:
    """What to evaluate on: one split, or none for all that the end of training evaluates, or a folder."""

    split: str | None = None
    folder: str | None = None  # of class folders of images, named as the model's classes or by their numbers
    root: str | None = None  # where data sets live; none: as the run had it
    generate: bool = True  # make missing images; otherwise missing data is an error
    workers: int | None = None  # reading processes; none: as the run had it
    max_corrupt: float | None = None  # share of images that may be undecodable; none: as the run had it, or 0.001


@dataclass
class EvalConfig:
    """One evaluation of a run's checkpoint, or of weights in a file."""

    run: str | None = None  # the run's folder or id
    weights: str | None = None  # or a .safetensors file
    checkpoint: str = "last"  # or "best", of a run
    data: EvalDataConfig = field(default_factory=EvalDataConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    figures: bool = False  # also draw samples with predictions, and gating patterns, into results/figures


def check(config: Config) -> None:
    """Raises UserError naming the key where values are out of range or do not fit together."""
    for key in ("model", "data"):
        if not is_dataclass(getattr(config, key)):
            raise UserError(f"{key}: choose one, {key}=...; see configs/{key}")
    _check_values(config)
    _check_ranges(config)
    _check_choices(config)
    config.model.check()
    if config.augment is not None:
        config.augment.check()
    TASKS[config.task].check(config)
    if config.optim.warmup_epochs >= config.optim.epochs:
        raise UserError(f"optim.warmup_epochs={config.optim.warmup_epochs}: must be under optim.epochs")


def _check_values(config: Any) -> None:
    """What no key can be: a number that 32 bits do not hold, or text that cannot be printed or written to a file."""
    for key, value in _leaves(asdict(config)):
        if isinstance(value, float) and not (value == 0 or SMALLEST <= abs(value) <= LARGEST):
            raise UserError(f"{key}={value}: must be a number that float32 holds, 0 or from 1e-37 to 1e38")
        if isinstance(value, int) and abs(value) >= 2**31:
            raise UserError(f"{key}={value}: must be under 2^31")
        if isinstance(value, str) and not value.isprintable():
            raise UserError(f"{key}={value!r}: must be printable text of one line")


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value; entries of a list have the list's key."""
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _leaves(child, f"{key}.{name}" if key else name)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _leaves(child, key)
    else:
        yield key, node


def _check_ranges(config: Config) -> None:
    for words, is_good, keys in (
        ("at least 1", lambda value: value >= 1, "optim.batch_size loop.log_every loop.eval_every mesh.fsdp"),
        ("positive", lambda value: value > 0, "optim.epochs optim.peak_lr optim.eps optim.clip_norm mesh.timeout"),
        ("at least 0", lambda value: value >= 0, "seed optim.warmup_epochs optim.weight_decay"),
        ("from 0 to 1024", lambda value: 0 <= value <= 1024, "data.workers"),
        ("in [0, 1)", lambda value: 0 <= value < 1, "optim.b1 optim.b2 optim.label_smoothing"),
        ("in [0, 1]", lambda value: 0 <= value <= 1, "optim.end_factor"),
        ("given, or left out", lambda value: value != "", "paths.runs paths.results data.root report.table"),
        (f"a name such as arrow/plstm, of at most {LONGEST_NAME} letters", _is_name, "experiment"),
    ):
        for key in keys.split():
            if not _has(config, key):
                continue
            if not is_good(value := attrgetter(key)(config)):
                raise UserError(f"{key}={value}: must be {words}")
    every, save_every = config.loop.eval_every, config.loop.save_every
    if save_every is not None and (save_every < 1 or save_every % every):
        raise UserError(f"loop.save_every={save_every}: must be a multiple of loop.eval_every={every}, or null")


def _has(config: Config, key: str) -> bool:
    group, _, leaf = key.rpartition(".")
    return hasattr(attrgetter(group)(config) if group else config, leaf)


def _is_name(text: str) -> bool:
    """Whether it can be part of file names, tags and links."""
    return len(text) <= LONGEST_NAME and re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", text) is not None


def _check_choices(config: Config) -> None:
    loop, task = config.loop, TASKS[config.task]
    for key, splits in (("loop.eval_splits", loop.eval_splits), ("loop.final_splits", loop.final_splits)):
        if not splits:
            raise UserError(f"{key}: name at least one split of {', '.join(task.splits)}")
        for split in splits:
            if split not in task.splits:
                raise UserError(f"{key}: no split {split!r}; choose from {', '.join(task.splits)}")
        if loop.best_metric not in (None, *splits):
            raise UserError(f"loop.best_metric={loop.best_metric}: must be one of {key}, {', '.join(splits)}")
    for key, choices in (
        ("optim.name", ("adamw", "lamb")),
        ("optim.loss", task.losses),
        ("optim.schedule_per", ("step", "epoch")),
        ("loop.unit", ("steps", "epochs")),
        ("loop.best_tie", ("latest", "earliest")),
        ("init_checkpoint", ("last", "best")),
        ("logger.mode", tracking.MODES),
    ):
        if (value := attrgetter(key)(config)) not in choices:
            raise UserError(f"{key}={value}: choose one of {', '.join(choices)}")
    if config.augment is not None and not task.augments:
        raise UserError(f"augment: task {config.task} takes its training examples as they are; leave it out")
    if config.init_checkpoint != "last" and config.init_from is None:
        raise UserError(f"init_checkpoint={config.init_checkpoint}: says which weights of init_from, which is not set")


def task_schema(task: str) -> DictConfig:
    """The typed defaults of a task's runs. Raises UserError where there is no such task."""
    if not isinstance(task, str) or task not in TASKS:
        raise UserError(f"task={task!r}: choose one of {', '.join(TASKS)}; it goes with data=...")
    return OmegaConf.structured(Config(task=task, model=TASKS[task].model_schema(), data=TASKS[task].data_schema()))


def to_config(node: DictConfig) -> Config:
    """The checked dataclasses of a composed Hydra config, or one read back; interpolations resolved.

    OmegaConf's error names a key that is not in the schema: Hydra's + lets any pass.
    """
    plain = _resolved(node)
    config = OmegaConf.to_object(OmegaConf.merge(task_schema(plain.get("task", "arrow")), plain))
    check(config)
    return config


def from_file(plain: dict[str, Any]) -> Config:
    """The checked config of a run that was read from a file, which may be anybody's.

    Only references to other keys, such as ${data.size}, are filled in; a resolver such as ${oc.env:NAME} would take
    from this machine. Keys of `OUTSIDE_ID`, which are of the run's machine, are left out; others raise UserError.
    """
    kept = json.loads(json.dumps(plain))
    for key, value in list(_leaves(kept)):
        if "${" not in re.sub(r"\$\{[\w.]+\}", "", str(value)):
            continue
        if not f"{key}.".startswith(tuple(f"{outside}." for outside in OUTSIDE_ID)):
            raise UserError(f"{key}: {value!r} would be filled in from this machine; write the value itself")
        group, leaf = _place_of(kept, key)
        group.pop(leaf, None)
    return to_config(OmegaConf.create(kept))


def to_eval_config(node: DictConfig) -> EvalConfig:
    """As `to_config`, for an evaluation."""
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(EvalConfig), _resolved(node)))
    _check_values(config)
    return config


def _resolved(node: DictConfig) -> dict[str, Any]:
    """A node's values with interpolations filled in, so that the schema's types hold for these, too."""
    if missing := sorted(OmegaConf.missing_keys(node)):
        raise UserError(f"{missing[0]}: give a value, {missing[0]}=...")
    return OmegaConf.to_container(node, resolve=True)


def plain_config(config: Config) -> dict[str, Any]:
    """The config as nested dictionaries of JSON values."""
    return OmegaConf.to_container(OmegaConf.structured(config), resolve=True)


def identity(plain: dict[str, Any]) -> dict[str, Any]:
    """The part of a plain config that can change a run's numbers: without `OUTSIDE_ID`, and `NEUTRAL` where neutral."""
    kept = json.loads(json.dumps(plain))
    for key in (*OUTSIDE_ID, *NEUTRAL):
        group, leaf = _place_of(kept, key)
        if key not in NEUTRAL or group.get(leaf) == NEUTRAL[key]:
            group.pop(leaf, None)
    return kept


def _place_of(plain: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The group that a dotted key is in, empty where there is none, and the key's name there."""
    *parents, leaf = key.split(".")
    for parent in parents:
        plain = plain.get(parent, {})
    return plain, leaf


def run_id(plain: dict[str, Any]) -> str:
    """12 hexadecimal digits that name a run: a hash of its `identity`."""
    return hashlib.sha256(json.dumps(identity(plain), sort_keys=True).encode()).hexdigest()[:12]


def portable(overrides: list[str], init_from: str | None = None) -> list[str]:
    """The overrides that mean the same on another machine: without those of the keys of `OUTSIDE_ID`.

    `init_from` is the resolved id of the run to fine-tune, which takes the place of its folder; quoted, for Hydra would
    take some ids for numbers.
    """
    kept = [override for override in overrides if not override.lstrip("+").startswith(OUTSIDE_ID)]
    return [f'init_from="{init_from}"' if override.startswith("init_from=") else override for override in kept]


def run_name(config: Config) -> str:
    """A name to read, such as arrow-plstm-s43, or graphs-gin-MUTAG-f0-s43."""
    parts = [config.experiment.replace("/", "-")]
    if hasattr(config.data, "fold"):
        parts += [config.data.name, f"f{config.data.fold}"]
    return "-".join([*parts, f"s{config.seed}"])
