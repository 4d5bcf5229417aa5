"""The Python of the README's section on the operator, run as it stands there."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
CODE = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(operator: str, **arrays) -> dict:
    """The names that the README's code importing from `operator` leaves behind."""
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
    dag, T = found["dag"], found["transition"]
    assert t.shape[-1] == len(dag.line_from)
    states = {}
    for e in range(dag.num_edges):  # the edges of the example stand in topological order
        new = source[:, e, None, None] * k[:, dag.tail[e], :, None] * v[:, dag.tail[e], None]
        before = [(n, int(e1)) for n, (e1, e2) in enumerate(zip(dag.line_from, dag.line_to, strict=True)) if e2 == e]
        states[e] = new + sum(T[:, n, None, None] * states[e1] for n, e1 in before)
    last = mark[:, 4, None] * np.einsum("hk,hkv->hv", q[:, 4], states[4])
    last = last * 6**-0.5 + direct[:, 4, None] * (q[:, 4] * k[:, 4]).sum(-1, keepdims=True) * 6**-0.5 * v[:, 4]
    assert found["hidden"][:, 4] == pytest.approx(np.asarray(last), rel=1e-5)
