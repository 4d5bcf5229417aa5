"""docs/add-your-own.md as it stands: its files are added to a copy of the project, whose entries then take them."""

import json
import re
import shutil
import signal
from functools import partial

import pytest

from tests import commands
from tests.commands import ROOT, begin, end
from tests.fork_server import wait_for

PAGE = (ROOT / "docs" / "add-your-own.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(?:python|yaml)\n# ([^\n]+)\n(.*?)```", PAGE, re.DOTALL))
IMPORTS = {
    "plstm/models/registry.py": "from plstm.models.running import RunningConfig, build_running\n",
    "plstm/tasks/__init__.py": "from plstm.tasks.majority import MajorityTask\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the page's files and its two lines in registries."""
    folder = tmp_path_factory.mktemp("project")
    for part in ("plstm", "data", "configs", "scripts", "train.py", "eval.py"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    for place, text in BLOCKS.items():
        path, _, registry = place.partition(": in ")
        target = folder / path
        if registry:
            source = target.read_text()
            line = next(line for line in source.splitlines() if line.startswith(f"{registry}: "))
            inside = line.removesuffix("}") + ", " + text.strip().removesuffix(",") + "}"
            text = source.replace(line, f"{line}\n    {text.strip()}" if line.endswith("{") else inside)
            text = text.replace("from plstm", IMPORTS[path] + "from plstm", 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


@pytest.mark.slow
def test_a_toy_model_and_task_train_resume_evaluate_and_stand_in_a_table(project):
    command = ["train.py", "experiment=majority/running", "seed=43", "logger.mode=disabled"]
    started, call = begin(*command, cwd=project), partial(commands.call, cwd=project)
    wait_for(lambda: list(project.glob("runs/*/checkpoints/32")) or started.poll() is not None)
    started.send_signal(signal.SIGTERM)
    assert "finished" not in end(started, 128 + signal.SIGTERM)[0]
    printed = call(*command)
    assert re.search(r"resumed at step \d+", printed) and "sequences/s" in printed
    (line,) = (project / "results/runs/majority-running.jsonl").read_text().splitlines()
    saved = json.loads(line)
    record, curve = saved["record"], saved["curve"]
    assert (record["unit"], record["task"], record["steps"]) == ("sequences", "majority", 128)
    assert record["metrics"]["last"]["val"]["solved"] > 0.8 > 0.5 > record["metrics"]["best"]["val"]["loss"]
    assert curve["step"][-1] == 128 and {"train.loss", "val.solved", "long.solved"} <= set(curve)
    evaluated = call("eval.py", f"run={record['id']}", "data.split=long")
    assert f"solved {record['metrics']['last']['long']['solved']:.6f}" in evaluated and "(200 sequences)" in evaluated
    assert "has finished" in call(*command)

    call("train.py", "-m", "experiment=majority/forgetful", "seed=43,44", "logger.mode=disabled")
    call("scripts/make_tables.py", "majority")
    assert len((project / "results/runs/majority-forgetful.jsonl").read_text().splitlines()) == 2
    table = (project / "results/majority/table.md").read_text()
    assert f"{record['metrics']['last']['val']['solved']:.3f}" in table and "2 runs have finished" in table
