"""What a fresh machine depends on: the lock, the declared dependencies, the make targets, light imports."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands import ROOT, SOURCES, call
from tests.test_layers import imports

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


def test_every_import_is_declared():
    names = {canonicalize_name(requirement.name) for requirement in declared("fast")}
    distributions = metadata.packages_distributions()
    local = {"plstm", "data", "scripts", *(path.stem for path in SOURCES if path.parent in (ROOT, ROOT / "scripts"))}
    for path in SOURCES:
        modules = {module.split(".")[0] for _, module in imports(ast.parse(path.read_text()))}
        for module in modules - local - sys.stdlib_module_names:
            providers = {canonicalize_name(name) for name in distributions.get(module, [module])}
            assert providers & names, f"{path.relative_to(ROOT)} imports {module}: declare it in pyproject.toml"


def test_importing_all_of_plstm_loads_nothing_heavy():
    script = """
import importlib, pkgutil, sys
import plstm
for module in pkgutil.walk_packages(plstm.__path__, "plstm."):
    importlib.import_module(module.name)
assert "plstm.training.tracking" in sys.modules
print(*sorted({"matplotlib", "tensorflow", "wandb"} & set(sys.modules)))
"""
    assert call("-c", script).strip() == ""


def make(*arguments: str) -> str:
    # A make that runs these tests would hand its own variables down.
    inherited = ("ARGS", "EXTRA", "MAKEFLAGS", "MAKELEVEL", "PY", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@needs_make
def test_make_alone_lists_every_target():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"setup", "demo", "test", "lint"} <= targets
    listed = re.findall(r"^  make ([a-z-]+) +\S", make(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(targets)


@needs_make
@pytest.mark.parametrize("target", ["demo", "test", "lint", "verify"])
def test_one_command_sets_up_and_runs_unless_an_environment_is_named(target):
    as_in_a_fresh_clone = ("-n", "-W", "requirements.lock")  # -W: as if the lock were new
    fresh = make(*as_in_a_fresh_clone, target)
    assert "pip install" in fresh and fresh.rstrip().splitlines()[-1].startswith(".venv/bin/python ")
    named = make(*as_in_a_fresh_clone, target, "PY=some-python")
    assert "pip install" not in named and named.startswith("some-python ")
    installed = make(*as_in_a_fresh_clone, "setup", "EXTRA=cuda,slurm")
    assert '--constraint requirements.lock --editable ".[test,cuda,slurm]"' in installed
