"""The configs of experiments by name, without running them."""

from hydra import compose, initialize_config_dir

from plstm.config import Config
from plstm.errors import UserError
from plstm.runs.cli import CONFIG_ERRORS, CONFIGS, explain, register
from plstm.runs.compose import to_config


def compose_experiment(experiment: str, *overrides: str) -> Config:
    """The checked config of `python train.py experiment=...`; a run to fine-tune need not exist. Raises
    UserError where it cannot be composed."""
    register()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            node = compose("train", overrides=[f"experiment={experiment}", "init_from=null", *overrides])
    except CONFIG_ERRORS as error:
        raise UserError(explain(error, Config)) from error
    return to_config(node)
