"""Pre-training and fine-tuning as a user starts them, on pictures drawn in memory. Real processes on tiny models."""

import shutil
from pathlib import Path

import pytest

from plstm.studies.records import Record, read_records
from tests.commands import call, paths

TINY = ["debug=smoke", "model.dim=16", "model.heads=2", "optim.epochs=1", "loop.eval_every=4"]
TINY += ["optim.warmup_epochs=0.5"]
TUNED = ["experiment=imagenet/plstm", "variant=finetune", "data.size=64"]

pytestmark = pytest.mark.slow


def record_of(folder: Path, variant: str | None = None) -> Record:
    return next(record for record in read_records(folder / "results") if record.variant == variant)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    call("train.py", *TINY, "experiment=imagenet/plstm", *paths(folder))
    return folder


def test_fine_tuning_at_another_size_and_again(pretrained, tmp_path):
    start = record_of(pretrained)
    moved = shutil.copytree(pretrained / "runs" / start.id, tmp_path / "elsewhere")
    command = ["train.py", *TINY, *TUNED, *paths(pretrained)]
    said = call(*command, f"init_from={moved}")
    assert f"the weights of {moved}, step {start.steps}; position embedding 3 x 3 -> 4 x 4" in " ".join(said.split())
    record = record_of(pretrained, "finetune")
    assert record.config["init_from"] == start.id and str(tmp_path) not in record.command
    assert f'init_from="{start.id}"' in record.overrides
    assert record.parameters == start.parameters + (16 - 9) * 16
    # The same start, named otherwise, is the same run; and eval.py needs the start no more.
    assert "has finished; its record is" in call(*command, f"init_from={start.id[:7]}")
    shutil.rmtree(moved)
    printed = call("eval.py", f"run={record.id}", *paths(pretrained))
    assert f"accuracy {record.metrics['last']['test']['accuracy']:.6f}" in printed
