"""Pre-training and fine-tuning as a user starts them, on pictures drawn in memory. Real processes on tiny models."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plstm.results.records import read_records

ROOT = Path(__file__).resolve().parents[1]
TINY = [
    "debug=smoke",
    "model.dim=16",
    "model.heads=2",
    "optim.epochs=1",
    "optim.warmup_epochs=0.5",
    "loop.eval_every=4",
]

pytestmark = pytest.mark.slow


def train(folder: Path, *overrides: str, status: int = 0) -> str:
    paths = [f"paths.runs={folder}/runs", f"paths.results={folder}/results"]
    command = [sys.executable, "-u", str(ROOT / "train.py"), *TINY, *overrides, *paths]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def record_of(folder: Path, experiment: str):
    return next(record for record in read_records(folder / "results") if record.experiment == experiment)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder, "experiment=imagenet/plstm_s")
    return folder


def test_fine_tuning_at_another_size_and_again(pretrained, tmp_path):
    start = record_of(pretrained, "imagenet/plstm_s")
    moved = shutil.copytree(pretrained / "runs" / start.id, tmp_path / "elsewhere")
    experiment = ["experiment=imagenet/plstm_s_finetune", "data.size=64"]
    said = train(pretrained, *experiment, f"init_from={moved}")
    assert f"the weights of {moved}, step {start.steps}; position embedding 3 x 3 -> 4 x 4" in " ".join(said.split())
    record = record_of(pretrained, "imagenet/plstm_s_finetune")
    assert record.config["init_from"] == start.id and str(tmp_path) not in record.command
    assert f'init_from="{start.id}"' in record.overrides
    assert record.parameters == start.parameters + (16 - 9) * 16
    # The same start, named otherwise, is the same run; and eval.py needs the start no more.
    assert "has finished; its record is" in train(pretrained, *experiment, f"init_from={start.id[:7]}")
    shutil.rmtree(moved)
    command = [sys.executable, str(ROOT / "eval.py"), f"run={record.id}", f"paths.runs={pretrained}/runs"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"accuracy {record.metrics['last']['test']['accuracy']:.6f}" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "error: init_from: name the run to fine-tune, init_from=<its id or folder>"),
        (["init_from=nowhere"], "error: init_from=nowhere: no such run in"),
        (["init_from=0123456789ab"], "error: init_from=0123456789ab: no such run in"),
        (["init_from={start}", "model.gates=printed"], "error: model.gates=printed: the run"),
        (["init_from={start}", "init_checkpoint=best"], "error: init_checkpoint=best:"),
    ],
)
def test_what_cannot_be_fine_tuned_is_told_in_one_line(pretrained, arguments, words):
    start = record_of(pretrained, "imagenet/plstm_s").id
    arguments = [argument.format(start=start) for argument in arguments]
    said = train(pretrained, "experiment=imagenet/plstm_s_finetune", *arguments, status=2)
    assert said.startswith(words) and len(said.splitlines()) == 1
