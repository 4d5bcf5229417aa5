"""Training on many devices: layouts change no number, and a checkpoint of one layout restores in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from plstm.errors import UserError
from plstm.training.meshes import MIN_SPLIT, Layout, make_mesh

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("layouts_program.py")
LAYOUTS = {"one": (1, 1), "data": (8, 1), "fsdp": (8, 8), "both": (8, 4)}  # devices, fsdp


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((6, 64, 256), (None, None, "fsdp")),
        ((6, 256, 64), (None, "fsdp", None)),
        ((64, 65), ("fsdp", None)),  # the largest axis that can be split
        ((8, 63, 63), ("fsdp", None, None)),
        ((63, 65), ()),  # none can
        ((8, MIN_SPLIT // 8 - 1), ()),  # too small
        ((), ()),
    ],
)
def test_which_axis_is_split(shape, parts):
    mesh = jax.sharding.AbstractMesh((2, 8), ("data", "fsdp"))
    layout = Layout(mesh).state(jax.ShapeDtypeStruct(shape, np.float32))
    assert layout.spec == PartitionSpec(*parts)
    assert Layout(jax.sharding.AbstractMesh((16, 1), ("data", "fsdp"))).state(
        jax.ShapeDtypeStruct(shape, np.float32)
    ).spec == PartitionSpec()


def test_what_does_not_divide_is_named():
    devices = jax.devices()[:1] * 4
    with pytest.raises(UserError, match="optim.batch_size=6: .* the 4 devices"):
        make_mesh(6, devices=devices)
    with pytest.raises(UserError, match="mesh.fsdp=3: .* devices, 4"):
        make_mesh(8, 3, devices)


@pytest.fixture(scope="module")
def report():
    """What `layouts_program.py` measured with 8 simulated devices."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, PROGRAM], env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
