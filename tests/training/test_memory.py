"""Whether freed memory stays with the process, counted in pages that the system had to clear; a process's mappings."""

import os
import platform
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from plstm.training import environment as memory
from tests.commands import begin, end

PROGRAM = """
import resource, sys, threading
import jax, jax.numpy as jnp
import numpy as np
from plstm.training.environment import keep_freed_memory

kept = keep_freed_memory() if "keep" in sys.argv else None
counts = []

def work():  # what threads other than the first allocate stays, too
    np.ones(2**24).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        np.ones(2**24).sum()  # 128 MiB
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

assert float(jnp.ones(8).sum()) == 8  # JAX has started its own threads
for thread in [threading.Thread(target=work) for _ in range(2)]:
    thread.start()
    thread.join()
print(kept, *counts)
"""


def count_faults(*arguments: str) -> tuple[str, list[int]]:
    """What `keep_freed_memory` returned, and the page faults of eight arrays in each of two threads."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    kept, *counts = end(begin("-c", PROGRAM, *arguments, environment=plain))[0].split()
    return kept, [int(count) for count in counts]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc's options are glibc's")
def test_freed_memory_is_used_again():
    given_back = count_faults()[1]
    kept, faults = count_faults("keep")
    assert kept == "True"
    assert max(faults) < min(given_back) / 10, (faults, given_back)


@pytest.mark.parametrize(
    ("setting", "plugins"),
    [
        ({"MALLOC_ARENA_MAX": "2"}, ()),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=9"}, ()),
        ({}, ("cuda12",)),
    ],
)
def test_malloc_is_left_alone_where_it_is_configured_and_beside_an_accelerator(monkeypatch, setting, plugins):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    options = []
    library = SimpleNamespace(mallopt=lambda *option: options.append(option) or 1)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory.metadata, "entry_points", lambda group: ())
    assert memory.keep_freed_memory() and len(options) == 4
    monkeypatch.setattr(memory.metadata, "entry_points", lambda group: plugins)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert not memory.keep_freed_memory() and len(options) == 4
    library.mallopt = None  # as a C library without it
    assert not memory.keep_freed_memory()


def test_programs_are_forgotten_near_the_limit_of_mappings_alone(tmp_path, monkeypatch):
    traced = []
    double = jax.jit(lambda x: traced.append(x.shape) or 2 * x)
    for name, count in (("MAPPINGS", 79), ("MOST_MAPPINGS", 100)):
        path = tmp_path / name
        path.write_text("a line\n" * count if name == "MAPPINGS" else f"{count}\n")
        monkeypatch.setattr(memory, name, path)
    double(jnp.ones(3))
    assert not memory.forget_programs_near_limit()
    double(jnp.ones(3))
    assert len(traced) == 1
    (tmp_path / "MAPPINGS").write_text("a line\n" * 80)
    assert memory.forget_programs_near_limit()
    assert double(jnp.ones(3)).tolist() == [2, 2, 2] and len(traced) == 2
    monkeypatch.setattr(memory, "MAPPINGS", tmp_path / "nothing")  # as on other systems
    assert not memory.forget_programs_near_limit()
