"""The Python of the README's section on the operator, run as it stands there."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.dag import DagGates, plstm_dag_oracle
from tests.commands import ROOT

CODE = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run(operator: str, **arrays) -> dict:
    (code,) = [code for code in CODE if f"from {operator} import" in code]
    exec(code, arrays)
    return arrays


@pytest.fixture
def draw():
    """Function of a shape: numbers from 0 to 1, others each time."""
    numbers = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(numbers.random(shape, np.float32))


def test_the_grid_example_runs(draw):
    gates = {name: draw(2, 4, 3, 5) for name in ("s_r", "s_d", "t_rl", "t_ru", "t_dl", "t_du", "m_l", "m_u")}
    found = run(
        "plstm.ops.grid", q=draw(2, 3, 5, 6), k=draw(2, 3, 5, 6), v=draw(2, 3, 5, 4), direct=draw(2, 3, 5), **gates
    )
    assert found["hidden"].shape == (2, 3, 5, 4) and found["G"].shape == (2, 3, 5, 3, 5)


def test_the_graph_example_runs_and_is_the_recurrence(draw):
    q, k, v, t = draw(2, 5, 6), draw(2, 5, 6), draw(2, 5, 6), draw(2, 4)
    source, mark, direct = draw(2, 5), draw(2, 5), draw(2, 5)
    found = run("plstm.ops.dag", q=q, k=k, v=v, t=t, source=source, mark=mark, direct=direct)
    gates = DagGates(source, found["transition"], mark)
    np.testing.assert_allclose(found["hidden"], plstm_dag_oracle(q, k, v, gates, direct, found["dag"]), atol=1e-5)
