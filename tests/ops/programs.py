"""Public operators and a model inside a caller's parallel program: the cases and the programs.

python programs.py CASE ...     on eight devices: prints as JSON what differs from the numbers alone, by case
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from plstm.models import VisionConfig, build_model
from plstm.ops.dag import plstm_dag, plstm_dag_by_parts
from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.grid import gating_matrix, plstm2d, plstm2d_tracking
from plstm.ops.linear_attention import linear_attention
from plstm.ops.mamba2d import mamba2d
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import plstm1d, plstm1d_tracking
from plstm.ops.slstm import slstm
from plstm.ops.ss2d import ss2d
from plstm.ops.ssd import ssd
from tests.ops import (
    test_dag,
    test_grid,
    test_recurrences,
    test_scans,
    test_sequence,
    test_tracking,
)

DEVICES = 8
BATCH = DEVICES**2  # so that the devices also divide the part of each
SHARED = {"a", "a_t", "a_l", "recurrent", "state"}  # arguments without an axis of the batch
MANUAL = ("checked", "unchecked")  # `jax.shard_map`, with check_vma and without
PROGRAMS = (*MANUAL, "auto", "explicit")  # and `jax.set_mesh` with axes of either type
f32 = jnp.float32


def draw_grid() -> dict:
    arguments = test_grid.draw((1, 3, 2), dtype=f32)[0]
    return arguments | {"gates": test_grid.assemble(arguments.pop("free"))}


def draw_model() -> tuple:
    config = VisionConfig(image_size=4, patch_size=2, dim=16, heads=1, depth=2, classes=2, dtype="float32")
    graphdef, state = nnx.split(build_model(config, 0))

    def model(images, state):
        return nnx.merge(graphdef, state)(images)

    return model, {"images": jnp.cos(jnp.arange(48.0)).reshape(1, 4, 4, 3), "state": state}


GRID = draw_grid()
TRACKING = test_recurrences.draw_tracking(5, f32)[0]
MLSTM = test_recurrences.draw_mlstm(5, f32)[0]
DELTA = test_recurrences.draw_delta_rule(5, f32)[0]
LINEAR = test_recurrences.draw_linear_attention(5, f32)[0]
SSD = test_recurrences.draw_ssd(5, f32)[0]
SEQUENCE = test_sequence.draw(5)[0]
SS2D = test_scans.draw("ss2d", 3, 2)[0]
MAMBA2D = test_scans.draw("mamba2d", 3, 2)[0]
DAG = test_dag.DAGS["sparse"]
on_dag = functools.partial(plstm_dag, dag=DAG)
BY_METHOD = [
    ("plstm2d", plstm2d, GRID, ("parallel", "hierarchical", "chunkwise", "recurrent")),
    ("plstm1d", plstm1d, SEQUENCE, ("parallel", "recurrent")),
    ("tracking", plstm1d_tracking, TRACKING, ("chunkwise", "recurrent")),
    ("mlstm", mlstm, MLSTM, ("chunkwise", "recurrent")),
    ("delta", gated_delta_rule, DELTA, ("chunkwise", "recurrent")),
    ("ssd", ssd, SSD, ("chunkwise", "recurrent")),
    ("linear", linear_attention, LINEAR, ("chunkwise", "recurrent")),
    ("ss2d", ss2d, SS2D, ("scans", "recurrent")),
    ("mamba2d", mamba2d, MAMBA2D, ("rows", "diagonals", "recurrent")),
    ("dag", on_dag, test_dag.draw(DAG, f32)[0], ("levels", "doubling", "recurrent")),
]
CASES = {
    f"{name}-{method}": (functools.partial(operator, method=method), arguments)
    for name, operator, arguments, methods in BY_METHOD
    for method in methods
}
for structure in ("general", "shared_incoming", "d_mode"):
    CASES[f"plstm2d-{structure}"] = functools.partial(plstm2d, structure=structure), GRID
    CASES[f"matrix-{structure}"] = functools.partial(gating_matrix, structure=structure), {"gates": GRID["gates"]}
CASES["dag-parts"] = functools.partial(plstm_dag_by_parts, dag=DAG, parts=3), test_dag.draw(DAG, f32)[0]
CASES["tracking-grid"] = plstm2d_tracking, test_tracking.draw_on_grid(2, 3, (1,))[0]
CASES["slstm"] = slstm, test_recurrences.draw_slstm(5, f32)[0]
CASES["model"] = draw_model()


def batched(arguments: dict, batch: int) -> dict:
    """The first entry of each argument, in a batch of as many different ones."""

    def repeat(x):
        return jnp.asarray(x[0], f32) * jnp.linspace(0.5, 1, batch, dtype=f32).reshape(batch, *(1,) * (x.ndim - 1))

    return {name: x if name in SHARED else jax.tree.map(repeat, x) for name, x in arguments.items()}


def with_gradients(operator, sum_shared=None):
    """Function of arguments: the output, and the gradients of a sum over the batch."""

    def call(arguments):
        def loss(arguments):
            output = operator(**arguments)
            return (output * jnp.cos(jnp.arange(output.shape[-1]))).sum(), output

        gradients, output = jax.grad(loss, has_aux=True)(arguments)
        if sum_shared is not None:
            gradients = {name: sum_shared(x) if name in SHARED else x for name, x in gradients.items()}
        return output, gradients

    return call


def in_shard_map(operator, mesh, arguments: dict, check_vma: bool):
    """What `with_gradients` is inside `jax.shard_map`, which sums over devices by itself where it checks types."""
    specs = {name: P() if name in SHARED else P("data") for name in arguments}
    call = with_gradients(operator, None if check_vma else functools.partial(jax.lax.psum, axis_name="data"))
    return jax.shard_map(call, mesh=mesh, in_specs=(specs,), out_specs=(P("data"), specs), check_vma=check_vma)


def under_explicit_axes(name: str, operator):
    """As a caller writes it: operators as they are; JAX splits no sharded axis in a model's reshapes by itself."""
    if name != "model":
        return operator
    by_place = jax.sharding.auto_axes(lambda arguments: operator(**arguments), out_sharding=P("data"))
    return lambda **arguments: by_place(arguments)


def make_mesh(make, program: str):
    """`make` of eight devices along "data", the axis explicit in the program of that name."""
    kind = AxisType.Explicit if program == "explicit" else AxisType.Auto
    return make((DEVICES,), ("data",), axis_types=(kind,))


def build(name: str, program: str, mesh):
    """The program over a mesh, jitted, and the sharding of each argument, None where it splits them itself."""
    operator, arguments = CASES[name]
    if program in MANUAL:
        return jax.jit(in_shard_map(operator, mesh, arguments, program == "checked")), None
    operator = under_explicit_axes(name, operator) if program == "explicit" else operator
    specs = {name: NamedSharding(mesh, P() if name in SHARED else P("data")) for name in arguments}
    return jax.jit(with_gradients(operator)), specs


def lower(name: str, program: str) -> None:
    """Lowers the program for eight devices that need not be there."""
    mesh = make_mesh(AbstractMesh, program)
    function, shardings = build(name, program, mesh)
    arguments = jax.eval_shape(lambda: batched(CASES[name][1], BATCH))
    if shardings is None:
        function.trace(arguments).lower(lowering_platforms=("cpu",))
        return

    def place(x, sharding):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), x)

    with jax.sharding.use_abstract_mesh(mesh):
        placed = {name: place(x, shardings[name]) for name, x in arguments.items()}
        traced = function.trace(placed)
        traced.lower(lowering_platforms=("cpu",))
    if program == "explicit":
        output, _ = traced.out_info
        assert output.sharding.spec[0] == "data"


def run(name: str, program: str, arguments: dict):
    """The output and the gradients, over eight devices."""
    mesh = make_mesh(jax.make_mesh, program)
    function, shardings = build(name, program, mesh)
    if shardings is None:
        return function(arguments)
    with jax.set_mesh(mesh):
        return function(jax.device_put(arguments, shardings))


def run_mapped(name: str, transform, arguments: dict):
    """The same by `jax.pmap` or `jax.vmap`, over eight parts of the batch."""
    axes = {name: None if name in SHARED else 0 for name in arguments}

    def split(x):
        return x.reshape(DEVICES, BATCH // DEVICES, *x.shape[1:])

    parts = {name: x if name in SHARED else jax.tree.map(split, x) for name, x in arguments.items()}
    output, gradients = transform(with_gradients(CASES[name][0]), in_axes=(axes,))(parts)
    join = functools.partial(jax.lax.collapse, start_dimension=0, stop_dimension=2)
    add = functools.partial(jnp.sum, axis=0)
    return join(output), {name: jax.tree.map(add if name in SHARED else join, x) for name, x in gradients.items()}


def largest_differences(name: str) -> dict[str, float]:
    """From the numbers alone, by program, relative to the largest entry of each array."""
    operator, arguments = CASES[name]
    arguments = batched(arguments, BATCH)
    found = {program: run(name, program, arguments) for program in PROGRAMS}
    found |= {"pmap": run_mapped(name, jax.pmap, arguments), "vmap": run_mapped(name, jax.vmap, arguments)}
    found["nested jit"] = jax.jit(jax.jit(with_gradients(jax.jit(operator))))(arguments)
    alone = jax.tree.map(np.asarray, with_gradients(operator)(arguments))

    def difference(x, expected):
        return float(np.abs(np.asarray(x) - expected).max() / max(np.abs(expected).max(), 1e-30))

    return {program: max(jax.tree.leaves(jax.tree.map(difference, tree, alone))) for program, tree in found.items()}


if __name__ == "__main__":
    print(json.dumps({name: largest_differences(name) for name in sys.argv[1:]}))
