"""What only CPUs need: the gating matrix with the batch along the fastest axis of memory, and sizes of chunks.

XLA's CPU backend vectorises along the fastest axis, sums slices of it fast and anything else slowly, and chooses the
layout of a loop's state by its last reader. So in these forms batch x heads come last, every operation is elementwise
over [..., B] with a fixed layout, sums are written out slice by slice, and gradients by hand: reverse-mode only.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint

from plstm.files import core_count
from plstm.ops.common import add_up
from plstm.ops.grid.gates import GridGates, mirror, mirror_gates

# From results/benchmarks/tune-cpu.json: the fastest form of each structure, and the number of nodes from which
# chunkwise is faster. With heads of 64 it was slower at 1,024 nodes and faster at 2,304; 1,882 is between.
FASTEST_FORM = {"general": "source_scan", "d_mode": "cpu", "shared_incoming": "cpu"}
CHUNKWISE_FROM = {"general": 1882}
# Max bytes of gating matrices at once under method="auto", a core, of which at least FEWEST_CORES and at most
# MOST_CORES count; the two passes take some 20 times as much.
MAX_MATRIX_BYTES_PER_CORE = 2**25
FEWEST_CORES = 2
MOST_CORES = 16
# Chunks so small that their tensors stay in the cache (`scripts/benchmark.py operator` measures it): from two cores, on
# grids of 6 x 6 to 48 x 48.
BYTES_PER_CORE = 2**19  # of a chunk's gating matrices: a quarter of a usual second-level cache holds a few such tensors
MIN_CHUNKS = 7  # with fewer, computing again costs more than the cache saves
MIN_ENTRIES = 2  # in a chunk; a single one is slower
# But in P-mode a single one is fastest from this many nodes on: without a batch the sources are the fastest axis.
ALONE_FROM = 128


def max_matrix_bytes() -> int:
    """Max bytes of gating matrices at once on this machine."""
    return MAX_MATRIX_BYTES_PER_CORE * min(max(core_count(), FEWEST_CORES), MOST_CORES)


def num_chunks(batch_heads: int, nodes: int, itemsize: int, structure: str) -> int:
    """Number of chunks for the gating matrices of `batch_heads` grids of `nodes`; 1 except on CPUs."""
    if jax.default_backend() != "cpu":
        return 1
    if structure == "shared_incoming" and nodes >= ALONE_FROM:
        chunks = most = batch_heads
    else:
        chunks = batch_heads * nodes**2 * itemsize // (BYTES_PER_CORE * core_count())
        most = max(batch_heads // MIN_ENTRIES, 1)
    return min(chunks, most) if chunks >= MIN_CHUNKS else 1


def num_state_chunks(batch_heads: int) -> int:
    """Number of chunks of the chunkwise form: one entry each on CPUs, whose caches hold the states of few; else 1."""
    return max(batch_heads, 1) if jax.default_backend() == "cpu" else 1


def keeps_batch_last() -> bool:
    """Whether layers keep the batch along the fastest axis of memory between their gates and the operator."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def fix_layout(tensor: Array) -> Array:
    """Keeps the array in memory in the order of its axes. Otherwise XLA would turn a transposition beside a loop or a
    product into another layout of what these read or write."""
    return with_layout_constraint(tensor, Layout(major_to_minor=tuple(range(tensor.ndim))))


def shared_incoming(gates: GridGates, direct: Array) -> Array:
    """P-mode; t_ru, t_du and m_u are not read."""
    height, width = gates.s_r.shape[-2:]
    g = _batch_last(gates)
    leads_out = (jnp.arange(width) == width - 1)[:, None]  # of the grid: a row's last right edge
    s_r, t_r = (jnp.where(leads_out, 0, gate) for gate in (g.s_r, g.t_rl))
    used = (lax.collapse(gate, 1, 3) for gate in (s_r, g.s_d, t_r, g.t_dl, g.m_l))
    return _batch_first(_shared_incoming((height, width), *used), direct)


def d_mode(gates: GridGates, direct: Array) -> Array:
    """D-mode (t_ru = 0, not read): a path runs along its row, turns once, and runs down its column."""
    height, width = gates.s_r.shape[-2:]
    g = _batch_last(gates)
    along = g.s_r[:, :, :, None] * _segment_products(g.t_rl)  # [4, y, x, x', B]
    turned = jnp.eye(width, dtype=along.dtype)[..., None] * g.s_d[:, :, :, None] + along * g.t_dl[:, :, None]
    within_row = along * g.m_l[:, :, None]
    down = _segment_products(g.t_du.swapaxes(1, 2)) * g.m_u.swapaxes(1, 2)[:, :, None]  # [4, x', y, y', B]
    turned = jnp.stack(mirror(turned, rows=(0,), columns=(1, 2))).transpose(0, 3, 1, 2, 4)  # [4, x', y, x, B]
    within_row = add_up(mirror(within_row, rows=(0,), columns=(1, 2))).transpose(2, 0, 1, 3)  # [x', y, x, B]
    down = jnp.stack(mirror(down, rows=(1, 2), columns=(0,))).transpose(0, 3, 1, 2, 4)  # [4, y', x', y, B]
    matrix = fix_layout(_turn_once(fix_layout(down), fix_layout(turned), fix_layout(within_row)))
    return _batch_first(matrix.reshape(height * width, height * width, matrix.shape[-1]), direct)


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
    return add_up(down[n, :, :, :, None] * turned[n] for n in range(4)) + same_row * within_row


def _turn_once_backward(saved, cotangent):
    down, turned = saved
    cotangent = fix_layout(cotangent)
    rows = range(cotangent.shape[0])
    columns = range(cotangent.shape[3])
    d_down = [add_up(cotangent[..., x, :] * turned[n, ..., x, :] for x in columns) for n in range(4)]
    d_turned = [add_up(cotangent[y] * down[n, y, :, :, None] for y in rows) for n in range(4)]
    d_within_row = [cotangent[y, :, y] for y in rows]
    return jnp.stack(d_down), jnp.stack(d_turned), jnp.stack(d_within_row, axis=1)


_turn_once.defvjp(lambda *factors: (_turn_once(*factors), factors[:2]), _turn_once_backward)


def _shared_incoming_forward(grid: tuple[int, int], s_r, s_d, t_r, t_d, m):
    """G [N target, N source, B] of mirrored gates [4, N, B]; s_r and t_r are zero where the right edge leads out.
    With h = left + up, each source's weight on what reaches a node, a direction is one linear recurrence:
    h[y, x] = t_r[y, x-1] h[y, x-1] + t_d[y-1, x] h[y-1, x], plus what the source itself emits; then G = m h."""
    height, width = grid
    nodes = height * width
    sources = _image_numbers(grid)
    every = jnp.arange(nodes)

    def emitted(n, gate):  # by the node, which is its own source: [4, source, B]
        return jnp.where((sources[:, n, None] == every)[..., None], gate[:, n, None], 0)

    def visit(n, h):  # h[n + width] is node n; the first `width` rows stay zero, as the edges into the grid
        before = jnp.maximum(n - 1, 0)
        above = jnp.maximum(n - width, 0)
        left = t_r[:, before, None] * _node(h, n + width - 1) + jnp.where(n > 0, emitted(before, s_r), 0)
        up = t_d[:, above, None] * _node(h, n) + jnp.where(n >= width, emitted(above, s_d), 0)
        return lax.dynamic_update_index_in_dim(h, left + up, n + width, 0)

    empty = jnp.zeros_like(m, shape=(nodes + width, 4, nodes, m.shape[-1]))
    h = lax.fori_loop(0, nodes, visit, empty)[width:]
    marked = _mirror_nodes([m[n][:, None] * h[:, n] for n in range(4)], grid)
    return fix_layout(add_up(marked)), (h, t_r, t_d, m)


def _shared_incoming_backward(grid, saved, cotangent):
    h, t_r, t_d, m = saved
    cotangent = fix_layout(cotangent)
    height, width = grid
    nodes = height * width
    targets = _image_numbers(grid)

    def visit(step, d_h):
        n = nodes - 1 - step
        d_marked = jnp.stack([_node(cotangent, targets[direction, n]) for direction in range(4)])
        passed_on = t_r[:, n, None] * _node(d_h, n + 1) + t_d[:, n, None] * _node(d_h, n + width)
        return lax.dynamic_update_index_in_dim(d_h, m[:, n, None] * d_marked + passed_on, n, 0)

    def sum_sources(tensor):  # [..., N source, B] -> [..., B], slice by slice
        tensor = tensor.reshape(*tensor.shape[:-2], *grid, tensor.shape[-1])
        rows = add_up(tensor[..., y, :, :] for y in range(height))
        return add_up(rows[..., x, :] for x in range(width))

    d_h = lax.fori_loop(0, nodes, visit, jnp.zeros_like(h, shape=(nodes + width, *h.shape[1:])))
    right = d_h[1 : nodes + 1]  # what leaves a node by its right edge
    down = d_h[width:]  # ... by its lower edge
    d_m = [sum_sources(h[:, n] * mirrored) for n, mirrored in enumerate(_mirror_nodes([cotangent] * 4, grid))]
    d_t_r, d_t_d = (sum_sources(h * edge).swapaxes(0, 1) for edge in (right, down))
    direction = jnp.arange(4)[:, None]
    node = jnp.arange(nodes)
    d_s_r = d_h[node + 1, direction, targets]
    d_s_d = d_h[node + width, direction, targets]
    return d_s_r, d_s_d, d_t_r, d_t_d, jnp.stack(d_m)


_shared_incoming = jax.custom_vjp(lambda *arguments: _shared_incoming_forward(*arguments)[0], nondiff_argnums=(0,))
_shared_incoming.defvjp(_shared_incoming_forward, _shared_incoming_backward)
_node = partial(lax.dynamic_index_in_dim, axis=0, keepdims=False)


def _image_numbers(grid: tuple[int, int]) -> Array:
    """The number in image coordinates of every mirrored node: [4, N]."""
    numbers = np.arange(grid[0] * grid[1]).reshape(grid)
    return jnp.asarray([numbers, numbers[:, ::-1], numbers[::-1], numbers[::-1, ::-1]]).reshape(4, numbers.size)


def _mirror_nodes(directions: list[Array], grid: tuple[int, int]) -> list[Array]:
    """[N, ...], the nodes of each direction, mirrored, or back."""
    on_grid = mirror((array.reshape(*grid, *array.shape[1:]) for array in directions), rows=(0,), columns=(1,))
    return [array.reshape(directions[0].shape) for array in on_grid]


def _batch_last(gates: GridGates) -> GridGates:
    """[B, 4, Y, X] -> [4, Y, X, B], mirrored."""
    return GridGates(*(fix_layout(jnp.moveaxis(gate, 0, -1)) for gate in mirror_gates(gates)))


@jax.custom_vjp
def _batch_first(matrix: Array, direct: Array) -> Array:
    """[N, N, B] -> [B, N, N], with `direct` [B, Y, X] added to the diagonal. The barriers keep XLA from fusing the slow
    walk across the batch with other work."""
    diagonal = lax.collapse(direct, 1).T
    matrix = fix_layout(matrix + jnp.eye(len(matrix), dtype=diagonal.dtype)[..., None] * diagonal)
    return lax.optimization_barrier(jnp.moveaxis(matrix, -1, 0))


def _batch_first_backward(grid, cotangent):
    cotangent = fix_layout(lax.optimization_barrier(jnp.moveaxis(cotangent, 0, -1)))
    diagonal = lax.collapse(cotangent, 0, 2)[:: len(cotangent) + 1]
    return cotangent, diagonal.T.reshape(cotangent.shape[-1], *grid)


_batch_first.defvjp(lambda matrix, direct: (_batch_first(matrix, direct), direct.shape[1:]), _batch_first_backward)
