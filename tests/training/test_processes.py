"""Starting the processes of a run, and one clear line where they do not come together."""

import os

import pytest

from plstm.errors import UserError
from plstm.training.processes import _from_slurm, _from_variables
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
    assert _from_slurm(node_each) == {"num_processes": 2, "process_id": 1, "local_device_ids": [0, 1, 2, 3]}
    device_each = STEP | {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert "local_device_ids" not in _from_slurm(device_each)  # JAX: the one of its number on the node
    bound = device_each | {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert _from_slurm(bound)["local_device_ids"] == [0]
    assert _from_slurm(STEP | {"SLURM_NTASKS": "1"}) is None
    assert _from_slurm({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}) is None  # a batch script, not a step of it


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_without_the_others_gives_up_with_one_line(number):
    address = f"127.0.0.1:{free_port()}"
    program = "from plstm.training.processes import start_processes; start_processes(0.5)"
    variables = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2", "PROCESS_ID": str(number)}
    line = one_error(end(begin("-c", program, environment=os.environ | variables), 2, seconds=300)[1])
    assert f"process {number} of 2: the others did not come to {address} in 0.5 seconds" in line
    assert "mesh.timeout" in line
