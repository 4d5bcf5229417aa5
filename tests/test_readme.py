"""The Python of README.md and docs/running.md, run as it stands there."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import DagGates, plstm_dag_oracle
from tests.commands import ROOT


def run(page: str, words: str, **arrays) -> dict:
    """The names that a page's block with these words defines."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [code for code in blocks if words in code]
    exec(code, arrays)
    return arrays


@pytest.fixture
def draw():
    """Function of a shape: numbers from 0 to 1, others each time."""
    numbers = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(numbers.random(shape, np.float32))


def test_the_readme_s_five_lines_run():
    hidden = run("README.md", "plstm2d")["hidden"]
    assert hidden.shape == (12, 16, 32) and jnp.isfinite(hidden).all()


def test_the_grid_example_runs(draw):
    gates = {name: draw(2, 4, 3, 5) for name in ("s_r", "s_d", "t_rl", "t_ru", "t_dl", "t_du", "m_l", "m_u")}
    arrays = dict(q=draw(2, 3, 5, 6), k=draw(2, 3, 5, 6), v=draw(2, 3, 5, 4), direct=draw(2, 3, 5))
    found = run("docs/running.md", "gating_matrix", **arrays, **gates)
    assert found["hidden"].shape == (2, 3, 5, 4) and found["G"].shape == (2, 3, 5, 3, 5)


def test_the_graph_example_runs_and_is_the_recurrence(draw):
    arrays = dict(q=draw(2, 5, 6), k=draw(2, 5, 6), v=draw(2, 5, 6), direct=draw(2, 5))
    gates = dict(t=draw(2, 4), source=draw(2, 5), mark=draw(2, 5))
    found = run("docs/running.md", "normalise_transitions", **arrays, **gates)
    own = DagGates(gates["source"], found["transition"], gates["mark"])
    expected = plstm_dag_oracle(arrays["q"], arrays["k"], arrays["v"], own, arrays["direct"], found["dag"])
    np.testing.assert_allclose(found["hidden"], expected, atol=1e-5)
