"""What a fresh machine depends on: the lock, the wheel, the make targets."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def locked() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def declared(*extras: str) -> list[Requirement]:
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(line) for lines in lists for line in lines]


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_lock_pins_every_dependency_once_and_in_its_bounds(python):
    environment = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    pins = {}
    for requirement in locked():
        (pin,) = requirement.specifier
        assert pin.operator == "==" and not requirement.url and not requirement.extras, str(requirement)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in pins, f"{requirement.name} is pinned twice on Python {python}"
            pins[canonicalize_name(requirement.name)] = pin.version
    assert "tensorflow" not in pins
    for requirement in declared(*PROJECT["optional-dependencies"]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True), requirement


USE = """
import importlib, pkgutil, sys
from pathlib import Path
import jax.numpy as jnp
import plstm
assert Path(plstm.__file__).is_relative_to(sys.prefix), plstm.__file__
for module in pkgutil.walk_packages(plstm.__path__, "plstm."):
    importlib.import_module(module.name)
from plstm.models import VisionConfig, build_model
from plstm.ops.grid import GridGates, plstm2d
q, gate = jnp.ones((3, 5, 2)), jnp.full((4, 3, 5), 0.5)
print(plstm2d(q, q, q, GridGates(*[gate] * 8), q[..., 0]).shape)
model = build_model(VisionConfig(image_size=32, patch_size=8, dim=16, depth=2, heads=2, classes=3), 0)
plstm.save(model, "model.safetensors", class_names=["a", "b", "c"])
print(plstm.load("model.safetensors")(jnp.zeros((1, 32, 32, 3))).shape)
import data
print(data.mine)
"""


@pytest.mark.slow
def test_the_wheel_is_the_library_and_works_alone(tmp_path):
    """Installed in a fresh environment, beside a folder `data` of the user's: each module of it, and a model, works."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("mine = 'the data of the user'")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert top == {"plstm", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    lock = ["--constraint", ROOT / "requirements.lock"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *lock, wheel], check=True)
    done = subprocess.run([python, "-c", USE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(3, 5, 2)", "(1, 3)", "the data of the user"]


def make(*arguments: str) -> str:
    # A make that runs these tests would hand its own variables down.
    inherited = ("ARGS", "EXTRA", "MAKEFLAGS", "MAKELEVEL", "PY", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@needs_make
@pytest.mark.parametrize("target", ["demo", "test", "lint", "verify"])
def test_one_command_sets_up_and_runs_unless_an_environment_is_named(target):
    as_in_a_fresh_clone = ("-n", "-W", "requirements.lock")  # -W: as if the lock were new
    fresh = make(*as_in_a_fresh_clone, target)
    assert "pip install" in fresh and fresh.rstrip().splitlines()[-1].startswith(".venv/bin/python ")
    named = make(*as_in_a_fresh_clone, target, "PY=some-python")
    assert "pip install" not in named and named.startswith("some-python ")
    installed = make(*as_in_a_fresh_clone, "setup", "EXTRA=cuda,slurm")
    assert '--constraint requirements.lock --editable ".[train,test,cuda,slurm]"' in installed
