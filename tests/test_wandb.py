"""What W&B gets of runs on graphs, tokens and series, read back from offline files; tests/test_runs.py has images."""

import pytest

from tests.commands import record_of
from tests.wandb_files import assert_complete

SMALL = ["debug=smoke", "model.dim=16", "logger.mode=offline"]


@pytest.mark.parametrize(
    ("overrides", "metric", "pictures"),
    [
        (["experiment=graphs/gin", "data.fold=0"], "accuracy", set()),
        pytest.param(["experiment=tokens/plstm"], "accuracy", set(), marks=pytest.mark.slow),
        pytest.param(["experiment=series/forecast", "model=series/gdn"], "skill", {"samples"}, marks=pytest.mark.slow),
    ],
    ids=["graphs", "tokens", "series"],
)
def test_config_summary_and_history(train, tmp_path, overrides, metric, pictures):
    said = train(tmp_path, *SMALL, *overrides, *[f"data.root={tmp_path}"] * (metric == "skill"))
    record = record_of(tmp_path)
    run = tmp_path / "runs" / record.id
    assert said.count("W&B") == 1 and f"to upload: wandb sync {run}/wandb\n" in said
    assert_complete(run, record, pictures, metric)
