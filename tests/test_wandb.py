"""What W&B gets of graph and token runs, read back from the client's offline files; tests/test_runs.py has images."""

import pytest

from tests.commands import record_of
from tests.wandb_files import assert_complete

SMALL = ["debug=smoke", "model.dim=16", "logger.mode=offline"]


@pytest.mark.parametrize(
    "overrides",
    [["experiment=graphs/gin", "data.fold=0"], ["experiment=tokens/plstm"]],
    ids=["graphs", "tokens"],
)
def test_config_summary_and_history(train, tmp_path, overrides):
    said = train(tmp_path, *SMALL, *overrides)
    record = record_of(tmp_path)
    run = tmp_path / "runs" / record.id
    assert said.count("W&B") == 1 and f"to upload: wandb sync {run}/wandb\n" in said
    assert_complete(run, record, pictures=set())
