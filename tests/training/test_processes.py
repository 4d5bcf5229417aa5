"""Starting the processes of a run, and one clear line where they do not come together."""

import os

import pytest

from plstm.errors import UserError
from plstm.training import processes
from plstm.training.processes import _from_slurm, _from_variables, check_agreement
from tests.commands import begin, end, free_port, one_error

TWO = {"COORDINATOR_ADDRESS": "10.0.0.1:1234", "NUM_PROCESSES": "2", "PROCESS_ID": "1"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}


def test_variables():
    expected = {"coordinator_address": "10.0.0.1:1234", "num_processes": 2, "process_id": 1}
    assert _from_variables(TWO).items() >= expected.items()
    assert _from_variables({f"JAX_{name}": value for name, value in TWO.items()}).items() >= expected.items()
    assert _from_variables({}) is None
    assert _from_variables({"NUM_PROCESSES": "8"}) is None  # others use such names too


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"PROCESS_ID": ""}, "PROCESS_ID=: set all three or none"),
        ({"PROCESS_ID": "2"}, "NUM_PROCESSES=2, PROCESS_ID=2: .* the last smaller"),
        ({"NUM_PROCESSES": "two"}, "NUM_PROCESSES=two"),
        ({"COORDINATOR_ADDRESS": "10.0.0.1"}, "COORDINATOR_ADDRESS=10.0.0.1, .* host:port"),
        ({"COORDINATOR_ADDRESS": ":1234"}, "COORDINATOR_ADDRESS=:1234, .* host:port"),
    ],
)
def test_variables_that_are_missing_or_wrong(changes, words):
    with pytest.raises(UserError, match=words):
        _from_variables(TWO | changes)


def test_slurm():
    node_each = STEP | {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert _from_slurm(node_each) == {"num_processes": 2, "process_id": 1, "local_device_ids": []}  # all
    without_limits = {key: value for key, value in node_each.items() if key != "CUDA_VISIBLE_DEVICES"}
    assert _from_slurm(without_limits)["local_device_ids"] == []
    device_each = STEP | {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert "local_device_ids" not in _from_slurm(device_each)  # JAX: the one of its number on the node
    bound = device_each | {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert _from_slurm(bound)["local_device_ids"] == []
    by_gpu_bind = device_each | {"CUDA_VISIBLE_DEVICES": "3", "SLURM_LOCALID": "3"}
    assert _from_slurm(by_gpu_bind)["local_device_ids"] == []
    pairs = device_each | {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_ON_NODE": "8", "SLURM_LOCALID": "1"}
    assert _from_slurm(pairs)["local_device_ids"] == []
    assert "local_device_ids" not in _from_slurm(device_each | {"SLURM_GPUS_ON_NODE": "4"})
    assert _from_slurm(STEP | {"SLURM_NTASKS": "1"}) is None
    assert _from_slurm({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}) is None  # a batch script, not a step of it


@pytest.mark.parametrize(("variables", "expected"), [({}, "all"), ({"SLURM_STEP_NUM_NODES": "1"}, "1")])
def test_a_process_with_a_node_for_itself_takes_all_of_its_gpus(variables, expected):
    """What JAX would ask CUDA for, in two real processes; two nodes of one name, or two processes of one node."""
    program = "import jax; from plstm.training.processes import start_processes; start_processes(60)"
    program += "; print(jax.config.values['jax_cuda_visible_devices'])"
    step = STEP | {"SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
    step |= {"JAX_COORDINATOR_PORT": str(free_port())} | variables
    plain = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    numbers = [{"SLURM_PROCID": str(n), "SLURM_LOCALID": "0" if expected == "all" else str(n)} for n in range(2)]
    processes = [begin("-c", program, environment=plain | step | number) for number in numbers]
    outputs = [end(process, seconds=300)[0].splitlines()[-1] for process in processes]
    assert outputs[1] == expected


CACHING = """
import sys, jax
from jax._src import cache_key
from plstm.training.environment import keep_programs, share_programs
from plstm.training.processes import from_main, start_processes
cache_key._hash_accelerator_config = lambda *_: None  # unlike that of GPUs, it differs between processes of CPUs
keep_programs()
start_processes(60)
share_programs(sys.argv[1])
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
from_main(1)  # a program of both processes
print(events.count("/jax/compilation_cache/cache_hits"))
"""


def test_a_restart_finds_its_programs_in_every_process(tmp_path):
    """On two hosts with home folders of their own, where JAX lets the first process alone write."""
    for _ in range(2):
        run = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        run |= TWO | {"COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}
        own = [{"PROCESS_ID": str(n), "HOME": str(tmp_path / f"home{n}")} for n in range(2)]
        processes = [begin("-c", CACHING, tmp_path / "runs", environment=run | each) for each in own]
        hits = [int(end(process, seconds=300)[0].split()[-1]) for process in processes]
    assert min(hits) > 0
    assert not (tmp_path / "home0").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_without_the_others_gives_up_with_one_line(number):
    address = f"127.0.0.1:{free_port()}"
    program = "from plstm.training.processes import start_processes; start_processes(0.5)"
    variables = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2", "PROCESS_ID": str(number)}
    line = one_error(end(begin("-c", program, environment=os.environ | variables), 2, seconds=300)[1])
    assert f"process {number} of 2: the others did not come to {address} in 0.5 seconds" in line
    assert "mesh.timeout" in line


def test_a_process_with_another_command_is_refused(monkeypatch):
    sent = {}
    monkeypatch.setattr(processes, "from_main", lambda value: sent.setdefault("by process 0", value))
    for text in ("a run", "a run"):
        check_agreement(text)
    with pytest.raises(UserError, match="was started with another command or code than process 0"):
        check_agreement("another run")
