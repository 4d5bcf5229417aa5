"""Pre-training and fine-tuning as a user starts them, on pictures drawn in memory and on made-up source code. Real
processes on tiny models."""

import json
import shutil
from pathlib import Path

import pytest
from flax import nnx

from plstm.runs.weights import from_checkpoint
from plstm.studies.records import Record, read_records
from plstm.training.steps import named_leaves
from tests.commands import call, one_error, paths

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


def test_a_student_is_aligned_with_its_teacher_and_then_distilled(tmp_path):
    """The first stage leaves what it does not train as the teacher has it, also in its checkpoint."""
    small = ["debug=smoke", "model.dim=16", "model.heads=2", "model.mlp_width=8", *paths(tmp_path)]
    call("train.py", "experiment=code/language", "model=code/transformer", *small)
    runs = tmp_path / "runs"
    (teacher,) = (path.name for path in runs.iterdir())
    call("scripts/export.py", runs / teacher, tmp_path / "teacher.safetensors")
    assert "tensors of linear drawn" in " ".join(
        call("train.py", "experiment=code/distill", f'init_from="{teacher}"', *small).split()
    )
    said = one_error(
        call("train.py", "experiment=code/distill", f'init_from="{teacher}"', *small, "model.dim=32", status=2)
    )
    assert "model.dim" in said and len([*runs.iterdir()]) == 2
    (aligned,) = (path.name for path in runs.iterdir() if path.name != teacher)
    old, new = (named_leaves(nnx.state(from_checkpoint(runs / name), nnx.Param)) for name in (teacher, aligned))
    assert {name for name in new if "linear" not in name} == old.keys()
    assert all((new[name] == leaf).all() for name, leaf in old.items())
    wrong = ["variant=stage_2", f'init_from="{aligned}"', 'data.teacher="0123456789ab"', *small]
    wrong += [f"data.teacher_file={tmp_path}/teacher.safetensors"]
    said = one_error(call("train.py", "experiment=code/distill", *wrong, status=2))
    assert said == f"error: data.teacher=0123456789ab: {tmp_path}/teacher.safetensors has the weights of {teacher}"
    assert len([*runs.iterdir()]) == 2  # nothing of the run that was refused
    right = [word.replace("0123456789ab", teacher) for word in wrong]
    call("train.py", "experiment=code/distill", *right)
    (path,) = (tmp_path / "results/runs").glob("code-distill.jsonl")
    first, second = (json.loads(line)["record"] for line in path.read_text().splitlines())
    assert (first["config"]["init_from"], second["config"]["init_from"]) == (teacher, aligned)
    assert second["config"]["data"]["teacher"] == teacher and "teacher_file" not in second["config"]["data"]
    assert second["metrics"]["last"]["test"]["bits"] < first["metrics"]["last"]["test"]["bits"]
