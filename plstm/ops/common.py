"""What operators share: checks of arguments, the gates' dtype, products, attention with a gating matrix, chunks."""

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce, wraps
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

HIGHEST = lax.Precision.HIGHEST  # the default of GPUs and TPUs multiplies float32 in fewer bits
product = partial(jnp.einsum, precision=HIGHEST)  # of gates
Arguments = ParamSpec("Arguments")


def in_manual_region() -> bool:
    """Whether the code is traced inside a `jax.shard_map` or `jax.pmap`, where arrays are one device's part."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def vary_alike(arrays: Sequence[Array]) -> Sequence[Array]:
    """The arrays; inside `jax.shard_map` all vary over the axes that one of them varies over. With check_vma=True these
    axes are part of an array's type, and gradients by hand need one type for all arguments."""
    if not in_manual_region():
        return arrays
    zero = add_up(jnp.zeros_like(array, shape=()) for array in arrays)  # varies where one of them does
    return [array + zero.astype(array.dtype) for array in arrays]


def _is_double(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype == np.float64


def public_operator(function: Callable[Arguments, Array]) -> Callable[Arguments, Array]:
    """Decorates an operator so that it gives the same numbers inside a caller's parallel program.

    In a manual region all arrays vary over the same axes (`vary_alike`); operators make states by `jnp.zeros_like` of
    an array, so that these do, too. Mesh axes of explicit type are treated as automatic ones, and the output is sharded
    like the first array, except along the last axis. float64 arrays of NumPy get JAX's default precision."""

    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Array:
        if any(_is_double(leaf) for leaf in jax.tree.leaves((args, kwargs))):
            args, kwargs = jax.tree.map(lambda x: jnp.asarray(x) if _is_double(x) else x, (args, kwargs))
        mesh = jax.sharding.get_abstract_mesh()
        if not (mesh.manual_axes or mesh.explicit_axes):
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)  # in the order of the signature, also those given by keyword
        leaves, tree = jax.tree.flatten((bound.args, bound.kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Array | np.ndarray)]
        arrays = [leaves[n] for n in places]

        def of_arrays(*arrays):
            by_place = dict(zip(places, vary_alike(arrays), strict=True))
            args, kwargs = tree.unflatten(by_place.get(n, leaf) for n, leaf in enumerate(leaves))
            return function(*args, **kwargs)

        if not mesh.explicit_axes:
            return of_arrays(*arrays)
        spec = list(jax.typeof(arrays[0]).sharding.spec[:-1])
        while spec and spec[-1] is None:  # the output may have fewer axes
            spec.pop()
        return jax.sharding.auto_axes(of_arrays, axes=mesh.explicit_axes, out_sharding=PartitionSpec(*spec))(*arrays)

    return run


def split_over_devices(function: Callable[..., Array], batch: int) -> Callable[..., Array]:
    """Runs a function of trees of arrays [batch, ...] on each device's part of the batch.

    The devices are those of the mesh that a training step is traced under (`jax.sharding.use_abstract_mesh`). Without
    a mesh, in a manual region, which has one device's part already, or if the batch does not divide by the devices,
    returns `function` itself: XLA may then gather arrays.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or batch % mesh.size or in_manual_region():
        return function
    batch_axis = PartitionSpec(mesh.axis_names)
    return jax.shard_map(function, in_specs=batch_axis, out_specs=batch_axis, check_vma=False)


def accumulation_dtype(*arrays: Array) -> jnp.dtype:
    """The dtype that operators compute in: float32, or float64 where an argument is."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def matmul(a: Array, b: Array, precision=None) -> Array:
    """`jnp.matmul` of a [..., n, i] and b [..., i, o], with reverse-mode derivatives only.

    On CPUs JAX's own gradient of b takes copies and a slow product. This one puts the wider side last, with a barrier
    that keeps XLA from swapping the sides: up to three times as fast."""
    return _matmul(*vary_alike((a, b)), precision)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(a: Array, b: Array, precision) -> Array:
    return jnp.matmul(a, b, precision=precision)


def _matmul_backward(precision, saved, cotangent):
    a, b = saved
    multiply = partial(jnp.matmul, precision=precision)
    if a.shape[-1] <= cotangent.shape[-1]:
        d_b = multiply(_transpose(a), cotangent)
    else:
        d_b = _transpose(lax.optimization_barrier(multiply(_transpose(cotangent), a)))
    return multiply(cotangent, _transpose(b)), d_b


_matmul.defvjp(lambda a, b, precision: (_matmul(a, b, precision), (a, b)), _matmul_backward)
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

    function: maps trees of arrays [entries, ...] to an array [entries, ...]; padding with zeros must not break it.
    arguments: the trees, whose first `leading` axes together are the axis of entries; the result has them, too. A chunk
    takes entries from all over that axis, equally many for each device, so that a sharded axis stays sharded. The
    backward pass computes several chunks again, one by one.
    """
    lead = jax.tree.leaves(arguments)[0].shape[:leading]
    entries = math.prod(lead)
    devices = 1 if in_manual_region() else jax.device_count()
    arguments = jax.tree.map(lambda x: lax.collapse(x, 0, leading), arguments)
    if chunks == 1:
        return (out := function(*arguments)).reshape(*lead, *out.shape[1:])
    size = max(-(-entries // (chunks * devices)), 1) * devices
    chunks = -(-entries // size)

    def split(x):
        x = jnp.pad(x, ((0, size * chunks - entries), *((0, 0),) * (x.ndim - 1)))
        return x.reshape(size, chunks, *x.shape[1:]).swapaxes(0, 1)

    recomputed = jax.checkpoint(lambda chunk: function(*chunk), prevent_cse=False)  # the loop prevents it already
    out = lax.map(recomputed, jax.tree.map(split, arguments)).swapaxes(0, 1)
    return lax.collapse(out, 0, 2)[:entries].reshape(*lead, *out.shape[2:])


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_axes(description: str, *arrays: Array, **sizes: int) -> None:
    """Raises ValueError unless arrays are real floating-point numbers and, in order, have the axes described, as in
    "q, k [..., T, d]; decay [..., T]".

    An axis has one size wherever it is named, that of `sizes` where given, else at least 1; "..." stands for the same
    axes everywhere, which may be empty.
    """
    known: dict[str, tuple[int, ...]] = {name: (size,) for name, size in sizes.items()}
    groups = [group.removesuffix("]").split(" [") for group in description.split("; ")]
    described = [(name, axes.split(", ")) for names, axes in groups for name in names.split(", ")]
    for (name, axes), array in zip(described, arrays, strict=True):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} must be of floating-point numbers; got {array.dtype}")
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
        for axis, part in zip(axes, parts, strict=True):
            if part == (0,) and axis not in ("...", *sizes):
                raise ValueError(f"{name} must have at least one entry along {axis}; got {array.shape}")
