"""The 2-D operator in GPU kernels that never store the gating matrix: `plstm2d(..., method="fused")`.

A program computes the hidden states of a block of target nodes. It visits the grid's rows as sources, outward from the
block: upwards for the two directions that lead down, then downwards for the others. For each direction it carries each
target's weight on the lower edges of the next row (tensors [target, node]; own: 1 where the node is the target itself;
L: the products of t_rl between two nodes of a row):

    left  = lower t_dl + own m_l         weight on the left edges of the row's nodes
    right = left L^T                     ... on their right edges; in D-mode, with one left edge a target, a scaling
    G     = right s_r + lower s_d        ... on their sources: the gating matrix of the block and this row
    lower = right t_ru + lower t_du + own m_u

Then hidden += (G * q k^T) v. Backwards, dq = (G * dh v^T) k, dv = (G * q k^T)^T dh and dk = (G * dh v^T)^T q are such
sums themselves: G^T is the gating matrix of the transposed gates (opposite directions, sources for marks, t_ru for
t_dl). For the gates' gradients dq's kernel keeps `lower`, and a second kernel runs the four equations backwards.

No GPU has run this so far; docs/speed.md counts what it should gain. JAX 0.11 deprecates Pallas on Triton.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from plstm.ops.common import accumulation_dtype
from plstm.ops.grid.gates import GridGates, fill_unread
from plstm.ops.sequence import segment_products

try:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton
except ImportError:  # not in every build of JAX; only this method needs them
    pl = triton = None  # type: ignore[assignment]

SMALLEST = 16  # side of a product, for Triton
LARGEST_TILE = 2048  # targets by columns, so that the carried state fits the registers
BLOCK, HEAD, SIDE = range(3)  # axes of the programs; a side is the two directions that lead down, or up
# Positions of the gates of G^T among those of G: s_r is m_l, s_d is m_u, t_ru is t_dl, and the reverse.
TRANSPOSED = [GridGates._fields.index(name) for name in ("m_l", "m_u", "t_rl", "t_dl", "t_ru", "t_du", "s_r", "s_d")]


class Plan(NamedTuple):
    """Sizes and options that the kernels are compiled for."""

    height: int
    width: int
    nodes: int
    columns: int  # the width, padded
    scale: float
    single_path: bool  # D-mode
    block: int  # targets of a program
    interpret: bool

    def row_of(self, node):
        return lax.div(node, np.int32(self.width))  # // would add code for negative numbers

    def rows(self, block):
        """The first and the last row with targets of a block."""
        first = block * self.block
        end = (block + 1) * self.block
        return self.row_of(first), jnp.minimum(self.row_of(end - 1), self.height - 1)


def fused(
    q, k, v, gates: GridGates, direct, *, structure: str, block: int | None = None, interpret: bool = False
) -> Array:
    """Equations 1 and 2 on a grid; arguments and result as for `plstm.ops.grid.plstm2d`. Reverse-mode derivatives only.

    Products of queries, keys and values have JAX's default precision, those of gates the highest.

    block: targets of a program, a power of two from 16, by default up to 64.
    interpret: run the kernels as plain JAX on any backend: slow, for tests.
    """
    *_, height, width, key_size = q.shape
    nodes = height * width
    columns = _padded(width)
    dtype = accumulation_dtype(*gates)
    stacked = lax.collapse(jnp.stack(fill_unread(gates, structure), axis=-4).astype(dtype), 0, -4)
    block = min(block or min(64, max(SMALLEST, LARGEST_TILE // columns)), _padded(nodes))
    plan = Plan(height, width, nodes, columns, key_size**-0.5, structure == "d_mode", block, interpret)
    q, k = (x.astype(jnp.promote_types(q.dtype, k.dtype)) for x in (q, k))
    by_head = (x.reshape(len(stacked), nodes, x.shape[-1]) for x in (q, k, v))
    heads = (_pad(x, _padded(x.shape[-1])) for x in by_head)
    hidden = _operator(plan, *heads, stacked, direct.astype(dtype).reshape(len(stacked), nodes))
    return hidden[..., : v.shape[-1]].reshape(v.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _operator(plan: Plan, q, k, v, gates, direct):
    """q, k, v [heads, N, d], gates [heads, 8, 4, Y, X], direct [heads, N]; d powers of two."""
    return _attend(plan, gates, direct, [(q, k, v)])[0]


def _operator_backward(plan, inputs, d_hidden):
    q, k, v, gates, direct = inputs
    d_q, kept = _attend(plan, gates, direct, [(d_hidden, v, k)], keep=True)
    transposed = jnp.flip(gates[:, jnp.array(TRANSPOSED)], axis=2)
    d_v, d_k = _attend(plan, transposed, direct, [(k, q, d_hidden), (v, d_hidden, q)])
    d_gates = _gate_gradients(plan, gates, kept, q, k, v, d_hidden)
    dot = functools.partial(jnp.einsum, "hnd,hnd->hn", preferred_element_type=direct.dtype)
    return d_q, d_k, d_v, d_gates, plan.scale * dot(q, k) * dot(d_hidden, v)


_operator.defvjp(lambda plan, *inputs: (_operator(plan, *inputs), inputs), _operator_backward)


def _attend(plan: Plan, gates, direct, triples, keep: bool = False) -> list[Array]:
    """(G * q k^T + diagonal) v for each (q, k, v) of the triples, and with `keep` what `_gate_gradients` needs. Gates
    as for `_operator`; outputs [heads, N, d] in v's dtype, kept [heads, blocks, visits, 2, block (, columns)]."""
    heads = gates.shape[0]
    blocks = pl.cdiv(plan.nodes, plan.block)
    dtype = gates.dtype
    gates, reach = _row_arrays(plan, gates)
    inputs = [(x, _tiles((None, *x.shape[1:]), {0: HEAD})) for x in (gates, reach)]
    inputs.append((direct, _tiles((None, plan.block), {0: HEAD, 1: BLOCK})))
    outputs = []
    for triple in triples:
        inputs += [_targets_of(plan, x) for x in triple] + [_rows_of(plan, x) for x in triple[1:]]
        outputs.append(_targets_of(plan, jax.ShapeDtypeStruct(triple[2].shape, triple[2].dtype)))
    if keep:
        visits = plan.height + min(plan.height, plan.block // plan.width + 2)  # at most: the block's own rows twice
        shape = (visits, 2, plan.block) + (() if plan.single_path else (plan.columns,))
        kept = jax.ShapeDtypeStruct((heads, blocks, *shape), dtype)
        outputs.append((kept, _tiles((None, None, *shape), {0: HEAD, 1: BLOCK})))
    kernel = functools.partial(_attend_kernel, plan=plan, count=len(triples), dtype=dtype)
    return _call(plan, "plstm2d_attend", kernel, (blocks, heads), inputs, outputs)


def _attend_kernel(gates, reach, direct, *refs, plan: Plan, count: int, dtype) -> None:
    triples = [refs[5 * n : 5 * n + 5] for n in range(count)]
    outputs = refs[5 * count :]
    own_column, own_in, present, first, last = _targets(plan, dtype)
    queries = []
    sums = []
    for q, k, v, _, _ in triples:
        q, k, v = (_load(x, present) for x in (q, k, v))
        similarity = (q.astype(dtype) * k.astype(dtype)).sum(1) * plan.scale
        queries.append(q)
        sums.append((_load(direct, present) * similarity)[:, None] * v.astype(dtype))

    def visit(step, carry):
        lower, sums = carry
        lead_up = step > last  # now the directions that lead up, from empty edges
        row = jnp.where(lead_up, first + step - last - 1, last - step)
        lower = [jnp.where(step == last + 1, 0, x) for x in lower]
        own = own_in(row)
        weights = 0
        passed = []
        for n in range(2):
            direction = jnp.where(lead_up, 2 + n, n)
            if len(outputs) > count:
                outputs[-1][step, n] = lower[n].sum(1) if plan.single_path else lower[n]
            g, _, right = _along_row(plan, gates, reach, direction, row, lower[n], own, own_column)
            weights += right * g.s_r + lower[n] * g.s_d
            passed.append(right * g.t_ru + lower[n] * g.t_du + own * g.m_u)
        added = []
        for total, query, (_, _, _, keys, values) in zip(sums, queries, triples, strict=True):
            scores = _scores(query, _load(keys.at[row], plan.width), dtype) * plan.scale
            values = _load(values.at[row], plan.width)
            added.append(total + jnp.dot((weights * scores).astype(values.dtype), values, preferred_element_type=dtype))
        return tuple(passed), tuple(added)

    start = (jnp.zeros((plan.block, plan.columns), dtype),) * 2
    _, sums = lax.fori_loop(0, last + 1 + plan.height - first, visit, (start, tuple(sums)))
    for output, total in zip(outputs, sums, strict=False):
        triton.store(output, total.astype(output.dtype), mask=_present(output, present))


def _gate_gradients(plan: Plan, gates, kept, q, k, v, d_hidden) -> Array:
    """The gates' gradients [heads, 8, 4, Y, X]; a program sums over the targets of its block, XLA over the blocks."""
    heads, blocks = kept.shape[:2]
    dtype = gates.dtype
    gates, reach = _row_arrays(plan, gates)
    rows = (plan.height, plan.columns)
    inputs = [
        (gates, _tiles((None, 8, 2, *rows), {0: HEAD, 2: SIDE})),
        (reach, _tiles((None, 2, *rows, plan.columns), {0: HEAD, 1: SIDE})),
        (kept, _tiles((None, None, *kept.shape[2:]), {0: HEAD, 1: BLOCK})),
        *(_targets_of(plan, x) for x in (q, d_hidden)),
        *(_rows_of(plan, x) for x in (k, v)),
    ]
    tiles = _tiles((None, None, 8, 2, *rows), {0: HEAD, 1: BLOCK, 3: SIDE})
    output = jax.ShapeDtypeStruct((heads, blocks, 8, 4, *rows), dtype), tiles
    kernel = functools.partial(_gate_kernel, plan=plan, dtype=dtype)
    (gradients,) = _call(plan, "plstm2d_gates", kernel, (blocks, heads, 2), inputs, [output])
    first, last = (row[:, None] for row in plan.rows(jnp.arange(blocks, dtype=jnp.int32)))
    row = jnp.arange(plan.height, dtype=jnp.int32)
    visited = jnp.stack([row <= last] * 2 + [row >= first] * 2, axis=1)  # [blocks, 4, Y]; the rest is unwritten memory
    return jnp.where(visited[:, None, ..., None], gradients, 0).sum(1)[..., : plan.width]


def _gate_kernel(gates, reach, kept, q, d_hidden, keys, values, output, *, plan: Plan, dtype) -> None:
    own_column, own_in, present, first, last = _targets(plan, dtype)
    upwards = pl.program_id(SIDE) == 1
    shape = (plan.block, plan.columns)
    q = _load(q, present)
    d_hidden = _load(d_hidden, present)
    column = lax.broadcasted_iota(jnp.int32, shape, 1)
    own_columns = own_column[:, None]
    # Weights beyond the target's column are zero. Their factors are set to zero too, since they could overflow.
    inside = column <= own_columns, column >= own_columns

    def visit(step, d_lower):
        row = jnp.where(upwards, plan.height - 1 - step, step)
        number = jnp.where(upwards, last + 1 + row - first, last - row)  # the step in `_attend_kernel`
        d_matrix = plan.scale * _scores(q, _load(keys.at[row], plan.width), dtype)
        d_matrix *= _scores(d_hidden, _load(values.at[row], plan.width), dtype)
        own = own_in(row)
        passed = []
        for n in range(2):
            lower = kept[number, n]
            lower = jnp.where(column == own_columns, lower[:, None], 0) if plan.single_path else lower
            g, between, right = _along_row(plan, gates, reach, n, row, lower, own, own_column)
            d_g = jnp.where(inside[n], d_matrix, 0)
            d_out = d_lower[n]
            d_right = d_g * g.s_r + d_out * g.t_ru
            d_left = jnp.where(inside[n], _scores(d_right, between, dtype, lax.Precision.HIGHEST), 0)
            transitions = d_left * right, d_out * right, d_left * lower, d_out * lower
            for place, gradient in enumerate((d_g * right, d_g * lower, *transitions, d_left * own, d_out * own)):
                output[place, n, row] = gradient.sum(0)
            passed.append(d_left * g.t_dl + d_g * g.s_d + d_out * g.t_du)
        return tuple(passed)

    visits = jnp.where(upwards, plan.height - first, last + 1)
    lax.fori_loop(0, visits, visit, (jnp.zeros(shape, dtype),) * 2)


def _along_row(plan: Plan, gates, reach, direction, row, lower, own, own_column):
    """The gates of a row, its L^T, and the weights on its right edges, from those on its lower edges."""
    g = GridGates(*(gates[n, direction, row][None] for n in range(8)))
    between = reach[direction, row]
    left = lower * g.t_dl + own * g.m_l
    if plan.single_path:  # only the target's own column: the product's sum has one term
        return g, between, left.sum(1)[:, None] * reach[direction, row, own_column, :]
    return g, between, jnp.dot(left, between, precision=lax.Precision.HIGHEST)


def _scores(a, b, dtype, precision=None):  # a b^T
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=dtype)


def _targets(plan: Plan, dtype):
    """Of the block's targets: columns, `own` of a row, how many are in the grid, the first and the last row."""
    block = pl.program_id(BLOCK)
    node = block * plan.block + lax.broadcasted_iota(jnp.int32, (plan.block,), 0)
    own_row = plan.row_of(node)
    own_column = node - own_row * plan.width

    def own_in(row):
        column = lax.broadcasted_iota(jnp.int32, (plan.block, plan.columns), 1)
        return ((column == own_column[:, None]) & (own_row[:, None] == row)).astype(dtype)

    return own_column, own_in, plan.nodes - block * plan.block, *plan.rows(block)


def _load(ref, present):
    return triton.load(ref, mask=_present(ref, present), other=0.0)


def _present(ref, count):
    """The mask of a tile's first rows; the others may be outside the array."""
    return lax.broadcasted_iota(jnp.int32, ref.shape, 0) < count


def _row_arrays(plan: Plan, gates: Array) -> tuple[Array, Array]:
    """Gates with zeros in additional columns, and L^T [heads, 4, Y, left edge, right edge]; image coordinates."""
    gates = _pad(gates, plan.columns)
    products = segment_products(gates[:, GridGates._fields.index("t_rl")])
    return gates, products.at[:, ::2].set(products[:, ::2].swapaxes(-1, -2))  # as is where right edges lead left


def _targets_of(plan: Plan, x):
    """x [heads, N, d] and the targets of a block."""
    return x, _tiles((None, plan.block, x.shape[-1]), {0: HEAD, 1: BLOCK})


def _rows_of(plan: Plan, x: Array):
    """x [heads, N, d] as [heads, Y, X, d] and a head's rows, with padded columns outside the array."""
    rows = x.reshape(len(x), plan.height, plan.width, x.shape[-1])
    return rows, _tiles((None, plan.height, plan.columns, x.shape[-1]), {0: HEAD})


def _tiles(shape: tuple[int | None, ...], numbered: dict[int, int]):
    """An array in tiles of this shape; numbered: the axes along which a program's number chooses the tile."""
    axes = range(len(shape))
    return pl.BlockSpec(shape, lambda *program: tuple(program[numbered[a]] if a in numbered else 0 for a in axes))


def _call(plan: Plan, name: str, kernel, programs: tuple[int, ...], inputs, outputs) -> list[Array]:
    """inputs, outputs: pairs of an array, or its shape and dtype, and its tiles."""
    operands, in_specs = zip(*inputs, strict=True)
    out_shape, out_specs = map(list, zip(*outputs, strict=True))
    run = pl.pallas_call(
        kernel,
        out_shape,
        grid=programs,
        in_specs=in_specs,
        out_specs=out_specs,
        name=name,
        interpret=plan.interpret,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    )
    return run(*operands)


def _padded(size: int) -> int:
    return max(SMALLEST, 1 << (size - 1).bit_length())


def _pad(x: Array, size: int) -> Array:  # the last axis, with zeros
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
