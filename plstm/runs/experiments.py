"""The configs of experiments by name, without running them."""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from plstm.config import Config
from plstm.errors import UserError
from plstm.runs.cli import CONFIG_ERRORS, CONFIGS, explain, register
from plstm.runs.compose import to_config
from plstm.runs.identity import named


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Raises
    UserError where it cannot be composed."""
    words = [f"experiment={experiment}", "init_from=null", *overrides]
    return named(to_config(compose_node(words)), words)


def compose_node(overrides: Sequence[str]) -> DictConfig:
    """What Hydra composes of `python train.py` with these overrides. Raises UserError where it cannot."""
    register()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return compose("train", overrides=list(overrides))
    except CONFIG_ERRORS as error:
        raise UserError(explain(error, Config)) from error
