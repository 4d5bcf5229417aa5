"""mLSTM, sLSTM, Mamba-2's state space, the gated delta rule, linear attention, pLSTM with state tracking: forms and
published cells."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.linear_attention import linear_attention
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import SequenceGates, plstm1d, plstm1d_tracking
from plstm.ops.slstm import slstm
from plstm.ops.ssd import ssd
from tests.drawing import wave
from tests.models.golden import check as check_golden
from tests.models.golden import waves

from .comparing import assert_close, check, check_bfloat16, outputs_and_gradients


def as_arrays(dtype, *trees):
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), trees)


def draw_ssd(length, dtype):
    """The second entry's steps are those of pre-activations of -50 and 50."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=(2, length, *shape))  # noqa: E731
    dt = np.logaddexp(0, normal(3))
    dt[1] = rng.choice([np.exp(-50), 50], (length, 3))
    arguments = {"x": normal(3, 2), "dt": dt, "a": np.array([0.1, 1, 16]), "b": normal(4), "c": normal(4)}
    return as_arrays(dtype, arguments, normal(3, 2))


def draw_delta_rule(length, dtype):
    """The second entry repeats one key without decay, beta up to 2; the third has gates of 0 and tiny."""
    rng = np.random.default_rng(0)
    q, k, v, cotangent = rng.normal(size=(4, 3, length, 4))
    k[1] = k[1, :1]
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    log_alpha, beta = -rng.uniform(0, 0.2, (3, length)), rng.uniform(0, 2, (3, length))
    log_alpha[1], beta[1] = 0, rng.choice([1.98, 2], length)
    log_alpha[2], beta[2] = rng.choice([-50, -1e-20], length), rng.choice([1e-20, 1], length)
    return as_arrays(dtype, dict(q=q, k=k, v=v, log_alpha=log_alpha, beta=beta), cotangent)


def draw_linear_attention(length, dtype):
    """The second entry forgets all at some tokens."""
    rng = np.random.default_rng(0)
    arguments = {name: rng.normal(size=(2, length, size)) for name, size in {"q": 4, "k": 4, "v": 3}.items()}
    arguments |= {"log_decay": -rng.uniform(0, 0.3, (2, length)), "write": rng.normal(size=(2, length))}
    arguments["log_decay"][1, ::5] = -1e3
    return as_arrays(dtype, arguments, rng.normal(size=(2, length, 3)))


def draw_mlstm(length, dtype):
    """Half of the second entry's gates are -50 or 50."""
    rng = np.random.default_rng(0)
    arguments = {name: rng.normal(size=(2, length, size)) for name, size in {"q": 4, "k": 4, "v": 3}.items()}
    for name, mean in {"i": 0, "f": 3}.items():
        gate = rng.normal(mean, 2, size=(2, length))
        gate[1] = np.where(rng.random(length) < 0.5, rng.choice([-50, 50], length), gate[1])
        arguments[name] = gate
    return as_arrays(dtype, arguments, rng.normal(size=(2, length, 3)))


def draw_tracking(length, dtype, sizes=(2, 4, 2, 5, 3)):
    """Eigenvalues of the transitions are -1, 0 and 1 in the second entry."""
    rng, (j_o, j_q, j_k, j_v, j_t) = np.random.default_rng(0), sizes
    normal = lambda *shape: rng.normal(size=(2, length, *shape))  # noqa: E731
    rotation, values = np.linalg.qr(normal(j_t, j_t))[0], np.tanh(normal(j_t))
    values[1] = rng.choice([-1, 0, 1], (length, j_t))
    arguments = {"q": normal(3, j_q), "k": normal(3, j_k), "v": normal(2, j_v), "source": normal(j_t, j_k, j_v)}
    arguments |= {"transition": rotation * values[..., None, :] @ np.linalg.qr(normal(j_t, j_t))[0]}
    arguments |= {"mark": normal(j_o, j_q, j_t), "direct": normal(j_o, j_q, j_k, j_v)}
    return as_arrays(dtype, arguments, normal(2, j_o))


DRAWS = {ssd: draw_ssd, gated_delta_rule: draw_delta_rule, plstm1d_tracking: draw_tracking}
DRAWS |= {linear_attention: draw_linear_attention, mlstm: draw_mlstm}
CHUNKS = {operator: functools.partial(operator, method="chunkwise", chunk=8) for operator in DRAWS}
STEPS = {operator: functools.partial(operator, method="recurrent") for operator in DRAWS}
# Of the mLSTM, equal gates of 50 tie in the maximum, whose gradient is then arbitrary: it enters by the normaliser's
# 1e-6 only.
TOLERANCES = {operator: {64: 1e-10, 32: 1e-3} for operator in DRAWS} | {mlstm: {64: 1e-8, 32: 1e-5}}
SLOW = [*((length, 64) for length in (1, 7, 64, 65, 200)), (65, 32)]
over_operators = pytest.mark.parametrize("operator", DRAWS, ids=lambda operator: operator.__name__)


@over_operators
@pytest.mark.parametrize(
    ("length", "bits"), [(21, 64), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_chunks_are_the_steps_in_values_and_gradients(operator, length, bits):
    with jax.enable_x64(bits == 64):
        check(CHUNKS[operator], STEPS[operator], *DRAWS[operator](length, f"float{bits}"), TOLERANCES[operator][bits])


@pytest.mark.parametrize("decay", [1e3, 1e6, np.inf])
def test_what_follows_a_token_that_forgets_all_is_as_exact_as_steps(decay):
    """In chunks, decays are differences of sums, in which such a token would drown the others."""
    arguments, cotangent = draw_delta_rule(24, jnp.float32)
    arguments["log_alpha"] = arguments["log_alpha"].at[:2, 9].set(-decay)
    check(CHUNKS[gated_delta_rule], STEPS[gated_delta_rule], arguments, cotangent, 1e-4)
    arguments, cotangent = draw_ssd(24, jnp.float32)
    arguments["dt"] = jnp.clip(arguments["dt"], max=1).at[:, 9].set(min(decay, 1e30))
    arguments["x"] = arguments["x"].at[:, 9].set(0)
    check(CHUNKS[ssd], STEPS[ssd], arguments, cotangent, 1e-4)
    arguments, cotangent = draw_mlstm(24, jnp.float32)
    arguments["f"] = arguments["f"].at[:1, 9].set(-min(decay, 1e30))
    check(CHUNKS[mlstm], STEPS[mlstm], arguments, cotangent, 1e-4)


@pytest.mark.parametrize("form", [CHUNKS, STEPS], ids=["chunkwise", "recurrent"])
def test_gates_of_the_mlstm_that_close_for_good_have_finite_gradients(form):
    arguments, cotangent = draw_mlstm(40, jnp.float32)
    arguments |= {"i": jnp.full((2, 40), -100.0), "f": jnp.full((2, 40), -3.0)}
    gradients = outputs_and_gradients(form[mlstm], arguments, cotangent)["gradients"]
    assert all(jnp.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize(
    ("operator", "tolerance"),
    [(gated_delta_rule, 3e-2), (linear_attention, 3e-2), (mlstm, 2e-2)]
    + [pytest.param(plstm1d_tracking, 3e-2, marks=pytest.mark.slow)],
)
def test_bfloat16_inputs(operator, tolerance):
    check_bfloat16(CHUNKS[operator], STEPS[operator], *DRAWS[operator](8, jnp.float32), tolerance)


@pytest.mark.parametrize("operator", [gated_delta_rule, plstm1d_tracking])
def test_bfloat16_queries_are_scaled_in_float32(operator):
    arguments = DRAWS[operator](8, jnp.float32)[0]
    if operator is gated_delta_rule:
        arguments |= {name: arguments[name][..., :3] for name in "qk"}  # of no width whose scale is exact
    half = arguments["q"].astype(jnp.bfloat16)
    found, wanted = (CHUNKS[operator](**arguments | {"q": q}) for q in (half, half.astype(jnp.float32)))
    np.testing.assert_array_equal(found, wanted)


def test_float32_of_a_repeated_key_is_as_exact_as_steps(x64):
    """64 times one key with beta near 2: a Neumann product of the same system is off by 1e17 here."""
    arguments = draw_delta_rule(64, jnp.float64)[0]
    single = jax.tree.map(lambda array: array.astype(jnp.float32), arguments)
    assert_close(gated_delta_rule(**single), gated_delta_rule(**arguments, method="recurrent"), 1e-4)


def plain_slstm(i, f, z, o, recurrent):
    """Without a stabiliser, in a Python loop."""
    hidden, h, c, n = [], jnp.zeros_like(i[:, 0]), 0, 0
    for t in range(i.shape[1]):
        inner = [gate[:, t] + jnp.einsum("bhd,hde->bhe", h, recurrent[:, :, g]) for g, gate in enumerate((i, f, z, o))]
        write, keep = jnp.exp(inner[0]), jax.nn.sigmoid(inner[1])
        c, n = keep * c + write * jnp.tanh(inner[2]), keep * n + write
        h = jax.nn.sigmoid(inner[3]) * c / n
        hidden.append(h)
    return jnp.stack(hidden, axis=1)


def draw_slstm(length, dtype):
    """Half of the second entry's gates are -50 or 50."""
    rng = np.random.default_rng(0)
    gates = rng.normal(size=(5, 2, length, 2, 3))
    gates[:2, 1] = np.where(
        rng.random(gates[:2, 1].shape) < 0.5, rng.choice([-50, 50], gates[:2, 1].shape), gates[:2, 1]
    )
    arguments = dict(zip("ifzo", gates[:4], strict=True)) | {"recurrent": rng.normal(size=(2, 3, 4, 3))}
    return as_arrays(dtype, arguments, gates[4])


def test_slstm_is_the_plain_recurrence_in_values_and_gradients(x64):
    check(slstm, plain_slstm, *draw_slstm(5, jnp.float64), 1e-10)


@pytest.mark.parametrize("method", ["recurrent", "chunkwise"])
def test_published_cells(x64, method):
    """Cells of arXiv 2606.12364 and of pLSTM's released operator, at the last and the third step; of Vision-LSTM."""
    q, k, v, form = wave(range(4)), wave(range(3, 7)), wave(range(7, 10)), {"method": method, "chunk": 4}
    i, f = 3 * wave([11])[:, 0], 3 * wave([13])[:, 0]
    norm = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    y = gated_delta_rule(norm(q), norm(k), v, -jax.nn.softplus(f), 2 * jax.nn.sigmoid(i), **form)
    np.testing.assert_allclose(y[6], [0.09459699, -0.10031288, -0.01110721], atol=1e-8)
    np.testing.assert_allclose(y[2], [-0.36779287, 0.06873970, 0.31058125], atol=1e-8)
    y = ssd(v[:, None], jax.nn.softplus(i)[:, None], jnp.array([0.5]), k, q, **form)[:, 0]
    np.testing.assert_allclose(y[6], [0.21740789, -2.57648559, 1.92698477], atol=1e-8)
    np.testing.assert_allclose(y[2], [-0.81105763, 0.13669398, 0.69728810], atol=1e-8)

    y = mlstm(q, k, v, i, f, **form)
    np.testing.assert_allclose(y[6], [-0.02940930, -0.86297242, 0.74765578], atol=1e-8)
    np.testing.assert_allclose(y[2], [-0.50700822, 0.07899670, 0.44125976], atol=1e-8)
    n, gate = (1, 2, 5, 3), (1, 2, 5)
    inputs = {"q": waves(n), "k": waves(n, 0.41, 0.5), "v": waves(n, 0.29, 1.0)}
    inputs |= {"i": 8 * waves(gate, 1.3), "f": 3 + 2 * waves(gate, 0.7, 0.4)}
    check_golden("V1", lambda **inputs: (mlstm(**inputs, **form), None), **inputs)

    rotation = lambda a: jax.scipy.linalg.expm(a - a.swapaxes(-1, -2))  # noqa: E731
    after, before = rotation(wave([17, 19], [0, 1])), rotation(wave([23, 25], [0, 1]))
    transition = after * jnp.tanh(2 * wave([29, 30]))[:, None] @ before
    np.testing.assert_allclose(transition[0].ravel(), [0.95857853, -0.01976365, -0.01042917, -0.85482082], atol=1e-8)
    source, mark, direct = (jax.nn.sigmoid(wave([n, n + 2], [0, 1])) for n in (31, 37, 41))
    gates = source[:, :, None], transition, mark[:, :, None], direct[:, :, None, None]
    o = plstm1d_tracking(q[..., None], k[..., None], wave([43, 45, 47], [0, 1]), *gates, **form)
    last = [-0.00237970, 0.30590457, -0.37056244, -0.54735104, 0.48681125, 0.40964047]
    third = [0.52490126, 0.75599872, -0.38028351, -0.52383029, -0.02776148, -0.07120207]
    np.testing.assert_allclose(o[6].ravel(), last, atol=1e-8)
    np.testing.assert_allclose(o[2].ravel(), third, atol=1e-8)


def test_tracking_with_scalars_is_plstm1d(x64):
    arguments, _ = draw_tracking(12, jnp.float64, sizes=(1, 1, 1, 1, 1))
    q, k, v = (arguments[name][..., 0] for name in "qkv")
    *gates, direct = (arguments[name].reshape(2, 12) for name in ("source", "transition", "mark", "direct"))
    expected = plstm1d(q, k, v, SequenceGates(*gates), direct)
    np.testing.assert_allclose(plstm1d_tracking(**arguments)[..., 0], expected, atol=1e-12)
