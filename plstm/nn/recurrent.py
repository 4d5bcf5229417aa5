"""The layers that answer formal languages: PR-LSTM and PR-RNN (arXiv 2605.17108), and the networks of "Neural Networks
and the Chomsky Hierarchy" (ICLR 2023): RNN, LSTM, Stack-RNN, Tape-RNN, Transformer.

Each maps a `Rows` to what it has at the `answers` steps after the tokens of each row, [rows, answers, dim]; what lies
beyond a row's last step may be anything. All start as there: weights N(0, 1 / in) cut at two deviations, the
Transformer's embedding likewise with a deviation of EMBEDDING_STD, biases and states 0.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from plstm.nn.layers import NORM_EPSILON, bias_of, drop, sinusoids, softmax_attention
from plstm.ops.common import chunked_map
from plstm.ops.recursive import prefix_state, prefix_states

ATTENTION_BYTES = 2**27  # of the attention weights made at a time
EMBEDDING_STD = 0.02
Memory = tuple[Array, ...]  # first the cell that is read, [rows, memory_width]


class Rows(NamedTuple):
    """Token rows, each followed by blanks, in which the answer is due, and by padding, which changes nothing."""

    tokens: Array  # int [rows, N]; the highest is the blank
    length: Array  # int [rows]: tokens
    steps: Array  # int [rows]: tokens and blanks


def dense(dim_in: int, dim_out: int, rngs: nnx.Rngs, use_bias: bool = True) -> nnx.Linear:
    start = nnx.initializers.truncated_normal(1 / math.sqrt(dim_in))
    # Not `plstm.nn.layers.linear`: its rounding depends on the number of rows, and padding must not change a bit.
    return nnx.Linear(dim_in, dim_out, use_bias=use_bias, kernel_init=start, rngs=rngs)


def take_answers(states: Array, rows: Rows, answers: int) -> Array:
    """states [N, rows, dim] -> those after the row's tokens, [rows, answers, dim]; arbitrary beyond its last step."""
    place = jnp.clip(rows.length[:, None] + jnp.arange(answers), max=len(states) - 1)
    return jax.vmap(lambda row, place: row[place], (1, 0))(states, place)


# ---------------------------------------------------------------------- parallel recursion
class Recursion(nnx.Module):
    """A state of leaves composed along a binary tree, see `plstm.ops.recursive`."""

    tokens: int
    leaf: Callable[[Array], Any]  # one-hot tokens -> states
    compose: Callable[[Any, Any], Any]  # states of the left and of the right part -> states
    output: Callable[[Any], Array]

    def __call__(self, rows: Rows, answers: int, key: Array | None = None) -> Array:
        """float32 [rows, answers, dim]: what was read by the end of each row's tokens and by each blank after it."""
        index = rows.tokens.T
        leaves = self.leaf(jnp.eye(self.tokens))
        if answers == 1:
            return self.output(prefix_state(leaves, rows.steps, self.compose, index))[:, None]
        states = prefix_states(jax.tree.map(lambda x: x[index], leaves), self.compose)
        return take_answers(self.output(states), rows, answers)


class PRLSTM(Recursion):
    """States (h, c) with `refinements` after each composition."""

    def __init__(self, tokens: int, dim: int, refinements: int, rngs: nnx.Rngs):
        self.tokens = tokens
        self.leaves = dense(tokens, 3 * dim, rngs)
        self.composition = dense(2 * dim, 5 * dim, rngs)
        self.refinements = nnx.List([dense(dim, 4 * dim, rngs) for _ in range(refinements)])

    def output(self, state: tuple[Array, Array]) -> Array:
        return state[0]

    def leaf(self, x: Array) -> tuple[Array, Array]:
        i, u, o = jnp.split(self.leaves(x), 3, axis=-1)
        c = jax.nn.sigmoid(i) * jnp.tanh(u)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def compose(self, left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        """A binary tree LSTM with a forget gate for each side, then refinements: LSTM steps whose gates see h only."""
        i, u, o, f_left, f_right = jnp.split(self.composition(jnp.concatenate([left[0], right[0]], -1)), 5, axis=-1)
        c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f_left) * left[1] + jax.nn.sigmoid(f_right) * right[1]
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        for refinement in self.refinements:
            i, u, o, f = jnp.split(refinement(h), 4, axis=-1)
            c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f) * c
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, c


class PRRNN(Recursion):
    """States h; a leaf is linear, a composition and each of its refinements end in a ReLU."""

    def __init__(self, tokens: int, dim: int, refinements: int, rngs: nnx.Rngs):
        self.tokens = tokens
        self.leaf = dense(tokens, dim, rngs)
        self.composition = dense(2 * dim, dim, rngs)
        self.refinements = nnx.List([dense(dim, dim, rngs) for _ in range(refinements)])

    def output(self, state: Array) -> Array:
        return state

    def compose(self, left: Array, right: Array) -> Array:
        h = jax.nn.relu(self.composition(jnp.concatenate([left, right], axis=-1)))
        for refinement in self.refinements:
            h = jax.nn.relu(refinement(h))
        return h


# ---------------------------------------------------------------------- step by step
class RNN(nnx.Module):
    """h = relu(x W_x + b_x + h W_h + b_h); subclasses also read `memory_width` numbers from a memory."""

    memory_width = 0

    def __init__(self, tokens: int, dim: int, rngs: nnx.Rngs):
        self.tokens = tokens
        self.input = dense(tokens + self.memory_width, dim, rngs)
        self.recurrent = dense(dim, dim, rngs)

    def __call__(self, rows: Rows, answers: int, key: Array | None = None) -> Array:
        from_tokens = self.input.kernel[: self.tokens]
        from_memory = self.input.kernel[self.tokens :]
        inputs = jax.nn.one_hot(rows.tokens.T, self.tokens) @ from_tokens + bias_of(self.input)
        memory, change = self.memory(rows, inputs.dtype)

        def step(carry, x):
            h, (cell, *rest) = carry
            h = jax.nn.relu(x + cell @ from_memory + self.recurrent(h))
            return (h, change(h, cell, *rest)), h

        start = jnp.zeros_like(inputs[0]), memory
        return take_answers(jax.lax.scan(step, start, inputs)[1], rows, answers)

    def memory(self, rows: Rows, dtype: jnp.dtype) -> tuple[Memory, Callable[..., Memory]]:
        """The initial memory, all zero, and its update: a function (h of a step, *memory before) -> memory after."""
        return (jnp.zeros_like(rows.tokens, dtype, shape=(len(rows.tokens), 0)),), lambda h, cell: (cell,)


class StackRNN(RNN):
    """An RNN with a differentiable stack (after Joulin and Mikolov, 2015): a mixture of pushed, popped and kept."""

    def __init__(self, tokens: int, dim: int, memory_width: int, memory_cells: int, rngs: nnx.Rngs):
        self.memory_width = memory_width
        self.memory_cells = memory_cells
        super().__init__(tokens, dim, rngs)
        self.push = dense(dim, memory_width, rngs)
        self.action = dense(dim, 3, rngs)

    def memory(self, rows: Rows, dtype: jnp.dtype) -> tuple[Memory, Callable[..., Memory]]:
        count, steps = rows.tokens.shape
        cells = min(self.memory_cells, steps)  # a stack never uses more

        def change(h: Array, top: Array, stack: Array) -> Memory:
            push, pop, keep = jnp.moveaxis(jax.nn.softmax(self.action(h)), -1, 0)[..., None, None]
            pushed = jnp.concatenate([self.push(h)[:, None], stack[:, :-1]], axis=1)
            popped = jnp.concatenate([stack[:, 1:], jnp.zeros_like(stack[:, :1])], axis=1)
            stack = push * pushed + pop * popped + keep * stack
            return stack[:, 0], stack

        stack = jnp.zeros_like(rows.tokens, dtype, shape=(count, cells, self.memory_width))
        return (stack[:, 0], stack), change


class TapeRNN(RNN):
    """An RNN with a cyclic tape, its head at cell 0: a mixture of the tape moved by 0, -1, 1, -T, T cells, T the number
    of the row's tokens, after cell 0 was written.

    The tape is kept as its Fourier transform over the cells, real and imaginary part [rows, memory_width, cells / 2 +
    1], where a move is a factor and a write to cell 0 adds the same everywhere: cheaper than moving 512 cells.
    """

    def __init__(self, tokens: int, dim: int, memory_width: int, memory_cells: int, hidden: int, rngs: nnx.Rngs):
        self.memory_width = memory_width
        self.memory_cells = memory_cells
        super().__init__(tokens, dim, rngs)
        sizes = [dim, hidden, hidden, memory_width]
        self.write = nnx.List([dense(*pair, rngs) for pair in zip(sizes, sizes[1:], strict=False)])
        self.action = dense(dim, 5, rngs)

    def memory(self, rows: Rows, dtype: jnp.dtype) -> tuple[Memory, Callable[..., Memory]]:
        cells = self.memory_cells
        numbers = jnp.arange(cells // 2 + 1)  # of the frequencies; those above are the conjugates of these
        turns = numbers, numbers * rows.length[:, None] % cells  # of a move by one cell, and by T, in 1 / cells
        one, jump = ((2 * math.pi / cells) * turn.astype(dtype) for turn in turns)
        cosines = (jnp.cos(one), jnp.cos(jump))
        sines = (jnp.sin(one), jnp.sin(jump))
        weight = (jnp.where((numbers == 0) | (2 * numbers == cells), 1, 2) / cells).astype(dtype)

        def change(h: Array, cell: Array, real: Array, imaginary: Array) -> Memory:
            value = h
            for layer in self.write:
                value = layer(value if layer is self.write[0] else jax.nn.relu(value))
            stay, back, forth, jump_back, jump_forth = jnp.moveaxis(jax.nn.softmax(self.action(h)), -1, 0)[..., None]
            c = stay + (back + forth) * cosines[0] + (jump_back + jump_forth) * cosines[1]
            s = (back - forth) * sines[0] + (jump_back - jump_forth) * sines[1]
            real = real + (value - cell)[..., None]
            c = c[:, None]
            s = s[:, None]
            real, imaginary = c * real - s * imaginary, c * imaginary + s * real
            return jnp.sum(weight * real, axis=-1), real, imaginary

        zero = jnp.zeros_like(rows.tokens, dtype, shape=(len(rows.tokens), self.memory_width, len(numbers)))
        return (zero[..., 0], zero, zero), change


class LSTM(nnx.Module):
    """(i, g, f, o) = [x; h] W + b, c = sigmoid(f + 1) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c)."""

    def __init__(self, tokens: int, dim: int, rngs: nnx.Rngs):
        self.tokens = tokens
        self.dim = dim
        self.gates = dense(tokens + dim, 4 * dim, rngs)

    def __call__(self, rows: Rows, answers: int, key: Array | None = None) -> Array:
        from_tokens = self.gates.kernel[: self.tokens]
        recurrent = self.gates.kernel[self.tokens :]
        inputs = jax.nn.one_hot(rows.tokens.T, self.tokens) @ from_tokens + bias_of(self.gates)

        def step(carry, x):
            h, c = carry
            i, g, f, o = jnp.split(x + h @ recurrent, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros_like(inputs, shape=(2, len(rows.tokens), self.dim))
        return take_answers(jax.lax.scan(step, tuple(start), inputs)[1], rows, answers)


# ---------------------------------------------------------------------- Transformer
class Transformer(nnx.Module):
    """An encoder that is not causal; positions are counted from the last step, which has number 1."""

    def __init__(self, tokens: int, dim: int, depth: int, heads: int, mlp_ratio: int, dropout: float, rngs: nnx.Rngs):
        self.tokens = tokens
        self.dim = dim
        start = nnx.initializers.truncated_normal(EMBEDDING_STD)
        self.embedding = nnx.Linear(tokens, dim, use_bias=False, kernel_init=start, rngs=rngs)
        self.layers = nnx.List([EncoderLayer(dim, heads, mlp_ratio, dropout, rngs) for _ in range(depth)])
        self.dropout = dropout

    def __call__(self, rows: Rows, answers: int, key: Array | None = None) -> Array:
        keys = [None] * (len(self.layers) + 1) if key is None else jax.random.split(key, len(self.layers) + 1)
        left = rows.steps[:, None] - jnp.arange(rows.tokens.shape[1])  # the position of each step, 0 or less at padding
        x = self.embedding(jax.nn.one_hot(rows.tokens, self.tokens)) * math.sqrt(self.dim)
        x = drop(x + sinusoids(left, self.dim), self.dropout, keys[0])
        for layer, layer_key in zip(self.layers, keys[1:], strict=True):
            x = layer(x, left > 0, layer_key)
        return take_answers(jnp.moveaxis(x, 1, 0), rows, answers)


class EncoderLayer(nnx.Module):
    """h = norm(h + attention(h)); h = norm(h + MLP(h)), with ReLU; attention has no biases."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int, dropout: float, rngs: nnx.Rngs):
        start = nnx.initializers.truncated_normal(1 / math.sqrt(dim))
        self.attention = nnx.MultiHeadAttention(
            heads, dim, use_bias=False, kernel_init=start, decode=False, attention_fn=attention_of_heads, rngs=rngs
        )
        self.attention_norm, self.mlp_norm = (nnx.LayerNorm(dim, epsilon=NORM_EPSILON, rngs=rngs) for _ in range(2))
        self.up = dense(dim, mlp_ratio * dim, rngs)
        self.down = dense(mlp_ratio * dim, dim, rngs)
        self.dropout = dropout

    def __call__(self, x: Array, is_step: Array, key: Array | None) -> Array:
        """x [rows, N, dim], is_step bool [rows, N]: False at padding, which nothing attends to."""

        def attend(x: Array, is_step: Array) -> Array:
            return self.attention(x, mask=is_step[:, None, None])

        chunks = max(1, -(-4 * x.shape[0] * self.attention.num_heads * x.shape[1] ** 2 // ATTENTION_BYTES))
        keys = (None, None) if key is None else jax.random.split(key)
        x = self.attention_norm(x + drop(chunked_map(attend, (x, is_step), chunks), self.dropout, keys[0]))
        return self.mlp_norm(x + drop(self.down(jax.nn.relu(self.up(x))), self.dropout, keys[1]))


def attention_of_heads(q: Array, k: Array, v: Array, mask: Array, **_) -> Array:
    """`softmax_attention` as `nnx.MultiHeadAttention` calls it: q, k, v [rows, N, heads, d] -> as v."""
    q, k, v = (x.swapaxes(-2, -3) for x in (q, k, v))
    return softmax_attention(q, k, v, mask).swapaxes(-2, -3)
