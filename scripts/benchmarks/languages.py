"""Models of formal languages, a training step's forward and backward pass: PR-LSTM beside LSTM at several lengths, and
every model of the reduced table."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from plstm.models import LanguageConfig, build_model
from plstm.nn.recurrent import Rows
from scripts.benchmarks.operators import Row, compare, compile_step, ratio

VOCABULARY, TRAINED, REDUCED_DIM = 4, 41, 64  # of missing_duplicate; the steps and units of the reduced table
MODELS = {
    "pr_lstm": {},
    "pr_lstm_0r": {"refinements": 0},
    "pr_lstm_2r": {"refinements": 2},
    "pr_rnn": {},
    **{kind: {} for kind in ("lstm", "rnn", "stack_rnn", "tape_rnn", "transformer")},
}


def prepare(name: str, dim: int, steps: int, batch: int) -> tuple[Any, Row]:
    """The compiled gradient of a model's loss for one answer after `steps` - 1 tokens, with its report."""
    kind = next(kind for kind in ("pr_lstm", "pr_rnn", name) if name.startswith(kind))
    model = build_model(LanguageConfig(kind=kind, dim=dim, **MODELS[name]), 0, {"vocabulary": VOCABULARY, "classes": 2})
    graphdef, params = nnx.split(model)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(batch, steps))
    rows = Rows(jnp.asarray(tokens, jnp.int32), jnp.full(batch, steps - 1), jnp.full(batch, steps))

    def loss(params, rows):
        logits = nnx.merge(graphdef, params)(rows, 1, key=jax.random.key(0) if kind == "transformer" else None)
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, 0], rows.tokens[:, 0] % 2).mean()

    run, report = compile_step(jax.value_and_grad(loss), (params, rows))
    report["products_in_sequence"] = product_depth(jax.make_jaxpr(loss)(params, rows).jaxpr)
    return partial(run, params, rows), report


def product_depth(jaxpr: Any) -> int:
    """The longest chain of matrix products, each of which waits for the one before."""
    depth: dict[Any, int] = {}
    for equation in jaxpr.eqns:
        before = max((depth.get(x, 0) for x in equation.invars if not hasattr(x, "val")), default=0)
        inner = [getattr(part, "jaxpr", part) for part in equation.params.values()]
        own = max((product_depth(part) for part in inner if hasattr(part, "eqns")), default=0)
        own = own * equation.params.get("length", 1) if equation.primitive.name == "scan" else own
        depth |= dict.fromkeys(equation.outvars, before + own + (equation.primitive.name == "dot_general"))
    return max(depth.values(), default=0)


def measure_languages(
    repeats: int, lengths=(41, 128, 512, 2048), dims=(64, 256), batch=128, models=tuple(MODELS)
) -> Iterator[Row]:
    """PR-LSTM's step over LSTM's by length and width, and steps a second of each model of the reduced table."""
    for dim in dims:
        for steps in lengths:
            found = compare({name: prepare(name, dim, steps, batch) for name in ("pr_lstm", "lstm")}, repeats)
            yield {"dim": dim, "steps": steps, **found, **ratio(found, "pr_lstm", "lstm")}
    for name in models:
        found = compare({name: prepare(name, REDUCED_DIM, TRAINED, batch)}, repeats)[name]
        yield {"model": name, "steps_per_second": 1 / found["median_seconds"], **found}
