"""Settings of one's own machine, configs/local/default.yaml, hold for training and evaluation and change no id."""

import re
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from plstm.config import Config, run_id, to_config, to_eval_config
from plstm.errors import UserError
from plstm.runs.cli import CONFIGS, check_local, hydra_task, register


def composed_from(configs: Path):
    """Trainings by name, one with values of its own, and an evaluation."""
    names = ("arrow/plstm", "graphs/gin", "imagenet/vit_s")
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
    (folder / "local/default.yaml").write_text(text)
    trainings, own, evaluation = composed_from(folder)
    for config in (*trainings.values(), evaluation):
        assert (config.data.root, config.paths.runs) == ("/scratch/data", "/scratch/runs")
        mode = "disabled" if getattr(config, "task", None) == "graphs" else "online"  # graphs/plstm.yaml says so
        assert (config.logger.mode, config.logger.entity) == (mode, "my-team")
    assert (own.data.root, own.paths.runs, own.logger.mode) == ("there", "here", "disabled")
    for name, config in trainings.items():
        assert config != without[name] and run_id(config) == run_id(without[name])


def test_a_local_config_that_is_not_one_is_named(tmp_path, capsys):
    path = tmp_path / "default.yaml"
    path.write_text("[paths]")
    with pytest.raises(UserError, match=f"{path}: write keys and their values"):
        check_local(path)
    path.write_text("paths: {runs: here")
    with pytest.raises(SystemExit), hydra_task(Config):
        check_local(path)
    assert f'"{path}", line 1' in capsys.readouterr().err
