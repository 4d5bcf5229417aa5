"""What operators share: checks of arguments, the gates' dtype, products, attention with a gating matrix, chunks."""

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

HIGHEST = lax.Precision.HIGHEST  # the default of GPUs and TPUs multiplies float32 in fewer bits
product = partial(jnp.einsum, precision=HIGHEST)  # of gates


def split_over_devices(function: Callable[..., Array], batch: int) -> Callable[..., Array]:
    """Runs a function of trees of arrays [batch, ...] on each device's part of the batch.

    The devices are those of the mesh that a training step is traced under (`jax.sharding.use_abstract_mesh`). Without
    a mesh, or if the batch does not divide by the devices, returns `function` itself: XLA may then gather arrays.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or batch % mesh.size:
        return function
    batch_axis = PartitionSpec(mesh.axis_names)
    return jax.shard_map(function, in_specs=batch_axis, out_specs=batch_axis, check_vma=False)


def accumulation_dtype(*arrays: Array) -> jnp.dtype:
    """The dtype that operators compute in: float32, or float64 where an argument is."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(a: Array, b: Array, precision=None) -> Array:
    """`jnp.matmul` of a [..., n, i] and b [..., i, o], with reverse-mode derivatives only.

    On CPUs JAX's own gradient of b takes copies and a slow product. This one puts the wider side last, with a barrier
    that keeps XLA from swapping the sides: up to three times as fast."""
    return jnp.matmul(a, b, precision=precision)


def _matmul_backward(precision, saved, cotangent):
    a, b = saved
    multiply = partial(jnp.matmul, precision=precision)
    if a.shape[-1] <= cotangent.shape[-1]:
        d_b = multiply(_transpose(a), cotangent)
    else:
        d_b = _transpose(lax.optimization_barrier(multiply(_transpose(cotangent), a)))
    return multiply(cotangent, _transpose(b)), d_b


matmul.defvjp(lambda a, b, precision: (matmul(a, b, precision), (a, b)), _matmul_backward)
_transpose = partial(jnp.swapaxes, axis1=-2, axis2=-1)


def attend(q: Array, k: Array, v: Array, gating: Array, scale: float) -> Array:
    """Sums values over source nodes, weighted by gating and scaled similarity (Equation 3):
    q [..., T, d_k], k [..., S, d_k], v [..., S, d_v], gating [..., T, S] -> [..., T, d_v] in the gating's dtype."""
    similarity = accumulate("...tk,...sk->...ts", q, k, gating.dtype)
    # Keep this product alone: XLA's CPU backend fuses it with a transposition of the gating, but nothing larger.
    weights = (gating * similarity).astype(v.dtype)
    return scale * accumulate("...ts,...sv->...tv", weights, v, gating.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def accumulate(subscripts: str, a: Array, b: Array, dtype) -> Array:
    """`jnp.einsum` with sums in `dtype`. Its gradients multiply in the arguments' dtype; JAX's own would multiply
    float32 cotangents even if the arguments are bfloat16."""
    return jnp.einsum(subscripts, a, b, preferred_element_type=dtype)


def _accumulate_backward(subscripts, dtype, saved, cotangent):
    backward = jax.vjp(partial(jnp.einsum, subscripts), *saved)[1]
    return backward(cotangent.astype(jnp.result_type(*saved)))


accumulate.defvjp(lambda subscripts, a, b, dtype: (accumulate(subscripts, a, b, dtype), (a, b)), _accumulate_backward)


def add_up(arrays: Iterable[Array]) -> Array:
    """The sum of one or more arrays, one after another: XLA's CPU backend adds slices faster than it sums an axis."""
    return reduce(operator.add, arrays)


def direct_term(q: Array, k: Array, v: Array, direct: Array, scale: float) -> Array:
    """What each node receives from itself: direct [...] times the scaled similarity of its q and k, times its v."""
    return (scale * direct * (q.astype(direct.dtype) * k).sum(-1))[..., None] * v


@jax.custom_vjp
def small_product(left: Array, right: Array) -> Array:
    """Matrix products [I, J, ...] times [J, K, ...] -> [I, K, ...], written out: many tiny ones are slow otherwise.

    Reverse-mode derivatives only: JAX's own are sums over axes of a few entries, which are slow on CPUs."""
    return add_up(left[:, j, None] * right[j] for j in range(len(right)))


def _small_product_backward(saved, cotangent):
    left, right = saved
    return small_product(cotangent, right.swapaxes(0, 1)), small_product(left.swapaxes(0, 1), cotangent)


small_product.defvjp(lambda left, right: (small_product(left, right), (left, right)), _small_product_backward)


def chunked_map(function: Callable, arguments: tuple, chunks: int, leading: int = 1) -> Array:
    """Applies a function of independent entries chunk by chunk, in at most `chunks` calls.

    function: maps trees of arrays [entries, ...] to an array [entries, ...], also for padding with zeros. arguments:
    the trees, whose first `leading` axes together are the axis of entries. A chunk takes entries from all over that
    axis, as many for each device, so that a sharded axis stays sharded.
    """
    lead = jax.tree.leaves(arguments)[0].shape[:leading]
    is_split = bool(jax.sharding.get_abstract_mesh().manual_axes)  # the entries are those of one device
    entries = math.prod(lead)
    devices = 1 if is_split else jax.device_count()
    arguments = jax.tree.map(lambda x: x.reshape(entries, *x.shape[leading:]), arguments)
    if chunks == 1:
        return (out := function(*arguments)).reshape(*lead, *out.shape[1:])
    size = -(-entries // (chunks * devices)) * devices
    chunks = -(-entries // size)

    def split(x):
        x = jnp.pad(x, ((0, size * chunks - entries), *((0, 0),) * (x.ndim - 1)))
        return x.reshape(size, chunks, *x.shape[1:]).swapaxes(0, 1)

    recomputed = jax.checkpoint(lambda chunk: function(*chunk), prevent_cse=False)  # the loop prevents it already
    out = lax.map(recomputed, jax.tree.map(split, arguments)).swapaxes(0, 1)
    return out.reshape(-1, *out.shape[2:])[:entries].reshape(*lead, *out.shape[2:])


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_axes(description: str, *arrays: Array, **sizes: int) -> None:
    """Raises ValueError unless arrays, in order, have the axes described, as in "q, k [..., T, d]; decay [..., T]".

    An axis has one size wherever it is named, that of `sizes` where given; "..." stands for the same axes everywhere.
    """
    known: dict[str, tuple[int, ...]] = {name: (size,) for name, size in sizes.items()}
    groups = [group.removesuffix("]").split(" [") for group in description.split("; ")]
    described = [(name, axes.split(", ")) for names, axes in groups for name in names.split(", ")]
    for (name, axes), array in zip(described, arrays, strict=True):
        lead = array.ndim - len(axes) + 1 if axes[0] == "..." else 0
        parts: list[tuple[int, ...]] = [(size,) for size in array.shape]
        if axes[0] == "..." and lead >= 0:
            parts = [array.shape[:lead], *parts[lead:]]
        if len(parts) == len(axes):
            found = {axis: (int(axis),) if axis.isdigit() else part for axis, part in zip(axes, parts, strict=True)}
            known = found | known
        expected = [known.get(axis, ()) for axis in axes]
        if parts != expected:
            shape = f" = {sum(expected, ())}" if known.keys() >= {*axes} else ""
            raise ValueError(f"{name} must be [{', '.join(axes)}]{shape}; got {array.shape}")
