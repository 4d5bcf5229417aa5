"""docs/add-your-own.md followed literally: its blocks are copied into a project, whose entries then take them."""

import json
import re
import shutil
import signal
import subprocess
import sys
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from tests import commands
from tests.commands import ROOT, begin, end
from tests.fork_server import wait_for

PAGE = (ROOT / "docs" / "add-your-own.md").read_text(encoding="utf-8")
# Path, the registry for lines that belong into one, and the block.
BLOCKS = re.findall(r"^`([\w./]+)`(?:, in `(\w+)`)?:\n\n```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the page's files and its lines in registries."""
    folder = tmp_path_factory.mktemp("project")
    for part in ("plstm", "data", "configs", "scripts", "train.py", "eval.py", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    for path, registry, text in BLOCKS:
        target = folder / path
        if registry:
            imports, entry = text.split("\n\n")
            text = re.sub(rf"^{registry}\b.*{{$", rf"\g<0>\n{entry.rstrip()}", target.read_text(), flags=re.MULTILINE)
            text = text.replace("from plstm", f"{imports}\nfrom plstm", 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


def test_the_page_names_every_block():
    assert len(BLOCKS) == PAGE.count("```python\n") + PAGE.count("```yaml\n")


def test_its_operator_is_the_recurrence():
    (code,) = [text for path, _, text in BLOCKS if path == "plstm/ops/running.py"]
    found = {}
    exec(code, found)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 3)), jnp.float32)
    decay = jnp.asarray([0.0, 0.5, 1.0])
    np.testing.assert_allclose(found["running_sum"](x, decay), found["running_sum_oracle"](x, decay), rtol=1e-5)


def test_its_files_pass_ruff(project):
    files = [path for path, registry, _ in BLOCKS if path.endswith(".py") and not registry]
    for command in (["check"], ["format", "--check"]):
        result = subprocess.run([sys.executable, "-m", "ruff", *command, *files], cwd=project, capture_output=True)
        assert result.returncode == 0, result.stdout.decode()


@pytest.mark.slow
def test_a_toy_model_and_task_train_resume_evaluate_and_stand_in_a_table(project):
    command = ["train.py", "experiment=majority/running", "seed=43", "logger.mode=disabled"]
    started, call = begin(*command, cwd=project), partial(commands.call, cwd=project)
    wait_for(lambda: list(project.glob("runs/*/checkpoints/32")) or started.poll() is not None)
    started.send_signal(signal.SIGTERM)
    assert "finished" not in end(started, 128 + signal.SIGTERM)[0]
    printed = call(*command)
    assert re.search(r"resumed at step \d+", printed) and "sequences" in printed
    (line,) = (project / "results/runs/majority-running.jsonl").read_text().splitlines()
    saved = json.loads(line)
    record, curve = saved["record"], saved["curve"]
    assert (record["unit"], record["task"], record["steps"]) == ("sequences", "majority", 128)
    assert record["metrics"]["last"]["val"]["solved"] > 0.8 > 0.5 > record["metrics"]["best"]["val"]["loss"]
    assert curve["step"][-1] == 128 and {"train.loss", "val.solved", "long.solved"} <= set(curve)
    evaluated = call("eval.py", f"run={record['id']}", "data.split=long")
    assert f"solved {record['metrics']['last']['long']['solved']:.6f}" in evaluated and "(200 sequences)" in evaluated
    assert "has finished" in call(*command)

    call("train.py", "-m", "experiment=majority/running", "model.decay=0.5", "seed=43,44", "logger.mode=disabled")
    call("scripts/make_tables.py", "majority")
    assert len((project / "results/runs/majority-running.jsonl").read_text().splitlines()) == 3
    table = (project / "results/majority/table.md").read_text()
    assert f"{record['metrics']['last']['val']['solved']:.3f}" in table
