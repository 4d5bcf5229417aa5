"""pLSTM on grids by the gating matrix, and how that is made.

All forms take gates [B, 4, Y, X] in image coordinates and the weights of nodes on themselves [B, Y, X], and return
[B, N, N]: target rows, source columns, directions summed. A row of the grid is a 1-D pLSTM, so the grid is a sequence
of rows whose state is the row's X lower edges. So `row_transfer` and `single_path` need few and large products, as
accelerators want them (Appendix D.3 by rows). Forms for CPUs are in `plstm.ops.grid.cpu`.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import (
    accumulation_dtype,
    add_up,
    attend,
    check_axes,
    check_choice,
    chunked_map,
    product,
    public_operator,
)
from plstm.ops.grid.cpu import FASTEST_FORM, d_mode, num_chunks, shared_incoming
from plstm.ops.grid.gates import GATE_AXES, STRUCTURES, GridGates, fill_unread, mirror, mirror_gates
from plstm.ops.grid.hierarchical import merge_blocks
from plstm.ops.grid.recurrence import scan_sources
from plstm.ops.sequence import segment_products


@public_operator
def gating_matrix(gates: GridGates, *, structure: str = "general", form: str = "auto") -> Array:
    """The gating matrix G of Equation 3: for each pair of nodes the sum over all paths of source, transitions and mark.

    structure: see `plstm.ops.grid.gates`. form: one of FORMS[structure], or "auto": the fastest on this backend. "cpu"
    has reverse-mode derivatives only.

    Gates [..., 4, Y, X] give G [..., Y, X, Y, X] in their dtype, at least float32: source node, then target; directions
    summed; zero from a node to itself. Raises ValueError where shapes disagree, Y or X is 0, or a structure or form is
    unknown.
    """
    check_choice("structure", structure, STRUCTURES)
    check_axes(GATE_AXES, *gates)
    *lead, _, height, width = gates.s_r.shape
    dtype = accumulation_dtype(*gates)
    gates = jax.tree.map(lambda gate: lax.collapse(gate, 0, -3).astype(dtype), gates)
    no_direct = jnp.zeros_like(gates.s_r[:, 0])
    gating = _gating_by_target(gates, no_direct, structure, form).swapaxes(1, 2)
    return gating.reshape(*lead, height, width, height, width)


def by_matrix(
    q: Array, k: Array, v: Array, gates: GridGates, direct: Array, structure: str, form: str, chunks: int | None = None
) -> Array:
    """`plstm2d` by the gating matrix in one form; chunks of batch x heads: None: by the size of the matrices."""
    *lead, height, width, key_size = q.shape
    nodes = height * width
    reversed_lead = tuple(reversed(range(len(lead))))

    def one_chunk(q, k, v, gates, direct):
        gating = _gating_by_target(gates, direct, structure, form)
        q, k, flat_v = (lax.collapse(x, 1, 3) for x in (q, k, v))
        return attend(q, k, flat_v, gating, key_size**-0.5).astype(v.dtype).reshape(v.shape)

    def turn(tensor):  # the batch moves fastest, as in `plstm.nn.gates`
        return tensor.transpose(*reversed_lead, *range(len(lead), tensor.ndim))

    chunks = chunks or num_chunks(math.prod(lead), nodes, direct.dtype.itemsize, structure)
    return turn(chunked_map(one_chunk, jax.tree.map(turn, (q, k, v, gates, direct)), chunks, len(lead)))


def _gating_by_target(gates: GridGates, direct: Array, structure: str, form: str) -> Array:
    """G [B, N, N] with target rows and source columns: the layout in which it is made, and that attention reads.
    direct [B, Y, X]: its diagonal."""
    forms = FORMS[structure]
    if form == "auto":
        form = FASTEST_FORM[structure] if jax.default_backend() == "cpu" else next(iter(forms))
    if form not in forms:
        raise ValueError(f'form={form!r} with structure="{structure}": must be one of auto, {", ".join(forms)}')
    return forms[form](fill_unread(gates, structure), direct)


def row_transfer(gates: GridGates, direct: Array) -> Array:
    """Any 2x2 transition: carries the weight of every source node of the rows above on the current row's upper edges,
    by one product with an X x 2X matrix a row."""
    gates = mirror_gates(gates)
    *_, height, width = gates.s_r.shape
    along = segment_products(gates.t_rl)  # L[..., a, b], strictly upper triangular
    leave = GridGates(*(g[..., :, None] for g in gates))
    enter = GridGates(*(g[..., None, :] for g in gates))
    eye = jnp.eye(width, dtype=along.dtype)
    upper_to_lower = leave.t_du * eye + leave.t_ru * along * enter.t_dl
    node_to_lower = leave.s_d * eye + leave.s_r * along * enter.t_dl
    upper_to_node = leave.m_u * eye + leave.t_ru * along * enter.m_l
    within_row = leave.s_r * along * enter.m_l
    # Below the diagonal these are zero already. Mask them anyway: their gradients could overflow, and inf * 0 is NaN.
    transfer = jnp.concatenate([jnp.triu(upper_to_node), jnp.triu(upper_to_lower)], axis=-1)
    zeros = jnp.zeros_like(along)
    targets = []
    edges = zeros[:, :, :0]  # [B, 4, source row so far, x, upper edge]
    for y in range(height):
        marked, lower = jnp.split(product("bnyac,bncd->bnyad", edges, transfer[:, :, y]), 2, axis=-1)
        targets.append(jnp.concatenate([marked, within_row[:, :, y, None], zeros[:, :, y + 1 :]], axis=2))
        edges = jnp.concatenate([lower, node_to_lower[:, :, y, None]], axis=2)
    return _sum_directions(jnp.stack(targets, axis=-2), direct)


def single_path(gates: GridGates, direct: Array) -> Array:
    """D-mode (t_ru = 0, not read): a path runs along its row, turns once, and runs down its column, so that
    G[y, x, y', x'] = A[y, x, x'] B[y, y', x'] for y' > y."""
    batch, _, height, width = gates.s_r.shape
    g = GridGates(*(gate.swapaxes(0, 1) for gate in mirror_gates(gates)))  # [4, B, Y, X]
    along = g.s_r[..., None] * segment_products(g.t_rl)  # [4, B, y, x, x']
    turned = g.s_d[..., None] * jnp.eye(width, dtype=along.dtype) + along * g.t_dl[..., None, :]
    within_row = along * g.m_l[..., None, :]
    down = segment_products(g.t_du.swapaxes(2, 3)) * g.m_u.swapaxes(2, 3)[..., None, :]  # [4, B, x', y, y']
    down = jnp.moveaxis(down, 2, -1)  # [4, B, y, y', x']

    turned = jnp.stack(mirror(turned, rows=(1,), columns=(2, 3)), axis=-1)
    down = jnp.stack(mirror(down, rows=(1, 2), columns=(3,)), axis=-2)
    within_row = add_up(mirror(within_row, rows=(1,), columns=(2, 3)))
    same_row = jnp.eye(height, dtype=along.dtype)[:, None, :, None]
    matrix = product("byacn,byznc->byazc", turned, down) + same_row * within_row[..., None, :]
    return _add_direct(matrix.reshape(batch, height * width, height * width).swapaxes(1, 2), direct)


def source_scan(gates: GridGates, direct: Array) -> Array:
    """Any 2x2 transition: node by node."""
    return _add_direct(scan_sources(gates), direct)


def hierarchical(gates: GridGates, direct: Array) -> Array:
    """Any 2x2 transition: blocks of nodes, merged in pairs."""
    batch, directions, height, width = gates.s_r.shape
    matrix = merge_blocks(mirror_gates(gates))
    return _sum_directions(matrix.reshape(batch, directions, height, width, height, width), direct)


def _sum_directions(matrix: Array, direct: Array) -> Array:
    """[B, 4, Y, X, Y, X], source, then target, each direction in its own coordinates -> as a form returns it."""
    batch, _, height, width = matrix.shape[:4]
    summed = add_up(mirror(matrix.swapaxes(0, 1), rows=(1, 3), columns=(2, 4)))
    return _add_direct(summed.reshape(batch, height * width, height * width).swapaxes(1, 2), direct)


def _add_direct(matrix: Array, direct: Array) -> Array:
    return matrix + direct.reshape(*matrix.shape[:-1], 1) * jnp.eye(matrix.shape[-1], dtype=direct.dtype)


# By structure. The first needs no measurement: backends other than CPUs take it.
FORMS = {
    "general": {"row_transfer": row_transfer, "hierarchical": hierarchical, "source_scan": source_scan},
    "shared_incoming": {"row_transfer": row_transfer, "hierarchical": hierarchical, "cpu": shared_incoming},
    "d_mode": {"single_path": single_path, "hierarchical": hierarchical, "cpu": d_mode},
}
