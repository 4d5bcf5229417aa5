"""pLSTM on two-dimensional grids (arXiv 2506.11997, Section 3.3 and Appendix D): the operator and its choice of method.

A `structure` is what the caller promises about the transitions (`plstm.ops.grid.gates`); a `method` is how `plstm2d`
computes the sum over nodes; a `form` is how the gating matrix is made, by methods that make it. All methods and forms
give the same numbers.
"""

import functools
import math

import jax
from jax import Array

import plstm.ops.grid.cpu as cpu
import plstm.ops.grid.kernels as kernels
from plstm.errors import UserError
from plstm.ops.common import accumulation_dtype, check_axes, check_choice, public_operator, split_over_devices
from plstm.ops.grid.chunkwise import chunkwise
from plstm.ops.grid.gates import GATE_AXES, STRUCTURES, GridGates
from plstm.ops.grid.matrix import FORMS, by_matrix
from plstm.ops.grid.recurrence import plstm2d_oracle

METHODS = ("auto", "parallel", "hierarchical", "chunkwise", "recurrent", "fused")
WIDEST_FUSED = 64  # columns: what the kernels carry should fit the registers
MAX_MATRIX_BYTES = 2**33  # of gating matrices at once under method="auto"; CPUs have a limit of their own


@public_operator
def plstm2d(
    q: Array, k: Array, v: Array, gates: GridGates, direct: Array, *, method: str = "auto", structure: str = "general"
) -> Array:
    """Equations 1 and 2 on a grid, summed over the four directions (Appendix D.8, multi-directional form).

    q, k [..., Y, X, d_k], v [..., Y, X, d_v], gates [..., 4, Y, X], direct [..., Y, X], the weight of a node's own key
    and value, added once. q is scaled by d_k ** -0.5. Gating and accumulation are done in the gates' dtype, at least
    float32.

    method: "parallel" (by the gating matrix, in the first of FORMS), "hierarchical" (by the gating matrix, in about
    log2(Y X) products in sequence), "chunkwise" (matrix states, block by block), "recurrent" (node by node),
    "fused" (GPU kernels, up to 64 columns), or "auto": see `choose_method`; the gating matrix is then made in the
    fastest form. structure: see `plstm.ops.grid.gates`. Where a training step is traced under the mesh of several
    devices, each works on its own part of axis 0.

    Returns [..., Y, X, d_v] in v's dtype, with reverse-mode derivatives only but for "recurrent". Raises ValueError
    where shapes disagree, an axis that is named is empty, a method or structure is unknown, or "fused" cannot run here;
    UserError where this JAX lacks Pallas.
    """
    check_choice("method", method, METHODS)
    check_choice("structure", structure, STRUCTURES)
    axes = f"q, k [..., Y, X, d_k]; v [..., Y, X, d_v]; direct [..., Y, X]; {GATE_AXES}"
    check_axes(axes, q, k, v, direct, *gates)
    *lead, height, width, _ = q.shape
    if method == "fused":
        if width > WIDEST_FUSED:
            raise ValueError(f'method="fused" takes grids of at most {WIDEST_FUSED} columns; got {height} x {width}')
        if (backend := jax.default_backend()) != "gpu":
            raise ValueError(f'method="fused" runs on GPUs alone; this is {backend}')
        if kernels.pl is None:
            raise UserError('method="fused" needs Pallas on Triton, which this JAX does not have: use method="auto"')
    dtype = accumulation_dtype(*gates)
    gates, direct = jax.tree.map(lambda gate: gate.astype(dtype), (gates, direct))
    run = split_over_devices(functools.partial(_run, method=method, structure=structure), lead[0] if lead else 1)
    return run(q, k, v, gates, direct).astype(v.dtype)


def _run(q, k, v, gates: GridGates, direct, *, method: str, structure: str) -> Array:
    """`plstm2d` of a device's part of the batch."""
    chosen = choose_method(q.shape, structure, direct.dtype.itemsize) if method == "auto" else method
    if chosen == "fused":
        return kernels.fused(q, k, v, gates, direct, structure=structure)
    if chosen == "chunkwise":
        return chunkwise(q, k, v, gates, direct, structure)
    if chosen == "recurrent":
        return plstm2d_oracle(q, k, v, gates, direct, structure)
    form = method if method in ("auto", "hierarchical") else next(iter(FORMS[structure]))
    return by_matrix(q, k, v, gates, direct, structure, form)


def choose_method(shape: tuple[int, ...], structure: str, itemsize: int) -> str:
    """The method of "auto" for a device's queries of a shape [..., Y, X, d_k]: "parallel", or "chunkwise" where the
    gating matrix is slower or too large. Never "fused" until a GPU has run its kernels and passed `make test-gpu`."""
    *lead, height, width, _ = shape
    nodes = height * width
    batch_heads = math.prod(lead)
    backend = jax.default_backend()
    if backend == "cpu" and nodes >= cpu.CHUNKWISE_FROM.get(structure, math.inf):
        return "chunkwise"
    limit = cpu.max_matrix_bytes() if backend == "cpu" else MAX_MATRIX_BYTES
    at_once = -(-batch_heads // cpu.num_chunks(batch_heads, nodes, itemsize, structure))
    return "chunkwise" if at_once * nodes**2 * itemsize > limit else "parallel"
