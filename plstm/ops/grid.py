"""pLSTM on two-dimensional grids, in parallel and recurrent form (arXiv 2506.11997, Section 3.3 and Appendix D.3).

A node (y, x) has a left and an upper incoming edge, a right and a lower outgoing edge: the right-down direction. The
other three directions are mirror images, with gates of their own. Everything here computes in mirrored coordinates, in
which each direction reads as right-down, and mirrors back at the end.

These forms give the same numbers:

* *row transfer* (`method="parallel"`): a row is a 1-D pLSTM, so a grid is a sequence of rows whose state is the row's
  X lower edges; a row costs one product with an X x 2X matrix. It takes any grid and any 2x2 transition, unpadded.
* *source scan*: the recurrence over nodes that carries, instead of a d_k x d_v state, each source node's weight on an
  edge, and so writes the gating matrix column by column. `plstm.ops.batch_minor` has more such forms for CPUs.
* *recurrent*: Equations 1 and 2 as they stand, linear in the number of nodes; *chunkwise* is the same block by block.
* *fused*: row transfer within GPU kernels (`plstm.ops.fused`), which keep the gating matrix on the chip.

CPUs make gating matrices for a lot of batch and heads at a time (`plstm.ops.lots`).
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from plstm.ops import batch_minor
from plstm.ops.chunkwise import chunkwise
from plstm.ops.directions import GridGates, mirror, mirror_gates, pass_node
from plstm.ops.lots import count_lots, map_lots
from plstm.ops.sequence import segment_products
from plstm.ops.tuned import TABLE

__all__ = ["GridGates", "gating_matrix", "plstm2d"]

METHODS = ("auto", "parallel", "chunkwise", "recurrent", "fused")
STRUCTURES = ("general", "rank_one", "no_ru")
FORMS = ("auto", "row_transfer", "source_scan", "batch_minor")
WIDEST_FUSED = 64  # columns: what its kernels carry should fit the registers
SHORTEST_BATCH = 8  # heads included: as many numbers as a CPU's vectors hold
# Of the gating matrices made at a time (`plstm.ops.lots`) for "auto" to make them. Their forward and backward pass take
# some 20 times that on CPUs.
LARGEST_MATRIX = {"cpu": 2**29}
LARGEST_MATRIX_ELSEWHERE = 2**33


def plstm2d(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    gates: GridGates,
    direct: jax.Array,
    *,
    method: str = "auto",
    structure: str = "general",
) -> jax.Array:
    """Equations 1 and 2 on a grid, summed over the four directions (Appendix D.8, multi-directional form).

    Args:
        q, k: [..., Y, X, d_k]; q is scaled by d_k ** -0.5.
        v: [..., Y, X, d_v].
        gates: eight tensors [..., 4, Y, X]; gating and accumulation are done in their dtype, at least float32.
        direct: [..., Y, X], the weight of a node's own key and value; added once, not once a direction.
        method: "parallel" (gating matrix by row transfer), "chunkwise" (matrix states, block by block), "recurrent"
            (node by node), "fused" (GPU kernels, grids of up to 64 columns, one device), or "auto": of the others the
            fastest by `plstm.ops.tuned`, and chunkwise where the matrix would be huge.
        structure: what the caller promises about the transitions, see `gating_matrix`.

    Returns:
        [..., Y, X, d_v] in v's dtype. For derivatives count on reverse mode alone: "chunkwise", "fused" and some forms
        that "auto" takes have no other.

    Raises:
        ValueError: where shapes disagree, a method or structure is unknown, or "fused" cannot run here.
    """
    _check_choice("method", method, METHODS)
    _check_choice("structure", structure, STRUCTURES)
    _check_arguments(q, k, v, gates, direct)
    if method == "fused":
        if (backend := jax.default_backend()) != "gpu":
            raise ValueError(f'method="fused" runs on GPUs alone; this is {backend}')
        from plstm.ops.fused import fused  # not every build of JAX has what it imports

        return fused(q, k, v, gates, direct, structure=structure)
    dtype = _gate_dtype(gates)
    direct = direct.astype(dtype)
    if method == "auto" and prefers_chunkwise(q.shape, v.shape[-1], structure, jnp.dtype(dtype).itemsize):
        method = "chunkwise"
    if method == "chunkwise":
        hidden = chunkwise(q, k, v, mirror_gates(gates, dtype), structure)
        return (hidden + (direct * _self_similarity(q, k, dtype))[..., None] * v).astype(v.dtype)
    if method == "recurrent":
        return _recurrent(q, k, v, gates, direct, structure).astype(v.dtype)
    return by_matrix(q, k, v, gates, direct, structure, "row_transfer" if method == "parallel" else "auto")


def prefers_chunkwise(shape: tuple[int, ...], value_size: int, structure: str, itemsize: int) -> bool:
    """What "auto" does for queries of a shape [..., Y, X, d_k]: True where a gating matrix is slower, or too large."""
    *lead, height, width, key_size = shape
    nodes, backend, rows = height * width, jax.default_backend(), math.prod(lead)
    lots = count_lots(rows, nodes**2 * itemsize)
    if rows * nodes**2 * itemsize / lots > LARGEST_MATRIX.get(backend, LARGEST_MATRIX_ELSEWHERE):
        return True
    measured = TABLE.get(backend, {}).get("chunkwise_from", {}).get(structure)
    if not measured:
        return False
    size = math.sqrt(key_size * value_size)
    least = measured[min(measured, key=lambda d: abs(math.log(d / size)))]
    return least is not None and nodes >= least


def by_matrix(q, k, v, gates: GridGates, direct, structure: str, form: str, lots: int | None = None) -> jax.Array:
    """`plstm2d` by a gating matrix that is made in one of FORMS, for a lot of the leading entries at a time.

    lots: how many; none: by the size of the matrix, see `plstm.ops.lots`.
    """
    *lead, height, width, _ = q.shape
    rows = math.prod(lead)
    flat = jax.tree.map(lambda tensor: tensor.reshape(rows, *tensor.shape[len(lead) :]), (q, k, v, gates, direct))
    lots = lots or count_lots(rows, (height * width) ** 2 * jnp.dtype(_gate_dtype(gates)).itemsize)
    hidden = map_lots(functools.partial(_by_whole_matrix, structure=structure, form=form), flat, lots)
    return hidden.reshape(v.shape)


def _by_whole_matrix(q, k, v, gates: GridGates, direct, *, structure: str, form: str) -> jax.Array:
    dtype = _gate_dtype(gates)
    weights = _gating_by_target(gates, structure, form)
    rows, height, width, _ = q.shape
    nodes = height * width
    q, k, v = (tensor.reshape(rows, nodes, tensor.shape[-1]) for tensor in (q, k, v))
    weights = weights + direct.astype(dtype).reshape(rows, nodes, 1) * jnp.eye(nodes, dtype=dtype)
    similarity = jnp.einsum("rbk,rak->rba", q, k, preferred_element_type=dtype)
    weights = (weights * similarity * q.shape[-1] ** -0.5).astype(v.dtype)
    hidden = jnp.einsum("rba,rav->rbv", weights, v, preferred_element_type=dtype)
    return hidden.reshape(rows, height, width, -1).astype(v.dtype)


def gating_matrix(gates: GridGates, *, structure: str = "general", form: str = "auto") -> jax.Array:
    """The gating matrix G of Equation 3: for each pair of nodes the sum over all paths of source, transitions and mark.

    Args:
        gates: eight tensors [..., 4, Y, X], any Y, X >= 1.
        structure: a promise that saves work. "general": any 2x2 transition. "rank_one" (P-mode, Equation 5):
            t_rl = t_ru, t_dl = t_du and m_l = m_u, of which t_ru, t_du and m_u are then not read. "no_ru" (D-mode):
            t_ru = 0, not read.
        form: "row_transfer"; "source_scan"; "batch_minor" (P- and D-mode only, and reverse-mode derivatives only); or
            "auto": by backend. In the first two "no_ru" has a closed form of its own.

    Returns:
        G [..., Y, X, Y, X] in the gates' dtype, at least float32: source node, then target; directions summed; no
        direct term, so a node's weight on itself is zero.

    Raises:
        ValueError: where the gates' shapes disagree, or a structure or form is unknown.
    """
    _check_choice("structure", structure, STRUCTURES)
    _check_choice("form", form, FORMS)
    _check_gates(gates)
    grid = gates.s_r.shape[-2:]
    matrix = _gating_by_target(gates, structure, form).swapaxes(-1, -2)
    return matrix.reshape(*matrix.shape[:-2], *grid, *grid)


def _gating_by_target(gates: GridGates, structure: str, form: str) -> jax.Array:
    """G [..., N, N] with target rows and source columns: the layout in which it is made, and that attention reads."""
    if form == "auto":
        form = _fastest_form(gates, structure)
    if form == "batch_minor" and structure == "general":
        raise ValueError('form="batch_minor" needs structure="rank_one" or "no_ru"')
    gates = mirror_gates(gates, _gate_dtype(gates))
    if form == "batch_minor":
        return (batch_minor.single_path if structure == "no_ru" else batch_minor.rank_one)(gates)
    if structure == "no_ru":
        return _single_path(gates)
    if form == "source_scan":
        return _source_scan(gates, structure)
    if structure == "rank_one":
        gates = gates._replace(t_ru=gates.t_rl, t_du=gates.t_dl, m_u=gates.m_l)
    return _row_transfer(gates)


def _fastest_form(gates: GridGates, structure: str) -> str:
    """A CPU runs short vector operations in sequence without loss, where a GPU wants few and large products."""
    forms = TABLE.get(jax.default_backend(), {}).get("forms")
    if not forms or structure not in forms:
        return "row_transfer"
    return forms[structure][math.prod(gates.s_r.shape[:-3]) >= SHORTEST_BATCH]


def _row_transfer(gates: GridGates) -> jax.Array:
    """G by carrying, for every source node of the rows above, its weight on the current row's upper edges."""
    along = segment_products(gates.t_rl)  # L[..., a, b], strictly upper triangular
    enter, leave = _column(gates.t_ru), _row(gates.t_dl)
    upper_to_lower = _diagonal(gates.t_du) + enter * along * leave
    node_to_lower = _diagonal(gates.s_d) + _column(gates.s_r) * along * leave
    upper_to_node = _diagonal(gates.m_u) + enter * along * _row(gates.m_l)
    within_row = _column(gates.s_r) * along * _row(gates.m_l)

    *lead, height, width = gates.s_r.shape
    # What is below the diagonal is zero already; masking it keeps the backward pass from forming its gradients, which
    # can overflow, and NaN is what an infinity times that zero would be.
    transfer = jnp.concatenate([jnp.triu(upper_to_node), jnp.triu(upper_to_lower)], axis=-1)
    none = jnp.zeros((*lead, height, width, width), along.dtype)
    columns, edges = [], none[..., :0, :, :]  # edges: [..., source row so far, x, upper edge]
    for y in range(height):
        marked, lower = jnp.split(_product("...yab,...bc->...yac", edges, transfer[..., y, :, :]), 2, axis=-1)
        columns.append(jnp.concatenate([marked, within_row[..., y, None, :, :], none[..., y + 1 :, :, :]], axis=-3))
        edges = jnp.concatenate([lower, node_to_lower[..., y, None, :, :]], axis=-3)
    matrix = jnp.stack(columns, axis=-2)  # [..., 4, Y, X, Y, X]
    matrix = sum(mirror(matrix, -5, rows=(-4, -2), columns=(-3, -1)))
    return matrix.reshape(*lead[:-1], height * width, height * width).swapaxes(-1, -2)


def _source_scan(gates: GridGates, structure: str) -> jax.Array:
    """G by the recurrence over nodes; a state holds an edge's weight from each of the Y X sources.

    Sources are numbered in image coordinates from the start, so only the targets, whole rows of memory, are mirrored.
    """
    *lead, _, height, width = gates.s_r.shape
    nodes = height * width
    sources = jnp.eye(nodes, dtype=gates.s_r.dtype).reshape(height, width, *(1,) * len(lead), nodes)
    zero = jnp.zeros((*lead, 4, nodes), gates.s_r.dtype)
    marked = _sweep(
        gates, _four_directions(sources), zero, structure, emit=lambda source: source, read=lambda edge, _: edge
    )
    marked = sum(mirror(marked, -2, rows=(0,), columns=(1,))).reshape(nodes, *lead, nodes)
    return jnp.moveaxis(marked, 0, -2)


def _recurrent(q, k, v, gates, direct, structure):
    """Equations 1 and 2 with d_k x d_v states, the four directions side by side."""
    dtype = direct.dtype
    q, k, v = (tensor.astype(dtype) for tensor in (q, k, v))
    q = q * q.shape[-1] ** -0.5
    hidden = _sweep(
        mirror_gates(gates, dtype),
        tuple(_four_directions(jnp.moveaxis(tensor, (-3, -2), (0, 1))) for tensor in (q, k, v)),
        jnp.zeros((*q.shape[:-3], 4, k.shape[-1], v.shape[-1]), dtype),
        structure,
        emit=lambda qkv: qkv[1][..., :, None] * qkv[2][..., None, :],
        read=lambda cell, qkv: jnp.einsum("...k,...kv->...v", qkv[0], cell),
    )
    hidden = sum(mirror(hidden, -2, rows=(0,), columns=(1,)))
    return jnp.moveaxis(hidden, (0, 1), (-3, -2)) + (direct * (q * k).sum(-1))[..., None] * v


def _self_similarity(q, k, dtype):
    return jnp.einsum("...k,...k->...", q, k, preferred_element_type=dtype) * q.shape[-1] ** -0.5


def _sweep(gates, inputs, zero, structure, emit, read):
    """Visits the nodes row by row: `read` what the incoming edges bring, pass it on, add what the node emits.

    gates: mirrored, each [..., 4, Y, X]. inputs: a tree of [Y, X, ...]. zero: an empty edge state [..., 4, *state].
    Returns `read`'s results [Y, X, ...].
    """
    states = (1,) * (zero.ndim - gates.s_r.ndim + 2)
    gates = GridGates(*(jnp.moveaxis(gate, (-2, -1), (0, 1)) for gate in gates))
    gates = GridGates(*(gate.reshape(*gate.shape, *states) for gate in gates))

    def visit(left, node):
        g, up, here = node
        source = emit(here)
        marked, right, down = pass_node(g, left, up, structure)
        return right + g.s_r * source, (down + g.s_d * source, read(marked, here))

    def visit_row(upper, row):
        _, (lower, results) = lax.scan(visit, zero, (row[0], upper, row[1]))
        return lower, results

    width = gates.s_r.shape[1]
    _, results = lax.scan(visit_row, jnp.broadcast_to(zero, (width, *zero.shape)), (gates, inputs))
    return results


def _single_path(gates: GridGates) -> jax.Array:
    """G without t_ru: a path runs along its row, turns once, and runs down its column.

    So G[y, x, y', x'] = A[y, x, x'] B[y, y', x'] for y' > y, and a pair costs a multiplication a direction.
    """
    along = _column(gates.s_r) * segment_products(gates.t_rl)  # [..., 4, y, x, x']
    turned = _diagonal(gates.s_d) + along * _row(gates.t_dl)
    within_row = along * _row(gates.m_l)
    down = segment_products(gates.t_du.swapaxes(-1, -2)) * gates.m_u.swapaxes(-1, -2)[..., None, :]
    down = jnp.moveaxis(down, -3, -1)  # [..., 4, x', y, y'] -> [..., 4, y, y', x']

    turned = jnp.stack(mirror(turned, -4, rows=(-3,), columns=(-2, -1)), axis=-1)
    down = jnp.stack(mirror(down, -4, rows=(-3, -2), columns=(-1,)), axis=-2)
    within_row = sum(mirror(within_row, -4, rows=(-3,), columns=(-2, -1)))
    same_row = jnp.eye(within_row.shape[-3], dtype=along.dtype)[:, None, :, None]
    matrix = _product("...yabn,...yznb->...yazb", turned, down) + same_row * within_row[..., None, :]
    nodes = matrix.shape[-1] * matrix.shape[-2]
    return matrix.reshape(*matrix.shape[:-4], nodes, nodes).swapaxes(-1, -2)


def _four_directions(tensor: jax.Array) -> jax.Array:
    """What nodes bring, [Y, X, ..., d], as each direction meets it: [Y, X, ..., 4, d]."""
    return jnp.stack(mirror(jnp.stack([tensor] * 4), 0, rows=(0,), columns=(1,)), axis=-2)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum in full precision: the default of GPUs and TPUs would round gates to fewer bits."""
    return jnp.einsum(equation, a, b, precision=lax.Precision.HIGHEST)


def _column(gate: jax.Array) -> jax.Array:
    return gate[..., :, None]


def _row(gate: jax.Array) -> jax.Array:
    return gate[..., None, :]


def _diagonal(gate: jax.Array) -> jax.Array:
    return _column(gate) * jnp.eye(gate.shape[-1], dtype=gate.dtype)


def _gate_dtype(gates: GridGates):
    return jnp.promote_types(jnp.result_type(*gates), jnp.float32)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def _check_gates(gates: GridGates) -> None:
    shape = gates.s_r.shape
    if len(shape) < 3 or shape[-3] != 4:
        raise ValueError(f"gates must be [..., 4, Y, X]; got s_r {shape}")
    for name, gate in gates._asdict().items():
        if gate.shape != shape:
            raise ValueError(f"gates must have one shape; got s_r {shape} and {name} {gate.shape}")


def _check_arguments(q, k, v, gates, direct) -> None:
    _check_gates(gates)
    if q.ndim < 3 or q.shape != k.shape:
        raise ValueError(f"q and k must have one shape [..., Y, X, d_k]; got q {q.shape} and k {k.shape}")
    grid = q.shape[:-1]
    if v.shape[:-1] != grid:
        raise ValueError(f"v must be [..., Y, X, d_v] on q's grid {grid}; got v {v.shape}")
    if direct.shape != grid:
        raise ValueError(f"direct must be [..., Y, X] = {grid}; got {direct.shape}")
    expected = (*grid[:-2], 4, *grid[-2:])
    if gates.s_r.shape != expected:
        raise ValueError(f"gates must be [..., 4, Y, X] = {expected} to go with q {q.shape}; got {gates.s_r.shape}")
