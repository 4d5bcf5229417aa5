"""Augmentation of a batch on the device: random erasing, mixup and cutmix."""

import math

import jax
import jax.numpy as jnp

ERASED_AREA = (0.02, 0.33)  # of the image
ERASED_ASPECT = (0.3, 3.3)  # height over width
TRIES = 10
GROUP = 64  # images that mix with each other, by one draw, where it divides the batch


def random_erasing(images: jax.Array, key: jax.Array, probability: float) -> jax.Array:
    """Replaces a box of some images by normal noise (Zhong et al. 2020), independent in every pixel and channel.

    images: float [batch, height, width, channels], normalised. probability: of erasing an image, a Python number. The
    box's area is uniform in `ERASED_AREA`, its aspect log-uniform in `ERASED_ASPECT`, its place uniform. An image stays
    whole if none of `TRIES` boxes fits.
    """
    if not probability:
        return images
    batch, height, width, _ = images.shape
    drawn_key, noise_key = jax.random.split(key)
    drawn = jax.random.uniform(drawn_key, (3 + 2 * TRIES, batch))
    chosen, row, column = drawn[:3]
    area = height * width * (ERASED_AREA[0] + (ERASED_AREA[1] - ERASED_AREA[0]) * drawn[3 : 3 + TRIES])
    low, high = (math.log(bound) for bound in ERASED_ASPECT)
    aspect = jnp.exp(low + (high - low) * drawn[3 + TRIES :])
    tall, wide = (jnp.round(jnp.sqrt(square)).astype(jnp.int32) for square in (area * aspect, area / aspect))
    fits = (tall < height) & (wide < width)  # [tries, batch]
    first = fits.argmax(axis=0)[None]
    tall, wide = (jnp.take_along_axis(side, first, axis=0)[0] for side in (tall, wide))
    erased = fits.any(axis=0) & (chosen < probability)
    rows = _within(height, _whole(row, height - tall + 1), tall)
    columns = _within(width, _whole(column, width - wide + 1), wide)
    box = (rows & erased[:, None])[:, :, None] & columns[:, None, :]
    return jnp.where(box[..., None], jax.random.normal(noise_key, images.shape, images.dtype), images)


def mix(
    images: jax.Array, targets: jax.Array, key: jax.Array, mixup_alpha: float, cutmix_alpha: float
) -> tuple[jax.Array, jax.Array]:
    """Mixes each image and target with those of a partner: mixup (Zhang et al. 2018) or cutmix (Yun et al. 2019).

    images: float [batch, height, width, channels]. targets: float [batch, classes], already smoothed. The alphas are
    Python numbers; 0 turns one off, and with both on each gets half of the draws. Each `GROUP` images have a draw of
    their own, and their partners are a random permutation of them, so that devices with as many exchange no images. A
    target's weight is the share of its image's pixels that is kept.
    """
    if not (mixup_alpha or cutmix_alpha):
        return images, targets
    batch, height, width, _ = images.shape
    group = GROUP if batch % GROUP == 0 else batch
    cutmix_probability = 0.5 if mixup_alpha and cutmix_alpha else float(cutmix_alpha > 0)

    def mix_group(images, targets, key):
        weights_key, partner_key = jax.random.split(key)
        kept = kept_weights(weights_key, height, width, cutmix_probability, mixup_alpha, cutmix_alpha)
        share, kept = kept.mean(), kept[..., None]
        partner = jax.random.permutation(partner_key, group)
        mixed = kept * images + (1 - kept) * images[partner]
        return mixed.astype(images.dtype), share * targets + (1 - share) * targets[partner]

    grouped = (x.reshape(-1, group, *x.shape[1:]) for x in (images, targets))
    mixed = jax.vmap(mix_group)(*grouped, jax.random.split(key, batch // group))
    return mixed[0].reshape(images.shape), mixed[1].reshape(targets.shape)


def kept_weights(
    key: jax.Array, height: int, width: int, cutmix_probability: float, mixup_alpha: float, cutmix_alpha: float
) -> jax.Array:
    """The weight of an image's own pixels in the mixture, float32 [height, width].

    Mixup: lambda ~ Beta(alpha, alpha) everywhere. Cutmix: 0 in a box, 1 outside; the box has sqrt(1 - lambda) of the
    image's sides, rounded down to even pixels, is centred on a uniform pixel and clipped to the image. The alpha of the
    kind that is drawn must be positive.
    """
    drawn_key, beta_key = jax.random.split(key)
    choice, row, column = jax.random.uniform(drawn_key, (3,))
    is_cutmix = choice < cutmix_probability
    alpha = jnp.where(is_cutmix, cutmix_alpha, mixup_alpha)
    share = jax.random.beta(beta_key, alpha, alpha)

    def cut(size: int, centre: jax.Array) -> jax.Array:
        half = (jnp.sqrt(1 - share) * size).astype(jnp.int32) // 2
        return _within(size, _whole(centre, size) - half, 2 * half)

    box = cut(height, row)[:, None] & cut(width, column)
    return jnp.where(is_cutmix, 1 - box.astype(jnp.float32), share)


def _whole(uniform: jax.Array, count: int | jax.Array) -> jax.Array:
    """Uniform numbers in [0, 1) -> whole numbers from 0 to count - 1, int32."""
    return jnp.floor(uniform * count).astype(jnp.int32)


def _within(size: int, start: jax.Array, length: jax.Array) -> jax.Array:
    """Which of `size` positions lie in [start, start + length), int32 [...]; bool [..., size]."""
    positions = jnp.arange(size)
    start = start[..., None]
    return (positions >= start) & (positions < start + length[..., None])
