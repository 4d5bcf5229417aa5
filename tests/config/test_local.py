"""Settings of one's own machine, configs/local/default.yaml, hold for training and evaluation and change no id."""

import re
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from plstm.errors import UserError
from plstm.runs.compose import register, to_config, to_eval_config
from plstm.runs.identity import run_id
from plstm.runs.local import local_settings
from plstm.runs.overrides import CONFIGS
from scripts import common
from scripts.common import ROOT, machine_folder


def composed_from(configs: Path):
    """Trainings by name, one with values of its own, and an evaluation."""
    names = ("arrow/plstm", "graphs/gin", "imagenet/vit", "tokens/plstm", "languages/lstm")
    with initialize_config_dir(str(configs), version_base="1.3"):
        trainings = {name: to_config(compose("train", [f"experiment={name}"])) for name in names}
        own = to_config(compose("train", ["paths.runs=here", "logger.mode=disabled", "data.root=there"]))
        return trainings, own, to_eval_config(compose("eval", ["run=0123"]))


def test_the_local_config_of_the_readme_is_taken_where_nothing_is_given(tmp_path):
    register()
    folder = tmp_path / "configs"
    shutil.copytree(CONFIGS, folder, ignore=lambda path, names: ["default.yaml"] if path.endswith("local") else [])
    without, *_ = composed_from(folder)
    text = re.search("```yaml\n(.*)```", (CONFIGS / "local/README.md").read_text(), re.DOTALL)[1]
    (folder / "local/default.yaml").write_text(text.replace("/scratch/data}", "/scratch/data, workers: 2}"))
    trainings, own, evaluation = composed_from(folder)
    for config in (*trainings.values(), evaluation):
        assert (config.data.root, config.data.workers) == ("/scratch/data", 2)
        assert config.paths.runs == "/scratch/runs"
        assert (config.logger.mode, config.logger.entity) == ("online", "my-team")
    assert (own.data.root, own.paths.runs, own.logger.mode) == ("there", "here", "disabled")
    for name, config in trainings.items():
        assert config != without[name] and run_id(config) == run_id(without[name])


def test_a_local_config_that_is_not_one_is_named(tmp_path):
    path = tmp_path / "default.yaml"
    for text in ("[paths]", "# @package _global_\ndata: 3"):
        path.write_text(text)
        with pytest.raises(UserError, match=f"{path}: write keys and their values"):
            local_settings(path)
    path.write_text("# @package _global_\npaths: {runs: here}", encoding="utf-16")
    with pytest.raises(UserError, match=f"{path}: must begin with the line # @package _global_"):
        local_settings(path)
    path.write_text("paths: {runs: here")
    with pytest.raises(UserError, match=f"{path}: cannot be read .*line 1"):
        local_settings(path)
    # Hydra does not look behind another line or mark.
    for start in ("", "# my machine\n# @package _global_\n", "\ufeff# @package _global_\n"):
        path.write_text(f"{start}paths: {{runs: here}}")
        with pytest.raises(UserError, match=f"{path}: must begin with the line # @package _global_"):
            local_settings(path)
    path.write_text("# @package _global_\noptim: {epochs: 1}")
    with pytest.raises(UserError, match=f"{path}: optim has no place there"):
        local_settings(path)


def test_scripts_look_where_the_machine_has_its_runs(monkeypatch):
    monkeypatch.setattr(common, "local_settings", lambda: OmegaConf.create({"paths": {"runs": "/scratch/runs"}}))
    assert (machine_folder("runs"), machine_folder("results")) == (Path("/scratch/runs"), ROOT / "results")
