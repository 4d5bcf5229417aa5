"""The schema of a run: dataclasses that `configs/` fills in and the command line overrides.

What a single key may be stands at its field (see `plstm.limits`); `plstm.runs.compose` checks what joins several, and
reads configs from Hydra and from files.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from data.augment.recipes import AugmentConfig
from plstm.limits import Count, Folder, Matches, Natural, NotNegative, OneOf, Positive, Rate, Root, Share, Workers

MODES = ("auto", "online", "offline", "disabled")  # of W&B
Checkpoint = Annotated[str, OneOf("last", "best")]
# W&B's tags have at most 64 letters; file names and links have it, too.
ExperimentName = Annotated[
    str, Matches(r"(?=.{1,64}$)[\w.+-]+(/[\w.+-]+)*", "a name such as arrow/plstm, of at most 64 letters")
]

VariantNames = Annotated[
    str, Matches(r"(?=.{1,64}$)[\w.+-]+(,[\w.+-]+)*", "names such as balanced,d_mode, of at most 64 letters")
]


@dataclass
class OptimConfig:
    name: Annotated[str, OneOf("adamw", "lamb")] = "adamw"
    peak_lr: Positive = 1e-4  # not scaled with the batch
    end_factor: Share = 1e-3  # the last step's learning rate over the peak
    schedule_per: Annotated[str, OneOf("step", "epoch")] = "step"  # epoch: the learning rate is constant within one
    warmup_epochs: NotNegative = 1.0  # linear from 0
    epochs: Positive = 50.0  # cosine from the end of the warm-up to the last step
    batch_size: Count = 128  # over all devices
    weight_decay: NotNegative = 0.05  # decoupled, on kernels and gate weights only
    b1: Rate = 0.9  # decay rate of the gradient's running mean
    b2: Rate = 0.999  # decay rate of the squared gradient's running mean
    eps: Positive = 1e-8  # added to the root of the squared gradient's mean
    clip_norm: Positive = 1.0  # of the global gradient norm
    loss: str = "cross_entropy"  # one of the task's `losses`
    label_smoothing: Rate = 0.0  # share of a target that is spread evenly over the classes
    only: list[str] = field(default_factory=list)  # parts of dotted names, as head: trains these parameters; empty: all


@dataclass
class MeshConfig:
    fsdp: Count = 1  # so many devices share one copy of parameters and optimizer state; 1: each has its own copy
    timeout: Positive = 300.0  # seconds that the processes of a run wait for each other at the start


@dataclass
class LoggerConfig:
    mode: Annotated[str, OneOf(*MODES)] = "auto"  # auto: online if logged in, else offline
    project: str = "plstm"  # the project that the run is logged to
    entity: str | None = None  # the user or team that owns the project; none: the default of the login


@dataclass
class LoopConfig:
    unit: Annotated[str, OneOf("steps", "epochs")] = "steps"  # what the next three count
    log_every: Count = 100  # between two log lines of the training metrics
    eval_every: Count = 2000  # between two evaluations of eval_splits
    save_every: Count | None = None  # between two checkpoints; null: at each evaluation, which also keeps the best one
    eval_splits: list[str] = field(default_factory=lambda: ["val", "val_ext"])  # evaluated during training
    final_splits: list[str] = field(default_factory=lambda: ["val", "val_ext", "test", "test_ext"])  # and at its end
    best_split: str | None = "val"  # its primary metric names the best checkpoint; null: no best one
    best_tie: Annotated[str, OneOf("latest", "earliest")] = "latest"  # which of equally good steps is the best
    stop_at: Share | None = None  # ends the run once the first of eval_splits' primary metric is so high; null: never


@dataclass
class PathsConfig:
    runs: Folder = "runs"  # checkpoints and logs, a folder a run
    results: Folder = "results"  # records, tables, figures


@dataclass
class Config:
    experiment: ExperimentName = "custom"  # the file of configs/experiment; groups runs in tables and in W&B
    variant: VariantNames | None = None  # the files of configs/variant, such as d_mode or balanced,d_mode
    task: str = "arrow"  # of plstm.tasks.TASKS; the files of configs/data set it
    seed: Natural = 43  # of initialisation, data order, augmentation and stochastic depth
    model: Any = MISSING  # the config of a family of plstm.models.MODELS
    data: Any = MISSING  # the task's data_schema
    augment: AugmentConfig | None = None  # of training images; null: none
    optim: OptimConfig = field(default_factory=OptimConfig)
    # The weights to fine-tune: a finished run's id, the first digits of it, its folder, or a .safetensors file.
    init_from: str | None = None
    init_checkpoint: Checkpoint = "last"  # which weights of a run
    # Parameters that those weights lack: drawn, where such a part is in their dotted names.
    init_new: list[str] = field(default_factory=list)
    loop: LoopConfig = field(default_factory=LoopConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)


@dataclass
class EvalDataConfig:
    """What to evaluate on. Keys that are null are as the run had them, but for the places `root` and `path`."""

    split: str | None = None  # null: all splits that the end of training evaluates
    folder: Folder | None = None  # instead: of class folders of images, named as the classes or by their numbers
    root: Root | None = None  # folder of all data sets; null: as for a run
    path: str | None = None  # folder of one's own pictures
    generate: bool | None = None  # make missing images; otherwise missing data is an error
    download: bool | None = None  # fetch a missing set; otherwise missing data is an error
    workers: Workers | None = None  # reading processes
    max_corrupt: Share | None = None  # share of images that may be undecodable


@dataclass
class EvalConfig:
    run: str | None = None  # the run's folder or id
    weights: str | None = None  # or a .safetensors file
    checkpoint: Checkpoint = "last"  # of a run
    data: EvalDataConfig = field(default_factory=EvalDataConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    figures: bool = False  # also draw samples and gating patterns, into the run's folder; weights: outputs/eval
    logger: LoggerConfig = field(default_factory=LoggerConfig)  # its mode; the rest is the run's
