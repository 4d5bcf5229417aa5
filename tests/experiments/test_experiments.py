"""Every file under configs/experiment: it composes, builds, and is what its header, its table and the paper say."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from plstm.experiments.config import Config, run_id, to_config
from plstm.experiments.config import plain_config as plain
from plstm.experiments.sweeps import load_table
from plstm.models import build_model
from plstm.training.optimizers import learning_rate_schedule

from .conftest import ROOT

FOLDER = ROOT / "configs/experiment"
EXPERIMENTS = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml"))
ARROW = [name for name in EXPERIMENTS if name.startswith("arrow/")]
TABLES = sorted(path.stem for path in (ROOT / "configs/tables").glob("*.yaml"))

# Appendix G.2, Table 2, and the released configurations.
PAPER = {
    "model": dict(
        image_size=192, channels=3, classes=2, patch_size=16, dim=192, depth=12, heads=6, mlp_ratio=4, modes=["P", "D"],
        gates="released", stm_bias_only=False, gate_init="zeros", position_embedding=True, pooling="corners",
        norm="rmsnorm", layer_scale=None, drop_path=0.0, dtype="bfloat16",
    ),
    "data": dict(name="arrow_pointing", classes=2, size=192, scale=1.0, train_images=100_000, eval_images=None),
    "optim": dict(
        name="adamw", end_factor=1e-3, warmup_epochs=1.0, epochs=50.0, batch_size=128, weight_decay=0.05, b1=0.9,
        b2=0.999, eps=1e-8, clip_norm=1.0, label_smoothing=0.0,
    ),
    "loop": dict(eval_every=2000, final_splits=["val", "val_ext", "test", "test_ext"], best_metric="val"),
}  # fmt: skip
VARIANTS = {
    "arrow/plstm": {},
    "arrow/plstm_d_mode": {"modes": ["D"]},
    "arrow/plstm_p_mode": {"modes": ["P"]},
    "arrow/plstm_no_posemb": {"position_embedding": False},
    "arrow/plstm_stm_bias": {"stm_bias_only": True},
    "arrow/plstm_printed": {"gates": "printed"},
    "arrow/vit": {"modes": ["attention"], "pooling": "class_token", "layer_scale": 1.0},
}


@pytest.fixture(scope="module")
def configs(composed) -> dict[str, Config]:
    """Every experiment, as the command in its header runs it."""
    return {name: to_config(composed(*header_command(name))) for name in EXPERIMENTS}


def header(name: str) -> list[str]:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    return [line for line in lines if line.startswith("#")]


def header_command(name: str) -> list[str]:
    """The arguments of train.py on the second line."""
    return header(name)[1].removeprefix("# python train.py ").split()


def steps_of(config: Config) -> tuple[int, int]:
    epoch = config.data.train_images // config.optim.batch_size
    return round(config.optim.epochs * epoch), round(config.optim.warmup_epochs * epoch)


def row_of(config: Config):
    table = load_table(ROOT / "configs/tables" / f"{config.report.table}.yaml")
    rows = [row for row in table.rows if row.name == config.report.row]
    assert len(rows) == 1, f"table {table.name} has {[row.name for row in table.rows]}, not {config.report.row}"
    return table, rows[0]


def parameters(config) -> int:
    state = nnx.state(nnx.eval_shape(lambda: build_model(config, 0)), nnx.Param)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


def test_every_variant_is_known():
    assert set(ARROW) == set(VARIANTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_header_s_command_runs_this_experiment(configs, name):
    lines = header(name)
    assert lines[0] == "# @package _global_" and lines[1].startswith("# python train.py ")
    assert header_command(name)[0] == f"experiment={name}"
    assert configs[name].experiment == name
    assert "Cost" in " ".join(lines)
    assert len((FOLDER / f"{name}.yaml").read_text().splitlines()) <= 15


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_model_builds(configs, name):
    config = configs[name]
    build_and_call = lambda images: build_model(config.model, 0)(images)  # noqa: E731
    for size in (config.data.size, 2 * config.data.size):  # training and extrapolation
        logits = jax.eval_shape(build_and_call, jax.ShapeDtypeStruct((2, size, size, 3), np.float32))
        assert logits.shape == (2, config.data.classes) and logits.dtype == np.float32


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_table_has_its_row(configs, name):
    config = configs[name]
    table, row = row_of(config)
    assert row.experiment == name
    for key, value in table.require.items():
        assert OmegaConf.select(OmegaConf.structured(config), key) == value, key
    assert config.seed in table.sweep["seed"]
    assert config.optim.peak_lr in table.sweep.get("optim.peak_lr", [config.optim.peak_lr])


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_has_its_experiment(name):
    for row in load_table(ROOT / "configs/tables" / f"{name}.yaml").rows:
        assert row.experiment in EXPERIMENTS


@pytest.mark.parametrize("name", ARROW)
def test_the_header_tells_the_paper_s_figures(configs, name):
    row, text = row_of(configs[name])[1], " ".join(header(name))
    expected = re.search(r"(\S+)\): test (\S+) \+- (\S+), test_ext (\S+) \+- ([\d.]+\d)", text)
    assert (expected is None) == (row.paper is None)
    if expected:
        peak_lr, *figures = (float(figure) for figure in expected.groups())
        assert figures == [*row.paper["test"], *row.paper["test_ext"]]
        assert peak_lr == row.paper["peak_lr"] == configs[name].optim.peak_lr


@pytest.mark.parametrize("name", ARROW)
def test_arrow_pointing_follows_the_paper(configs, name):
    config = plain(configs[name])
    for group, expected in PAPER.items():
        expected = expected | (VARIANTS[name] if group == "model" else {})
        assert {key: config[group][key] for key in expected} == expected


@pytest.mark.parametrize("name", ARROW)
def test_arrow_pointing_s_schedule(configs, name):
    config = configs[name]
    steps, warmup = steps_of(config)
    assert (steps, warmup) == (39_050, 781)
    rates = np.asarray(learning_rate_schedule(config.optim, steps, warmup)(np.array([0, 71, 781, 19_915, 39_049])))
    np.testing.assert_allclose(rates / config.optim.peak_lr, [0, 71 / 781, 1, 0.5005, 1e-3], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_smoke_run_is_small_and_enters_no_table(composed, name):
    config = to_config(composed(f"experiment={name}", "debug=smoke"))
    assert config.report.table is None and config.report.row is None
    assert config.paths.results != Config().paths.results and config.logger.mode == "disabled"
    assert steps_of(config)[0] <= 20 and config.data.size == 48 and config.model.depth == 2
    assert parameters(config.model) > 0


def test_no_two_experiments_are_one_run(configs):
    assert len({run_id(plain(config)) for config in configs.values()}) == len(configs)


@pytest.mark.parametrize(
    ("model", "expected", "drop_path"),
    [
        ("plstm_t", 6_304_420, 0.0),
        ("plstm_s", 23_252_320, 0.05),
        ("plstm_b", 89_081_560, 0.1),
        ("vit_t", 5_707_048, 0.0),
        ("vit_s", 22_029_928, 0.05),
        ("vit_b", 86_526_184, 0.1),
    ],
)
def test_models_have_the_published_sizes_on_imagenet(composed, model, expected, drop_path):
    config = OmegaConf.to_object(composed(f"model={model}", "model.classes=1000", "model.image_size=192")).model
    assert parameters(config) == expected and config.drop_path == drop_path
