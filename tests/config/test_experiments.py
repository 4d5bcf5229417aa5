"""The files of configs/experiment and configs/variant: they compose, build, and follow the papers."""

import math

import jax
import numpy as np
import pytest
from flax import nnx

from data.imagenet.folders import TOY
from plstm.config import Config
from plstm.errors import UserError
from plstm.runs.compose import compose_experiment, from_file, to_config
from plstm.runs.identity import run_id
from plstm.runs.overrides import CONFIGS
from plstm.studies.definitions import load_table
from plstm.studies.plans import planned_config
from plstm.studies.records import read_records
from plstm.tasks import TASKS

ROOT = CONFIGS.parent
FOLDER = CONFIGS / "experiment"
EXPERIMENTS = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml"))
VARIANTS = sorted(path.stem for path in (CONFIGS / "variant").glob("*.yaml"))
STUDIES = {path.stem: load_table(path) for path in sorted((CONFIGS / "study").glob("*.yaml"))}
ROWS = {(study, row.name): row.overrides for study, table in STUDIES.items() for row in table.rows}
FIRST_ROWS = {name: row for table in STUDIES.values() for row in table.rows[::-1] for name in row.variants}
# Each experiment, each model of the paper's size, and each variant with one of the experiments that a study changes so.
CASES = [[f"experiment={name}"] for name in EXPERIMENTS]
LARGE = sorted(path.stem for path in (CONFIGS / "model/code_400m").glob("*.yaml"))
CASES += [["experiment=code/paper", f"model=code_400m/{name}"] for name in LARGE]
CASES += [["experiment=code/distill", "data.context=4096", "model.window=512", "model.sinks=4"]]  # the paper's students
CASES += {" ".join(row.overrides): row.overrides for row in FIRST_ROWS.values()}.values()


def config_of(overrides: list[str], *others: str) -> Config:
    return compose_experiment(overrides[0].partition("=")[2], *overrides[1:], *others)


def abstract_model(config: Config) -> nnx.Module:
    return nnx.eval_shape(lambda: TASKS[config.task](config).build_model(0))


def parameters(config: Config) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(abstract_model(config), nnx.Param)))


def steps_of(config: Config) -> tuple[int, int]:
    plan = TASKS[config.task](config).plan()
    return plan.steps, plan.warmup_steps


# ---------------------------------------------------------------------- files
def test_no_variant_is_without_a_study():
    assert sorted(FIRST_ROWS) == VARIANTS


@pytest.mark.slow
def test_no_experiment_repeats_another():
    pictures = {"folder/plstm": [f"data.path={TOY}"]}
    ids = {run_id(config_of([f"experiment={name}"], *pictures.get(name, ()))) for name in EXPERIMENTS}
    assert len(ids) == len(EXPERIMENTS)


@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_a_smoke_run_is_small_and_leaves_its_record_elsewhere(overrides):
    config = config_of(overrides, "debug=smoke")
    assert config.paths.results != Config().paths.results and config.logger.mode == "disabled"
    assert steps_of(config)[0] <= 20 and 0 < parameters(config) < 20e6
    assert getattr(config.data, "size", 48) == 48 and getattr(config.data, "length", 16) == 16


def test_more_steps_than_a_run_can_count_are_refused():
    with pytest.raises(UserError, match=r"optim.epochs=1e\+07: more than 2,147,483,647 steps of 781 an epoch"):
        steps_of(compose_experiment("arrow_48/plstm", "optim.epochs=1e7"))


# ---------------------------------------------------------------------- the papers
# Parameters, where no record holds how many there are.
PARAMETERS = {
    "arrow": {
        "pLSTM": 5_551_610,
        "pLSTM (gates as printed)": 5_551_610,
        "pLSTM / (no posemb.)": 5_523_962,
        "pLSTM / (P-mode only)": 5_574_218,
        "pLSTM / (D-mode only)": 5_529_002,
        "pLSTM / (STM bias only)": 5_540_090,
        "ViT": 5_514_434,
        "EfficientNet": 4_010_110,
        "Mamba2D": 8_034_350,
        "2DMamba": 6_687_170,
        "ViL": 5_996_546,
        "ViL (released grid)": 5_996_546,
    },
    "imagenet": {
        "pLSTM-Vis-T pre-training": 6_304_420,
        "pLSTM-Vis-T": 6_314_404,
        "pLSTM-Vis-S pre-training": 23_252_320,
        "pLSTM-Vis-S": 23_272_288,
        "pLSTM-Vis-B pre-training": 89_081_560,
        "pLSTM-Vis-B": 89_121_496,
        "ViT-T pre-training": 5_707_048,
        "ViT-T": 5_717_032,
        "ViT-S pre-training": 22_029_928,
        "ViT-S": 22_029_928 + 52 * 384,  # 14 x 14 - 12 x 12 more places
        "ViT-B pre-training": 86_526_184,
        "ViT-B": 86_526_184 + 52 * 768,
    },
}


@pytest.mark.parametrize(("study", "row"), [(study, row) for study, rows in PARAMETERS.items() for row in rows])
def test_a_model_has_the_published_size(study, row):
    assert parameters(config_of(ROWS[study, row])) == PARAMETERS[study][row]


@pytest.mark.parametrize(
    ("study", "row", "steps"),
    [
        ("arrow", "pLSTM", (39_050, 781)),
        ("imagenet", "pLSTM-Vis-T pre-training", (500_000, 3_125)),
        ("imagenet", "ViT-S pre-training", (250_000, 3_125)),
        ("imagenet", "ViT-B", (50_040, 12_510)),
        ("imagenet-ablation", "pLSTM", (250_000, 3_125)),
        ("languages", "LSTM", (1_000_000, 0)),
        ("tokens", "GDN", (20_000, 2_000)),
    ],
)
def test_steps_and_those_of_warm_up_are_the_papers(study, row, steps):
    """tests/training/test_optimizers.py sees what the learning rate is at each."""
    assert steps_of(config_of(ROWS[study, row])) == steps


OPTIM = ("name", "batch_size", "epochs", "warmup_epochs", "peak_lr", "weight_decay", "clip_norm", "loss")
AUGMENT = ("auto_augment", "color_jitter", "random_erasing", "repeats", "mixup", "cutmix")
CROSS, BINARY = "cross_entropy", "binary_cross_entropy"
THREE, RAND = ("three_augment", 0.3, 0.0, 3, 0.8, 1.0), ("rand-m9-mstd0.5-inc1", 0.0, 0.0, 1, 0.8, 1.0)


@pytest.mark.parametrize(
    ("experiment", "variants", "optim", "augment"),
    [  # Appendix G.2, Tables 6 and 7; docs/deviations.md says where the published runs differ, and ours with them
        ("arrow/plstm", [], ("adamw", 128, 50, 1, 1e-4, 0.05, 1, CROSS), None),
        ("imagenet/plstm", [], ("lamb", 2048, 800, 5, 4e-3, 0.02, 1, BINARY), THREE),
        ("imagenet/plstm", ["size_s"], ("lamb", 2048, 400, 5, 4e-3, 0.02, 1, BINARY), THREE),
        ("imagenet/vit", ["size_b"], ("lamb", 2048, 400, 5, 3e-3, 0.02, 1, BINARY), THREE),
        ("imagenet/plstm", ["finetune"], ("adamw", 512, 20, 5, 1e-5, 0.1, 1, CROSS), RAND),
        ("imagenet/vit", ["size_b", "finetune"], ("adamw", 512, 20, 5, 1e-5, 0.1, 1, CROSS), RAND),
        (
            "ablation/plstm",
            ["d_mode"],
            ("adamw", 2048, 400, 5, 1e-3, 0.05, 1, CROSS),
            (RAND[0], 0.0, 0.25, 3, 0.8, 1.0),
        ),
    ],
)
def test_recipes_are_the_papers(experiment, variants, optim, augment):
    plain = planned_config(experiment, variants)
    assert tuple(plain["optim"][key] for key in OPTIM) == optim
    assert (plain["augment"] and tuple(plain["augment"][key] for key in AUGMENT)) == augment


@pytest.mark.parametrize("study", [pytest.param("arrow", marks=pytest.mark.slow), "arrow-48"])
def test_models_of_images_take_both_sizes(study):
    for row in STUDIES[study].rows:
        config = config_of(row.overrides)
        size = 2 * config.data.size  # of extrapolation
        images = jax.ShapeDtypeStruct((2, size, size, 3), np.float32)
        logits = nnx.eval_shape(lambda model, images: model(images), abstract_model(config), images)
        assert logits.shape == (2, config.data.classes) and logits.dtype == np.float32, row.name


# ---------------------------------------------------------------------- records
def test_finished_runs_have_the_ids_of_their_configs_and_commands(composed):
    """One of each task and family of models; all of them are a slow test."""
    some = {(run.task, run.config["model"]["family"]): run for run in read_records(ROOT / "results")}
    assert len(some) >= 13
    for record in some.values():
        config = to_config(composed(*record.overrides))
        assert run_id(from_file(record.config)) == record.id == run_id(config)
        assert parameters(config) == record.parameters


@pytest.mark.slow
def test_all_finished_runs_keep_their_ids_and_commands(composed):
    """Commands of a cross-validation's many runs: of one an experiment."""
    records = read_records(ROOT / "results")
    for record in records:
        assert run_id(from_file(record.config)) == record.id, record.name
    for record in {run.experiment if run.task == "graphs" else run.id: run for run in records}.values():
        assert run_id(to_config(composed(*record.overrides))) == record.id, record.name


@pytest.mark.parametrize("name", LARGE)
def test_hybrids_of_the_papers_size_have_400m_parameters(name):
    """With the embeddings of its 50,304 tokens instead of our bytes; see docs/deviations.md."""
    count = parameters(compose_experiment("code/paper", f"model=code_400m/{name}"))
    assert count - 2 * 257 * 1024 + 2 * 50304 * 1024 == pytest.approx(406.5e6, rel=0.02)


@pytest.mark.parametrize(("dim", "count"), [(72, 1e6), (152, 4e6), (240, 10e6), (496, 40e6), (704, 80e6)])
def test_models_of_series_have_the_papers_sizes(dim, count):
    assert parameters(compose_experiment("series/paper", f"model.dim={dim}")) == pytest.approx(count, rel=0.08)
