"""pLSTM on two-dimensional grids (arXiv 2506.11997, Section 3.3 and Appendix D).

A node (y, x) has a left and an upper incoming edge, a right and a lower outgoing edge: the right-down direction. The
other three are mirror images, with gates of their own. A `structure` is what the caller promises about the transitions,
which saves work; a `method`, how `plstm2d` computes the sum over nodes; a `form`, how the gating matrix is made, by
those methods that make it. All methods and forms give the same numbers.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array

from plstm.errors import UserError
from plstm.files import core_count
from plstm.ops.common import (
    accumulation_dtype,
    attend,
    check_choice,
    check_inputs,
    check_shapes,
    chunked_map,
    num_chunks,
    split_over_devices,
)
from plstm.ops.grid import chunkwise, forms, fused, oracle
from plstm.ops.grid.oracle import GridGates, fill_unread

__all__ = ["GridGates", "gating_matrix", "plstm2d"]

METHODS = ("auto", "parallel", "chunkwise", "recurrent", "fused")
STRUCTURES = ("general", "rank_one", "no_ru")
# By structure. The first is the one that needs no measurement: backends without an entry in TABLE take it.
FORMS = {
    "general": {"row_transfer": forms.row_transfer, "source_scan": forms.source_scan},
    "rank_one": {"row_transfer": forms.row_transfer, "batch_minor": forms.rank_one_batch_minor},
    "no_ru": {"single_path": forms.single_path, "batch_minor": forms.single_path_batch_minor},
}
# From results/benchmarks/tune-cpu.json: the fastest form of each structure, and the number of nodes from which
# chunkwise is faster. With heads of 64 it was slower at 1,024 nodes and faster at 2,304; 1,882 is between.
TABLE = {
    "cpu": {
        "forms": {"general": "source_scan", "no_ru": "batch_minor", "rank_one": "batch_minor"},
        "chunkwise_from": {"general": 1882},
    }
}
WIDEST_FUSED = 64  # columns: what the kernels carry should fit the registers
# Max bytes of gating matrices at once under method="auto". On CPUs it is per core, of which at least
# FEWEST_CORES and at most MOST_CORES count, and the two passes take some 20 times as much.
MAX_MATRIX_BYTES_PER_CORE, MAX_MATRIX_BYTES_ELSEWHERE = 2**25, 2**33
FEWEST_CORES, MOST_CORES = 2, 16


def plstm2d(
    q: Array, k: Array, v: Array, gates: GridGates, direct: Array, *, method: str = "auto", structure: str = "general"
) -> Array:
    """Equations 1 and 2 on a grid, summed over the four directions (Appendix D.8, multi-directional form).

    q, k [..., Y, X, d_k], v [..., Y, X, d_v], gates [..., 4, Y, X], direct [..., Y, X], the weight of a node's own key
    and value, added once. q is scaled by d_k ** -0.5. Gating and accumulation are done in the gates' dtype, at least
    float32.

    method: "parallel" (by the gating matrix, in the first of FORMS), "chunkwise" (matrix states, block by block),
    "recurrent" (node by node), "fused" (GPU kernels, up to 64 columns), or "auto": see `choose_method`; the gating
    matrix is then made in the fastest form by TABLE. structure: see `gating_matrix`. Where a training step is traced
    under the mesh of several devices, each works on its own part of axis 0.

    Returns [..., Y, X, d_v] in v's dtype, with reverse-mode derivatives only. Raises ValueError where shapes disagree,
    a method or structure is unknown, or "fused" cannot run here; UserError where this JAX lacks Pallas.
    """
    check_choice("method", method, METHODS)
    check_choice("structure", structure, STRUCTURES)
    check_inputs("Y, X", q, k, v, direct=direct)
    *lead, height, width, _ = q.shape
    _check_gates(gates, (*lead, 4, height, width))
    if method == "fused":
        if width > WIDEST_FUSED:
            raise ValueError(f'method="fused" takes grids of at most {WIDEST_FUSED} columns; got {height} x {width}')
        if (backend := jax.default_backend()) != "gpu":
            raise ValueError(f'method="fused" runs on GPUs alone; this is {backend}')
        if fused.pl is None:
            raise UserError('method="fused" needs Pallas on Triton, which this JAX does not have: use method="auto"')
    dtype = accumulation_dtype(*gates)
    inputs = q, k, v, *jax.tree.map(lambda gate: gate.astype(dtype), (gates, direct))
    run = split_over_devices(functools.partial(_run, method=method, structure=structure), lead[0] if lead else 1)
    return run(*inputs).astype(v.dtype)


def _run(q, k, v, gates: GridGates, direct, *, method: str, structure: str) -> Array:
    """`plstm2d` of a device's part of the batch."""
    chosen = choose_method(q.shape, structure, direct.dtype.itemsize) if method == "auto" else method
    if chosen == "fused":
        return fused.fused(q, k, v, gates, direct, structure=structure)
    if chosen == "chunkwise":
        return chunkwise.chunkwise(q, k, v, gates, direct, structure)
    if chosen == "recurrent":
        return oracle.plstm2d_oracle(q, k, v, gates, direct, structure)
    form = "auto" if method == "auto" else next(iter(FORMS[structure]))
    return by_matrix(q, k, v, gates, direct, structure, form)


def gating_matrix(gates: GridGates, *, structure: str = "general", form: str = "auto") -> Array:
    """The gating matrix G of Equation 3: for each pair of nodes the sum over all paths of source, transitions and mark.

    structure: "general": any 2x2 transition. "rank_one" (P-mode, Equation 5): t_rl = t_ru, t_dl = t_du and m_l = m_u,
    of which t_ru, t_du and m_u are then not read. "no_ru" (D-mode): t_ru = 0, not read. form: one of FORMS[structure],
    or "auto": the fastest on this backend. "batch_minor" has reverse-mode derivatives only.

    Gates [..., 4, Y, X] give G [..., Y, X, Y, X] in their dtype, at least float32: source node, then target; directions
    summed; zero from a node to itself. Raises ValueError where shapes disagree, or a structure or form is unknown.
    """
    check_choice("structure", structure, STRUCTURES)
    _check_gates(gates, gates.s_r.shape)
    *lead, _, height, width = gates.s_r.shape
    gates = jax.tree.map(lambda gate: gate.reshape(-1, *gate.shape[-3:]).astype(accumulation_dtype(*gates)), gates)
    no_direct = jnp.zeros_like(gates.s_r[:, 0])
    gating = _gating_by_target(gates, no_direct, structure, form).swapaxes(1, 2)
    return gating.reshape(*lead, height, width, height, width)


def choose_method(shape: tuple[int, ...], structure: str, itemsize: int) -> str:
    """What "auto" does with a device's queries of a shape [..., Y, X, d_k]: the kernels on GPUs, elsewhere the gating
    matrix, unless it is slower than matrix states, or too large."""
    *lead, height, width, _ = shape
    nodes, backend, batch_heads = height * width, jax.default_backend(), math.prod(lead)
    if backend == "gpu" and fused.pl is not None and width <= WIDEST_FUSED:
        return "fused"
    at_once = -(-batch_heads // num_chunks(batch_heads, nodes**2 * itemsize))
    limit = MAX_MATRIX_BYTES_ELSEWHERE
    if backend == "cpu":
        limit = MAX_MATRIX_BYTES_PER_CORE * min(max(core_count(), FEWEST_CORES), MOST_CORES)
    least = TABLE.get(backend, {}).get("chunkwise_from", {}).get(structure, math.inf)
    return "chunkwise" if at_once * nodes**2 * itemsize > limit or nodes >= least else "parallel"


def by_matrix(q, k, v, gates: GridGates, direct, structure: str, form: str, chunks: int | None = None) -> Array:
    """`plstm2d` by the gating matrix in one form; chunks of batch x heads: None: by the size of the matrices."""
    *lead, height, width, key_size = q.shape
    nodes, turned = height * width, tuple(reversed(range(len(lead))))

    def one_chunk(q, k, v, gates, direct):
        gating = _gating_by_target(gates, direct, structure, form)
        flat = (x.reshape(-1, nodes, x.shape[-1]) for x in (q, k, v))
        return attend(*flat, gating, key_size**-0.5).astype(v.dtype).reshape(v.shape)

    def turn(tensor):  # the batch moves fastest, as in `plstm.nn.gates`
        return tensor.transpose(*turned, *range(len(lead), tensor.ndim))

    chunks = chunks or num_chunks(math.prod(lead), nodes**2 * direct.dtype.itemsize)
    return turn(chunked_map(one_chunk, jax.tree.map(turn, (q, k, v, gates, direct)), chunks, len(lead)))


def _gating_by_target(gates: GridGates, direct: Array, structure: str, form: str) -> Array:
    """G [B, N, N] with target rows and source columns: the layout in which it is made, and that attention reads.
    direct [B, Y, X]: its diagonal."""
    known = FORMS[structure]
    if form == "auto":
        form = TABLE.get(jax.default_backend(), {}).get("forms", {}).get(structure, next(iter(known)))
    if form not in known:
        raise ValueError(f'form={form!r} with structure="{structure}": must be one of auto, {", ".join(known)}')
    return known[form](fill_unread(gates, structure), direct)


def _check_gates(gates: GridGates, expected: tuple[int, ...]) -> None:
    if len(expected) < 3 or expected[-3] != 4:
        raise ValueError(f"gates must be [..., 4, Y, X]; got s_r {expected}")
    check_shapes("[..., 4, Y, X]", expected, **gates._asdict())
