"""Settings every test shares: the CPU unless accelerators were asked for, nothing sent anywhere, little noise."""

import os
import platform
import signal
from pathlib import Path

import hypothesis
import jax
import pytest
from hydra import compose, initialize_config_dir

from plstm.errors import UserError
from plstm.runs.compose import register
from tests.commands import ROOT, SMALLEST, paths
from tests.fork_server import ForkServer

# Compilation makes the first call of anything slow, and the same examples on every run make a failure repeatable.
hypothesis.settings.register_profile("repo", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-cpu", action="store_true", help="run the tests marked gpu without an accelerator")


def pytest_configure(config: pytest.Config) -> None:
    """Sets JAX up here, where a conftest may have imported it already, and for the processes that tests start."""
    # Compiled code is good for one kind of processor only, and clones on shared disks are used from several.
    cache = ROOT / ".cache" / f"jax-{platform.node()}"
    settings = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.5}
    if config.option.markexpr.startswith("not slow") or config.option.on_cpu:
        # A third less time, most of which is compilation. Slow tests optimize.
        settings["JAX_DISABLE_MOST_OPTIMIZATIONS"] = True
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        settings["JAX_PLATFORMS"] = "cpu"
    for name, value in settings.items():
        if name not in os.environ:
            os.environ[name] = str(value)
            jax.config.update(name.lower(), value)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start background jobs so, and the processes that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _wandb_stays_here(tmp_path_factory: pytest.TempPathFactory):
    """Keeps the W&B client offline and out of the home folder, whoever runs the tests."""
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.delenv("WANDB_API_KEY", raising=False)
        for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(folder))
        yield


@pytest.fixture(autouse=True)
def _wandb_starts_elsewhere():
    """A client started in this process would leave a variable by which the programs of later tests join it."""
    yield
    assert "WANDB_SERVICE" not in os.environ, "start what uses W&B as a process of its own"


@pytest.fixture(autouse=True)
def _errors_have_one_line(monkeypatch):
    def __init__(self, *message):
        assert "\n" not in "".join(message)
        Exception.__init__(self, *message)

    monkeypatch.setattr(UserError, "__init__", __init__)


@pytest.fixture(scope="module", autouse=True)
def _few_programs():
    """Drops compiled programs before their memory maps, of which Linux allows a process 65,530, crash it."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def composed():
    """Function of command-line arguments: the config node that train.py gets."""
    register()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        yield lambda *arguments: compose("train", overrides=list(arguments))


@pytest.fixture(scope="session")
def fork_server():
    server = ForkServer({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})  # all but the first start compile nothing
    yield server
    server.close()


@pytest.fixture(scope="session")
def start(fork_server):
    """Function of (folder, plan, overrides): trains SMALLEST, or `base`, there; returns exit status and output."""

    def start(folder: Path, plan: dict | None = None, *overrides: str, base: list[str] = SMALLEST) -> tuple[int, str]:
        folder.mkdir(exist_ok=True)
        return fork_server.run([*base, *overrides, *paths(folder)], folder / "output", plan)

    return start


@pytest.fixture(scope="session")
def train(start):
    """Function of (folder, overrides): runs train.py with them alone to its good end; returns what it printed."""

    def train(folder: Path, *overrides: str) -> str:
        status, output = start(folder, None, *overrides, base=[])
        assert status == 0, output
        return output

    return train


@pytest.fixture(scope="session")
def undisturbed(train, tmp_path_factory) -> Path:
    """The folder of a run of SMALLEST that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, *SMALLEST)
    return folder
