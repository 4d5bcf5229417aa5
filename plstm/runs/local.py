"""A machine's own settings, configs/local/default.yaml."""

import re
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from plstm.errors import UserError
from plstm.runs.compose import read_yaml
from plstm.runs.overrides import CONFIGS

LOCAL = CONFIGS / "local" / "default.yaml"
GLOBAL = re.compile(r"\s*#\s*@package\s+_global_\s*$", re.MULTILINE)  # without it Hydra puts the keys under `local`
LOCAL_KEYS = ("paths", "logger", "data.root", "data.workers")  # what that file may have


def local_settings(path: Path = LOCAL) -> DictConfig:
    """A machine's own settings; UserError if they change what is computed: git does not see that file."""
    try:
        settings = OmegaConf.create(read_yaml(path) if path.is_file() else {})
    except UserError as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    data = (settings.get("data") or {}) if isinstance(settings, DictConfig) else None
    if not isinstance(data, dict | DictConfig):
        raise UserError(f"{path}: write keys and their values, such as paths: {{runs: /data/runs}}")
    if settings and not GLOBAL.match(path.read_text(encoding="utf-8", errors="replace")):
        raise UserError(f"{path}: must begin with the line # @package _global_, and without a byte-order mark")
    for key in [key for key in settings if key != "data"] + [f"data.{key}" for key in data]:
        if key not in LOCAL_KEYS:
            raise UserError(f"{path}: {key} has no place there, only {', '.join(LOCAL_KEYS)} have")
    return settings
