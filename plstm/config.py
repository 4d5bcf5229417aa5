"""The schema of a run: dataclasses that `configs/` fills in and the command line overrides.

`plstm.runs.compose` checks them, reads them from Hydra and from files, and gives a run its id.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from data.augment.recipes import AugmentConfig

MODES = ("auto", "online", "offline", "disabled")  # of W&B


@dataclass
class OptimConfig:
    name: str = "adamw"  # or "lamb"
    peak_lr: float = 1e-4  # not scaled with the batch
    end_factor: float = 1e-3  # the last step's learning rate over the peak
    schedule_per: str = "step"  # or "epoch": the learning rate is constant within an epoch
    warmup_epochs: float = 1.0  # linear from 0
    epochs: float = 50.0  # cosine from the end of the warm-up to the last step
    batch_size: int = 128  # over all devices
    weight_decay: float = 0.05  # decoupled, on kernels and gate weights only
    b1: float = 0.9  # decay rate of the gradient's running mean
    b2: float = 0.999  # decay rate of the squared gradient's running mean
    eps: float = 1e-8  # added to the root of the squared gradient's mean
    clip_norm: float = 1.0  # of the global gradient norm
    loss: str = "cross_entropy"  # or "binary_cross_entropy" on thresholded labels
    label_smoothing: float = 0.0  # share of a target that is spread evenly over the classes


@dataclass
class MeshConfig:
    fsdp: int = 1  # so many devices share one copy of parameters and optimizer state; 1: each has its own copy
    timeout: float = 300.0  # seconds that the processes of a run wait for each other at the start


@dataclass
class LoggerConfig:
    mode: str = "auto"  # or "online", "offline", "disabled"; auto: online when logged in, else offline
    project: str = "plstm"  # the project that the run is logged to
    entity: str | None = None  # the user or team that owns the project; none: the default of the login


@dataclass
class LoopConfig:
    unit: str = "steps"  # or "epochs": what the next three count
    log_every: int = 100  # between two log lines of the training metrics
    eval_every: int = 2000  # between two evaluations of eval_splits
    save_every: int | None = None  # between two checkpoints; null: at each evaluation, which also keeps the best one
    eval_splits: list[str] = field(default_factory=lambda: ["val", "val_ext"])  # evaluated during training
    final_splits: list[str] = field(default_factory=lambda: ["val", "val_ext", "test", "test_ext"])  # and at its end
    best_split: str | None = "val"  # its primary metric names the best checkpoint; null: no best one
    best_tie: str = "latest"  # or "earliest": which of equally good steps is the best
    stop_at: float | None = None  # ends the run once the first of eval_splits' primary metric is so high; null: never


@dataclass
class PathsConfig:
    runs: str = "runs"  # checkpoints and logs, a folder a run
    results: str = "results"  # records, tables, figures


@dataclass
class Config:
    experiment: str = "custom"  # the file of configs/experiment; groups runs in tables and in W&B
    task: str = "arrow"  # of plstm.tasks.TASKS; the files of configs/data set it
    seed: int = 43  # of initialisation, data order, augmentation and stochastic depth
    model: Any = MISSING  # the config of a family of plstm.models.MODELS
    data: Any = MISSING  # the task's data_schema
    augment: AugmentConfig | None = None  # of training images; null: none
    optim: OptimConfig = field(default_factory=OptimConfig)
    init_from: str | None = None  # the finished run to fine-tune: its id, the first digits of it, or its folder
    init_checkpoint: str = "last"  # or "best"; of that run
    loop: LoopConfig = field(default_factory=LoopConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)


@dataclass
class EvalDataConfig:
    """What to evaluate on. Keys that are null are as the run had them."""

    split: str | None = None  # null: all splits that the end of training evaluates
    folder: str | None = None  # instead: a folder of class folders of images, named as the classes or by their numbers
    root: str | None = None  # folder of all data sets
    generate: bool | None = None  # make missing images; otherwise missing data is an error
    download: bool | None = None  # fetch a missing set; otherwise missing data is an error
    workers: int | None = None  # reading processes
    max_corrupt: float | None = None  # share of images that may be undecodable


@dataclass
class EvalConfig:
    run: str | None = None  # the run's folder or id
    weights: str | None = None  # or a .safetensors file
    checkpoint: str = "last"  # or "best", of a run
    data: EvalDataConfig = field(default_factory=EvalDataConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    figures: bool = False  # also draw samples with predictions, and gating patterns, into results/figures
    logger: LoggerConfig = field(default_factory=LoggerConfig)  # accepted, as configs/local has it; nothing is logged
