"""The names of experiments and other groups complete by tab, in bash."""

import subprocess

import pytest

from tests.commands import ROOT

COMPLETE = (
    'compopt() { :; }; source scripts/completion.bash; COMP_LINE=$1; COMP_POINT=${#1}; _plstm; echo "${COMPREPLY[@]}"'
)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("python train.py exp", "experiment="),
        ("python train.py ", "augment= data= debug= experiment= model= optim= variant="),
        ("python train.py experiment=arrow/vi", "arrow/vil arrow/vit"),
        ("python train.py -m seed=43 experiment=arrow/plstm,arrow/vi", "arrow/plstm,arrow/vil arrow/plstm,arrow/vit"),
        (f"python {ROOT}/train.py model=vit_", "vit_small vit_t"),
        ("python other.py experiment=arrow/vi", ""),
    ],
)
def test_groups_complete(line, reply):
    found = subprocess.run(["bash", "-c", COMPLETE, "bash", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(found.stdout.split()) == sorted(reply.split())
    assert not found.stderr
