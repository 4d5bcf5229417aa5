"""Many devices, or two processes: the numbers are those of one device, and checkpoints restore in any layout."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from plstm.errors import UserError
from plstm.training.meshes import MIN_SPLIT, Layout, make_mesh
from tests.commands import ROOT, begin, end, free_port

PROGRAM, EXCHANGES = (Path(__file__).with_name(f"{name}_program.py") for name in ("layouts", "exchange"))
LAYOUTS = ["1x1", "8x1", "8x8", "8x4"]  # one device; data parallel; fully sharded; two groups of four


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((6, 64, 256), (None, None, "fsdp")),
        ((6, 256, 64), (None, "fsdp", None)),
        ((64, 65), ("fsdp", None)),  # the largest axis that can be split
        ((63, 65), ()),  # none can
        ((MIN_SPLIT,), ("fsdp",)),
        ((8, MIN_SPLIT // 8 - 1), ()),  # too small
        ((), ()),
    ],
)
def test_which_axis_is_split(shape, parts):
    tensor = jax.ShapeDtypeStruct(shape, np.float32)
    assert Layout(AbstractMesh((2, 8), ("data", "fsdp"))).state(tensor).spec == PartitionSpec(*parts)
    assert Layout(AbstractMesh((16, 1), ("data", "fsdp"))).state(tensor).spec == PartitionSpec()


def test_what_does_not_divide_is_named():
    devices = jax.devices()[:1] * 4
    with pytest.raises(UserError, match="optim.batch_size=6: .* the 4 devices"):
        make_mesh(6, devices=devices)
    with pytest.raises(UserError, match="mesh.fsdp=3: .* devices, 4"):
        make_mesh(12, 3, devices)


def simulated(devices: int, *flags: str) -> dict[str, str]:
    """The environment of a process with so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices}", *flags
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": " ".join(flags)}


def run_program(model: str, folder: Path, layouts: list[str], processes: int = 1, devices: int = 8) -> dict:
    """What `layouts_program.py` reports, with the state of each layout; `devices` are those of a process."""
    folder.mkdir(exist_ok=True)
    environment = simulated(devices)
    if processes > 1:
        environment |= {"COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "NUM_PROCESSES": str(processes)}
    numbered = [environment | {"PROCESS_ID": str(n)} for n in range(processes)]
    started = [begin(PROGRAM, model, folder, *layouts, environment=each) for each in numbered]
    outputs = [end(process)[0] for process in started]
    report = json.loads(outputs[0].splitlines()[-1])
    for name in layouts:
        report[name]["state"] = np.load(folder / f"{name}.npy")
    return report


def assert_same_numbers(found: dict, expected: dict) -> None:
    for step, other in zip(found["steps"], expected["steps"], strict=True):
        assert step == pytest.approx(other, rel=1e-4)
    assert found["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
    np.testing.assert_allclose(found["state"], expected["state"], rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    return run_program("MLP", tmp_path_factory.mktemp("layouts") / "eight", LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_eight_devices_give_the_numbers_of_one(report, layout):
    assert_same_numbers(report[layout], report["1x1"])


def test_a_device_holds_its_share(report):
    whole = report["1x1"]["held"]
    kernel = 3 * 768 * 64  # with its two moments, all that is large enough to be split
    assert [whole - report[layout]["held"] for layout in LAYOUTS] == [0, 0, kernel * 7 // 8, kernel * 3 // 4]


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_device(report, tmp_path):
    two = run_program("MLP", tmp_path / "two", ["2x1", "2x2"], processes=2, devices=1)
    for layout in ("2x1", "2x2"):
        assert_same_numbers(two[layout], report["1x1"])
    assert two["signals"] == [0, 0, 0, 0, 0, 15, 0, 0]  # of process 1's fourth step, counted in its sixth
    assert two["from_main"] == 100


@pytest.mark.slow
def test_devices_exchange_nothing_but_gradients_and_metrics():
    environment = simulated(4, "--xla_backend_optimization_level=0")  # LLVM's work comes after the exchanges
    report = json.loads(end(begin(EXCHANGES, environment=environment))[0].splitlines()[-1])
    assert report == dict.fromkeys(["efficientnet", "mamba2d", "ss2d", "vil", "vision"], ["all-reduce"])


@pytest.mark.slow
def test_pLSTM_in_every_layout(tmp_path):
    eight = run_program("pLSTM", tmp_path / "eight", LAYOUTS)
    two = run_program("pLSTM", tmp_path / "two", ["4x1", "4x4", "4x2"], processes=2, devices=2)
    for report in (eight, two):
        for layout in set(report) & {*LAYOUTS[1:], "4x1", "4x4", "4x2"}:
            assert_same_numbers(report[layout], eight["1x1"])
