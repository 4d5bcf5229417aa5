"""Example records: finished runs of the arrow table with made-up accuracies."""

import dataclasses
import hashlib
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from plstm.results.definitions import load_table
from plstm.results.records import RunRecord, write_record
from plstm.runs.cli import register

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = {"platform": "gpu", "device_kind": "H100", "device_count": 1, "cpu_model": "Xeon", "cpu_cores": 8}


def example_record(
    experiment="arrow/plstm",
    row="pLSTM",
    seed=43,
    lr=1e-4,
    val=0.97,
    test=0.97,
    test_ext=0.78,
    table="arrow",
    init_from=None,
    **changes,
):
    """A record as its table asks for it, of the paper's size without one; `changes` replace whole fields."""
    config = {"experiment": experiment, "seed": seed, "optim": {"peak_lr": lr}, "init_from": init_from}
    config = OmegaConf.create(config)
    definition = load_table(ROOT / "configs/tables" / f"{table or 'arrow'}.yaml")
    for key, value in definition.require.items():
        OmegaConf.update(config, key, value)
    overrides = [f"experiment={experiment}", f"seed={seed}"]
    overrides += [f"optim.peak_lr={lr}"] if "optim.peak_lr" in definition.sweep else []
    splits = {"val": val, "val_ext": 0.77, "test": test, "test_ext": test_ext}
    record = RunRecord(
        id=hashlib.sha256(f"{experiment} {seed} {lr}".encode()).hexdigest()[:12],
        name=f"{experiment.replace('/', '-')}-s{seed}",
        experiment=experiment,
        command=" ".join(["python train.py", *overrides]),
        overrides=overrides,
        config=OmegaConf.to_container(config),
        table=table,
        row=row,
        seed=seed,
        commit="0123456789abcdef0123456789abcdef01234567",
        dirty=False,
        versions={"python": "3.11.9", "jax": "0.10.2", "pillow": None},
        hardware=HARDWARE,
        started="2025-06-01T10:00:00+00:00",
        finished="2025-06-01T11:00:00+00:00",
        wall_seconds=3600.0,
        steps=39_050,
        epochs=50.0,
        images_per_second=1500.0,
        parameters=5_500_000,
        flops_per_image=None,
        metrics={
            "last": {split: {"loss": 0.1, "accuracy": value, "count": 5120} for split, value in splits.items()},
            "best": {"step": 38_000, "val": {"accuracy": val}},
        },
    )
    return dataclasses.replace(record, **changes)


def example_curve(final, shift=0):
    """Accuracies that stay at chance and then rise to `final`, at 20 evaluations over 50 epochs."""
    rows = []
    for step in range(2000, 40_001, 2000):
        rise = 1 / (1 + math.exp(-(step - 14_000 - shift) / 2000))
        for split, top in (("train", min(1, final + 0.02)), ("val", final), ("val_ext", final - 0.2)):
            rows.append((step, step / 781, split, "accuracy", 0.5 + (top - 0.5) * rise))
        rows.append((step, step / 781, "train", "loss", 0.7 * (1 - rise)))
    return rows


@pytest.fixture(scope="module")
def composed():
    """Function of command-line arguments: the config node that train.py gets."""
    register()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        yield lambda *arguments: compose("train", overrides=list(arguments))


@pytest.fixture
def add(tmp_path):
    """Write example records, with curves, into `tmp_path`; called with the arguments of `example_record`."""

    def write(**fields):
        record = example_record(**fields)
        write_record(
            record, example_curve(record.metrics["last"]["val"]["accuracy"], 400 * (record.seed - 45)), tmp_path
        )
        return record

    return write


def run_table(*arguments):
    """`scripts/run_table.py` with these arguments, run to its end."""
    command = [sys.executable, "scripts/run_table.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def svg_texts(path):
    """The texts of an SVG: matplotlib writes each as a comment before its outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(path, parser)
    return [node.text.strip() for node in tree.iter() if node.tag is ElementTree.Comment]
