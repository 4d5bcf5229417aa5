"""The smallest useful form of each task's data and of each family of models, which `debug=smoke` takes."""

from typing import Any

from data.imagenet.folders import TOY

TEXT: dict[str, dict[str, Any]] = {
    "data": {"name": "toy", "context": 64, "eval_rows": 16},
    "optim": {"epochs": 0.016, "warmup_epochs": 0.004},
}
DATA: dict[str, dict[str, Any]] = {
    "arrow": {
        "data": {"size": 48, "object_scale": 0.25, "thinnest": 2, "train_images": 256, "eval_images": 64},
        "model": {"dtype": "float32"},
    },
    "imagenet": {  # images are drawn when they are read, so no data set has to be prepared
        "data": {"name": "mosaics", "size": 48, "train_images": 288, "held_out": 28, "eval_images": 64, "workers": 0},
        "model": {"dtype": "float32"},
    },
    "folder": {  # twenty pictures of shapes, unless data.path is given
        "data": {"path": str(TOY), "size": 48, "workers": 0},
        "model": {"dtype": "float32"},
        "optim": {"batch_size": 8},
        "loop": {"unit": "steps"},
    },
    "graphs": {  # one fold of forty made-up graphs
        "data": {"name": "TOY"},
        "optim": {"batch_size": 16, "warmup_epochs": 1},
        "loop": {"log_every": 1, "eval_every": 1, "save_every": 1},
        "hydra": {"sweeper": {"params": {"data.fold": 0}}},
    },
    "languages": {
        "data": {"longest": 64, "every": 20, "ext_lengths": [41, 64], "eval_rows": 8},
        "optim": {"epochs": 0.02, "warmup_epochs": 0},
    },
    "code": TEXT,
    "distill": TEXT,
    "series": {
        "data": {"name": "toy", "bank": 64, "eval_rows": 16},
        "optim": {"epochs": 0.016, "warmup_epochs": 0.004},
    },
    "tokens": {  # an epoch is 1,000 steps
        "data": {"length": 16, "eval_rows": 40},
        "optim": {"epochs": 0.016, "warmup_epochs": 0.004},
        "loop": {"save_every": None},
    },
    "walk": {
        "data": {"side": 4, "eval_rows": 16},
        "optim": {"epochs": 0.016, "warmup_epochs": 0.004, "batch_size": 16},
        "loop": {"save_every": None},
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "vision": {"depth": 2},
    "vil": {"depth": 2},
    "efficientnet": {"stem": 8, "stages": [[3, 1, 1, 1, 8], [5, 2, 2, 3, 12]], "features": 24},
    "mamba2d": {"dims": [8, 16], "depths": [1, 1], "mixers": ["m2d", "attention"], "states": 4},
    "ss2d": {"dims": [8, 16], "depths": [1, 1]},
    "graph": {"depth": 2},
    "sequence": {"dim": 24, "attention_heads": None, "inner_dim": None, "head_dim": None},
    "series": {"dim": 16, "mlp_width": 24},
    "language": {"dim": 16},
}
