"""The description of code, versions and machine that a run record carries."""

import json
import subprocess
import warnings

import jax
import pytest

import plstm
from plstm.training import environment
from plstm.training.environment import describe_environment, keep_programs, share_programs

CACHE = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")


@pytest.fixture
def clone(tmp_path):
    """A git clone with one committed module and one committed result."""
    root = tmp_path / "clone"
    for name in ("plstm/model.py", "results/table.md", ".gitignore"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("*.pyc\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "first")
    return root


def git(root, *arguments: str) -> str:
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        ("plstm/model.py", True),
        ("plstm/new.py", True),
        ("train.py", True),
        ("plstm/model.pyc", False),
        ("results/table.md", False),
        ("outputs/run/metrics.jsonl", False),
    ],
)
def test_only_code_makes_a_clone_dirty(clone, path, dirty):
    described = describe_environment(clone)
    assert (described["commit"], described["dirty"]) == (git(clone, "rev-parse", "HEAD"), False)
    (clone / path).parent.mkdir(parents=True, exist_ok=True)
    (clone / path).write_text("changed\n")
    assert describe_environment(clone)["dirty"] is dirty
    (clone / path).unlink()
    assert describe_environment(clone)["dirty"] is (path == "plstm/model.py")


def test_no_commit_in_a_copy_inside_another_repository_or_without_git(clone, monkeypatch):
    (clone / "vendored").mkdir()
    found = [describe_environment(clone / "vendored")]
    monkeypatch.setenv("PATH", "")
    found.append(describe_environment(clone))
    assert [(described["commit"], described["dirty"]) for described in found] == [(None, None)] * 2


def test_versions_and_hardware_are_json(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    monkeypatch.setenv("NPROC", "3")
    described = describe_environment(tmp_path)
    assert json.loads(json.dumps(described)) == described
    assert described["versions"]["plstm"] == plstm.__version__
    assert None not in described["versions"].values()
    assert described["jax_settings"] == {"NPROC": "3"}
    monkeypatch.delenv("NPROC")
    with jax.threefry_partitionable(False), jax.default_prng_impl("rbg"):
        changed = describe_environment(tmp_path)["jax_settings"]
    assert changed == {"jax_threefry_partitionable": False, "jax_default_prng_impl": "rbg"}
    assert described["xla_flags"] == "--xla_cpu_multi_thread_eigen=false"
    hardware = described["hardware"]
    assert hardware["platform"] == "cpu" and hardware["device_count"] >= 1 and hardware["device_kind"]
    assert hardware["cpu_cores"] >= 1 and hardware["cpu_model"]


def test_git_is_asked_about_the_code_s_own_folder(clone, tmp_path, monkeypatch):
    """Hooks and worktrees of another repository set these."""
    git(clone, "worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    (tmp_path / "other" / "new").write_text("")
    git(tmp_path / "other", "add", ".")
    git(tmp_path / "other", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "second")
    commit = git(clone, "rev-parse", "HEAD")
    others = {"DIR": clone / ".git/worktrees/other", "WORK_TREE": tmp_path, "INDEX_FILE": tmp_path / "x"}
    for name, value in others.items():
        monkeypatch.setenv(f"GIT_{name}", str(value))
    assert (describe_environment(clone)["commit"], describe_environment(clone)["dirty"]) == (commit, False)


def test_a_clone_whose_commit_git_does_not_tell_is_said_once(clone, monkeypatch, capsys):
    (clone / ".git" / "HEAD").write_text("nothing")  # as in a clone that somebody else owns
    assert [describe_environment(clone)["commit"] for _ in range(2)] == [None, None]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{clone}: records will not name its commit, which git does not tell (fatal: ")


@pytest.fixture
def restored_cache():
    """JAX's settings of its cache are as before after the test."""
    before = {name: getattr(jax.config, name) for name in CACHE}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("restored_cache")
@pytest.mark.parametrize("kind", ["no home", "a file", "read-only"])
def test_programs_that_cannot_be_kept_cost_one_line(tmp_path, monkeypatch, capsys, kind):
    folder = {"no home": "~/.cache/plstm/jax", "a file": f"{tmp_path}/file/jax", "read-only": str(tmp_path)}[kind]
    (tmp_path / "file").write_text("")
    if kind == "read-only":  # root may write anywhere
        monkeypatch.setattr(environment.os, "access", lambda path, mode: path != folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "CACHE", folder)
    jax.config.update("jax_compilation_cache_dir", None)
    keep_programs()
    keep_programs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda x: x * len(kind))(3)
    assert capsys.readouterr().err.startswith(f"{folder}: cannot be written, so that programs are compiled anew; ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("restored_cache")
@pytest.mark.parametrize(("chosen", "processes"), [(None, 1), (None, 2), ("chosen", 2)])
def test_programs_of_several_processes_are_kept_where_all_see_them(tmp_path, monkeypatch, chosen, processes):
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setattr(environment, "CACHE", str(tmp_path / "home"))
    jax.config.update("jax_compilation_cache_dir", chosen and str(tmp_path / chosen))
    keep_programs()
    share_programs(tmp_path / "runs")
    assert jax.config.jax_compilation_cache_dir == str(
        tmp_path / (chosen or ("runs/.compiled" if processes > 1 else "home"))
    )
