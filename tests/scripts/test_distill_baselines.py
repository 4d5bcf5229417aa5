"""The teacher under a window's mask, by the names of the study's columns."""

import pytest

from plstm.errors import UserError
from plstm.models import SequenceConfig, build_model
from plstm.runs.compose import compose_experiment
from plstm.studies.definitions import load_table
from plstm.tasks import TASKS
from scripts.common import ROOT
from scripts.distill_baselines import scores, under_window


@pytest.mark.slow
def test_scores_of_the_masked_teacher_have_the_names_of_columns():
    words = (
        "model=code/transformer",
        "model.blocks=[attention]",
        "model.mlp_width=64",
        "debug=smoke",
        "model.dim=16",
        "data.context=256",
    )
    task = TASKS["code"](compose_experiment("code/language", *words))
    teacher = task.build_model(0)
    columns = load_table(ROOT / "configs/study/distill-small.yaml").columns
    full, narrow = (scores(model, task, columns) for model in (teacher, under_window(teacher, 4, 1)))
    assert full.keys() == narrow.keys() == {column.name for column in columns}
    assert all(abs(narrow[name] - full[name]) > 1e-5 for name in ("test_bits", "test_bits_part4", "val_bits"))
    other = build_model(SequenceConfig(blocks=["gdn"], dim=8), 0, task.sizes)
    with pytest.raises(UserError, match="^blocks gdn: none is attention; take a Transformer as the teacher$"):
        under_window(other, 4, 1)
