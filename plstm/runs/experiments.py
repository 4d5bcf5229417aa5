"""The configs of experiments by name, without running them."""

from plstm.config import Config
from plstm.runs.compose import compose_config, to_config
from plstm.runs.identity import named


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Raises
    UserError where it cannot be composed."""
    words = [f"experiment={experiment}", "init_from=null", *overrides]
    return named(to_config(compose_config("train", words)), words)
