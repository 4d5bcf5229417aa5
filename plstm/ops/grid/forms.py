"""How the gating matrix is made. All forms take gates [B, 4, Y, X] in image coordinates and the weights of nodes on
themselves [B, Y, X], and return [B, N, N]: target rows, source columns, directions summed.

A row of the grid is a 1-D pLSTM, so the grid is a sequence of rows whose state is the row's X lower edges. So
`row_transfer` and `single_path` need few and large products, as accelerators want them (Appendix D.3 by rows).

The batch-minor forms, for CPUs, have batch x heads along the fastest axis of memory, and reverse-mode derivatives only.
XLA's CPU backend vectorises along that axis, sums slices of it fast and anything else slowly, and chooses the layout of
a loop's state by its last reader. So every operation is elementwise over [..., B] with a fixed layout, sums are written
out slice by slice, and gradients by hand.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from plstm.ops.common import in_place, product
from plstm.ops.grid.oracle import GridGates, mirror, mirror_gates, scan_sources
from plstm.ops.sequence import segment_products


def row_transfer(gates: GridGates, direct: Array) -> Array:
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
    return _add_direct(matrix.reshape(batch, height * width, height * width).swapaxes(1, 2), direct)


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
    within_row = sum(mirror(within_row, rows=(1,), columns=(2, 3)))
    same_row = jnp.eye(height, dtype=along.dtype)[:, None, :, None]
    matrix = product("byacn,byznc->byazc", turned, down) + same_row * within_row[..., None, :]
    return _add_direct(matrix.reshape(batch, height * width, height * width).swapaxes(1, 2), direct)


def source_scan(gates: GridGates, direct: Array) -> Array:
    """Any 2x2 transition: node by node."""
    return _add_direct(scan_sources(gates), direct)


def _add_direct(matrix: Array, direct: Array) -> Array:
    return matrix + direct.reshape(*matrix.shape[:-1], 1) * jnp.eye(matrix.shape[-1], dtype=direct.dtype)


def rank_one_batch_minor(gates: GridGates, direct: Array) -> Array:
    """P-mode; t_ru, t_du and m_u are not read."""
    (height, width), g = gates.s_r.shape[-2:], _batch_minor(gates)
    leads_out = (jnp.arange(width) == width - 1)[:, None]  # of the grid: a row's last right edge
    s_r, t_r = (jnp.where(leads_out, 0, gate) for gate in (g.s_r, g.t_rl))
    used = (gate.reshape(4, height * width, -1) for gate in (s_r, g.s_d, t_r, g.t_dl, g.m_l))
    return _batch_first(_rank_one((height, width), *used), direct)


def single_path_batch_minor(gates: GridGates, direct: Array) -> Array:
    """D-mode (t_ru = 0, not read): a path runs along its row, turns once, and runs down its column."""
    (height, width), g = gates.s_r.shape[-2:], _batch_minor(gates)
    along = g.s_r[:, :, :, None] * _segment_products(g.t_rl)  # [4, y, x, x', B]
    turned = jnp.eye(width, dtype=along.dtype)[..., None] * g.s_d[:, :, :, None] + along * g.t_dl[:, :, None]
    within_row = along * g.m_l[:, :, None]
    down = _segment_products(g.t_du.swapaxes(1, 2)) * g.m_u.swapaxes(1, 2)[:, :, None]  # [4, x', y, y', B]
    turned = jnp.stack(mirror(turned, rows=(0,), columns=(1, 2))).transpose(0, 3, 1, 2, 4)  # [4, x', y, x, B]
    within_row = sum(mirror(within_row, rows=(0,), columns=(1, 2))).transpose(2, 0, 1, 3)  # [x', y, x, B]
    down = jnp.stack(mirror(down, rows=(1, 2), columns=(0,))).transpose(0, 3, 1, 2, 4)  # [4, y', x', y, B]
    matrix = in_place(_turn_once(in_place(down), in_place(turned), in_place(within_row)))
    return _batch_first(matrix.reshape(height * width, height * width, -1), direct)


def _segment_products(transition: Array) -> Array:
    """`plstm.ops.sequence.segment_products` along axis -2: [..., T, B] -> [..., T, T, B]."""
    start = jnp.arange(transition.shape[-2])[:, None]
    passed = jnp.moveaxis(transition, -2, 0)[:-1, ..., None, :]

    def extend(column, node):
        n, passed = node
        column = jnp.where(start == n, 1, column * passed)
        return column, column

    first = jnp.zeros_like(transition)
    _, columns = lax.scan(extend, first, (jnp.arange(len(passed)), passed))
    return jnp.moveaxis(jnp.concatenate([first[None], columns]), 0, -2)


@jax.custom_vjp
def _turn_once(down: Array, turned: Array, within_row: Array) -> Array:
    """Sums down [4, y', x', y, B] * turned [4, x', y, x, B] over directions and adds within_row [x', y, x, B] where
    y' = y: [y', x', y, x, B]."""
    same_row = jnp.eye(down.shape[1], dtype=down.dtype)[:, None, :, None, None]
    return sum(down[n, :, :, :, None] * turned[n] for n in range(4)) + same_row * within_row


def _turn_once_backward(saved, cotangent):
    down, turned = saved
    cotangent = in_place(cotangent)
    rows, columns = range(cotangent.shape[0]), range(cotangent.shape[3])
    d_down = [sum(cotangent[..., x, :] * turned[n, ..., x, :] for x in columns) for n in range(4)]
    d_turned = [sum(cotangent[y] * down[n, y, :, :, None] for y in rows) for n in range(4)]
    d_within_row = [cotangent[y, :, y] for y in rows]
    return jnp.stack(d_down), jnp.stack(d_turned), jnp.stack(d_within_row, axis=1)


_turn_once.defvjp(lambda *factors: (_turn_once(*factors), factors[:2]), _turn_once_backward)


def _rank_one_forward(grid: tuple[int, int], s_r, s_d, t_r, t_d, m):
    """G [N target, N source, B] of mirrored gates [4, N, B]; s_r and t_r are zero where the right edge leads out.
    With h = left + up, each source's weight on what reaches a node, a direction is one linear recurrence:
    h[y, x] = t_r[y, x-1] h[y, x-1] + t_d[y-1, x] h[y-1, x], plus what the source itself emits; then G = m h."""
    nodes, width = grid[0] * grid[1], grid[1]
    sources, every = _image_numbers(grid), jnp.arange(nodes)

    def emitted(n, gate):  # by the node, which is its own source: [4, source, B]
        return jnp.where((sources[:, n, None] == every)[..., None], gate[:, n, None], 0)

    def visit(n, h):  # h[n + width] is node n; the first `width` rows stay zero, as the edges into the grid
        before, above = jnp.maximum(n - 1, 0), jnp.maximum(n - width, 0)
        left = t_r[:, before, None] * _node(h, n + width - 1) + jnp.where(n > 0, emitted(before, s_r), 0)
        up = t_d[:, above, None] * _node(h, n) + jnp.where(n >= width, emitted(above, s_d), 0)
        return lax.dynamic_update_index_in_dim(h, left + up, n + width, 0)

    empty = jnp.zeros((nodes + width, 4, nodes, m.shape[-1]), m.dtype)
    h = lax.fori_loop(0, nodes, visit, empty)[width:]
    marked = _mirror_nodes([m[n][:, None] * h[:, n] for n in range(4)], grid)
    return in_place(sum(marked)), (h, t_r, t_d, m)


def _rank_one_backward(grid, saved, cotangent):
    h, t_r, t_d, m = saved
    cotangent = in_place(cotangent)
    nodes, width = grid[0] * grid[1], grid[1]
    targets = _image_numbers(grid)

    def visit(step, d_h):
        n = nodes - 1 - step
        d_marked = jnp.stack([_node(cotangent, targets[direction, n]) for direction in range(4)])
        passed_on = t_r[:, n, None] * _node(d_h, n + 1) + t_d[:, n, None] * _node(d_h, n + width)
        return lax.dynamic_update_index_in_dim(d_h, m[:, n, None] * d_marked + passed_on, n, 0)

    def sum_sources(tensor):  # [..., N source, B] -> [..., B], slice by slice
        tensor = tensor.reshape(*tensor.shape[:-2], *grid, tensor.shape[-1])
        rows = sum(tensor[..., y, :, :] for y in range(grid[0]))
        return sum(rows[..., x, :] for x in range(width))

    d_h = lax.fori_loop(0, nodes, visit, jnp.zeros((nodes + width, *h.shape[1:]), h.dtype))
    right, down = d_h[1 : nodes + 1], d_h[width:]  # what leaves a node by its right and its lower edge
    d_m = [sum_sources(h[:, n] * mirrored) for n, mirrored in enumerate(_mirror_nodes([cotangent] * 4, grid))]
    d_t_r, d_t_d = (sum_sources(h * edge).swapaxes(0, 1) for edge in (right, down))
    direction, node = jnp.arange(4)[:, None], jnp.arange(nodes)
    d_s_r, d_s_d = d_h[node + 1, direction, targets], d_h[node + width, direction, targets]
    return d_s_r, d_s_d, d_t_r, d_t_d, jnp.stack(d_m)


_rank_one = jax.custom_vjp(lambda *arguments: _rank_one_forward(*arguments)[0], nondiff_argnums=(0,))
_rank_one.defvjp(_rank_one_forward, _rank_one_backward)
_node = partial(lax.dynamic_index_in_dim, axis=0, keepdims=False)


def _image_numbers(grid: tuple[int, int]) -> Array:
    """The number in image coordinates of every mirrored node: [4, N]."""
    with jax.ensure_compile_time_eval():
        return jnp.stack(_mirror_nodes([jnp.arange(grid[0] * grid[1])] * 4, grid))


def _mirror_nodes(parts: list[Array], grid: tuple[int, int]) -> list[Array]:
    """[N, ...], the nodes of each direction, mirrored, or back."""
    on_grid = mirror((part.reshape(*grid, *part.shape[1:]) for part in parts), rows=(0,), columns=(1,))
    return [part.reshape(parts[0].shape) for part in on_grid]


def _batch_minor(gates: GridGates) -> GridGates:
    """[B, 4, Y, X] -> [4, Y, X, B], mirrored."""
    return GridGates(*(in_place(jnp.moveaxis(gate, 0, -1)) for gate in mirror_gates(gates)))


@jax.custom_vjp
def _batch_first(matrix: Array, direct: Array) -> Array:
    """[N, N, B] -> [B, N, N], with `direct` [B, Y, X] added to the diagonal. The barriers keep XLA from fusing the slow
    walk across the batch with other work."""
    own = direct.reshape(-1, len(matrix)).T
    matrix = in_place(matrix + jnp.eye(len(matrix), dtype=own.dtype)[..., None] * own)
    return lax.optimization_barrier(jnp.moveaxis(matrix, -1, 0))


def _batch_first_backward(grid, cotangent):
    cotangent = in_place(lax.optimization_barrier(jnp.moveaxis(cotangent, 0, -1)))
    own = cotangent.reshape(-1, cotangent.shape[-1])[:: len(cotangent) + 1]  # the diagonal
    return cotangent, own.T.reshape(-1, *grid)


_batch_first.defvjp(lambda matrix, direct: (_batch_first(matrix, direct), direct.shape[1:]), _batch_first_backward)
