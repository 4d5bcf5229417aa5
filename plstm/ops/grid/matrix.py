"""The gating matrix in few and large products, as accelerators want them (Appendix D.3 by rows, not by a quad-tree).

A row of the grid is a 1-D pLSTM, so the grid is a sequence of rows whose state is the row's X lower edges. Both forms
take gates [B, 4, Y, X] in image coordinates and return [B, N, N]: target rows, source columns, directions summed.
"""

import jax.numpy as jnp
from jax import Array

from plstm.ops.common import product
from plstm.ops.grid.gates import GridGates, mirror, mirror_gates
from plstm.ops.sequence import segment_products


def row_transfer(gates: GridGates) -> Array:
    """Any 2x2 transition: carries the weight of every source node of the rows above on the current row's upper edges,
    by one product with an X x 2X matrix a row."""
    gates = mirror_gates(gates)
    batch, _, height, width = gates.s_r.shape
    along = segment_products(gates.t_rl)  # L[..., a, b], strictly upper triangular
    leave, enter = GridGates(*(g[..., :, None] for g in gates)), GridGates(*(g[..., None, :] for g in gates))
    eye = jnp.eye(width, dtype=along.dtype)
    upper_to_lower = leave.t_du * eye + leave.t_ru * along * enter.t_dl
    node_to_lower = leave.s_d * eye + leave.s_r * along * enter.t_dl
    upper_to_node = leave.m_u * eye + leave.t_ru * along * enter.m_l
    within_row = leave.s_r * along * enter.m_l
    # What is below the diagonal is zero already; masking it keeps the backward pass from forming its gradients, which
    # can overflow, and NaN is what an infinity times that zero would be.
    transfer = jnp.concatenate([jnp.triu(upper_to_node), jnp.triu(upper_to_lower)], axis=-1)
    zeros = jnp.zeros_like(along)
    targets, edges = [], zeros[:, :, :0]  # edges: [B, 4, source row so far, x, upper edge]
    for y in range(height):
        marked, lower = jnp.split(product("bnyac,bncd->bnyad", edges, transfer[:, :, y]), 2, axis=-1)
        targets.append(jnp.concatenate([marked, within_row[:, :, y, None], zeros[:, :, y + 1 :]], axis=2))
        edges = jnp.concatenate([lower, node_to_lower[:, :, y, None]], axis=2)
    matrix = jnp.stack(targets, axis=-2)  # [B, 4, Y, X, Y, X]: source, then target
    matrix = sum(mirror(matrix.swapaxes(0, 1), rows=(1, 3), columns=(2, 4)))
    return matrix.reshape(batch, height * width, height * width).swapaxes(1, 2)


def single_path(gates: GridGates) -> Array:
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
    within_row = sum(mirror(within_row, rows=(1,), columns=(2, 3)))
    same_row = jnp.eye(height, dtype=along.dtype)[:, None, :, None]
    matrix = product("byacn,byznc->byazc", turned, down) + same_row * within_row[..., None, :]
    return matrix.reshape(batch, height * width, height * width).swapaxes(1, 2)
