"""Arrays and parameters drawn from a normal or by formula, and files of images."""

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fill(build, scale: float = 0.5, seed: int = 0) -> nnx.Module:
    """The module that `build()` makes with every parameter drawn, so that no gate reads another's unnoticed."""
    rng = np.random.default_rng(seed)
    graphdef, params = nnx.split(nnx.eval_shape(build))
    drawn = jax.tree.map(lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype), params)
    return nnx.merge(graphdef, drawn)


def sines(*shapes: tuple[int, ...]) -> Iterator[jax.Array]:
    """Arrays of these shapes, of which golden values are: number i, counted through, is sin(1.7 i + 1) / 2."""
    start = 0
    for shape in shapes:
        count = math.prod(shape)
        yield jnp.asarray(0.5 * np.sin(1.7 * np.arange(start, start + count) + 1).reshape(shape))
        start += count


def wave(*channels: Sequence[int]) -> jax.Array:
    """sin(1 + t + 2 c) at t = 0 .. 6, of which golden values are: [7, ...], an axis for each list of channels c, whose
    entries are added up."""
    offsets = sum(np.meshgrid(*channels, indexing="ij")) if channels else np.zeros(())
    return jnp.sin(1.0 + jnp.arange(7).reshape(7, *(1,) * offsets.ndim) + 2 * jnp.asarray(offsets))


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def scene(height: int, width: int) -> Image.Image:
    """A picture that is different everywhere."""
    y, x, c = np.indices((height, width, 3))
    return Image.fromarray(((x * (c + 1) + 2 * y + x * y // 40) % 256).astype(np.uint8))


def plain_pictures(folder: Path, counts: dict[str, int]) -> Path:
    """Writes <folder>/<class>/<n>.png, so many of each class, of a colour for each class with noise; returns it."""
    rng = np.random.default_rng(0)
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        colour = np.roll((200, 90, 30), number)
        for n in range(count):
            noise = rng.integers(-20, 20, (24, 20, 3))
            Image.fromarray((colour + noise).astype(np.uint8)).save(folder / name / f"{n}.png")
    return folder
