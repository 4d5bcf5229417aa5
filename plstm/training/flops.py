"""Operations of a forward pass: two a multiply-add, of matrix products, convolutions and the operator that mixes
tokens. Elementwise work (exponentials, norms, activations, gates, skips) and resized position embeddings are left out.

The paper's figures (Table 4) count a multiply-add once, so compare them with half of ours.
"""

from collections.abc import Callable
from typing import Any

from plstm.models.efficientnet import EfficientNetConfig
from plstm.models.mamba2d import HEAD_DIM, MLP_RATIO, STEM, STEP, Mamba2DConfig
from plstm.models.ss2d import MAPS, SS2DConfig
from plstm.models.vil import CHUNK, ViLConfig
from plstm.models.vision import VisionConfig
from plstm.nn.sequence import QKV_BLOCK
from plstm.ops.scans import even_chunk

# Multiply-adds a pair of nodes in the cheapest form of the gating matrix: P-mode merges both edges of a node, D-mode is
# a product of two segments. Each pair is reached by one direction of the four.
GATING_PRODUCTS = {"P": 3, "D": 1}

# Multiply-adds a cell, channel and state of a scan, each in the fewest that the recurrence takes. Mamba2D: two decays'
# exponents, two decayed neighbours, input and output; the halving is left out. 2DMamba: one exponent, the same decay
# along the row and down the column, input and output.
M2D_SCAN = 6
SS2D_SCAN = 5

CPU_RATE = 30e9  # operations a second and core of a training on CPUs: those of results/runs have 16e9 to 73e9
MANY_HOURS = 12.0  # on CPUs: a training that takes more is warned of


def vision_flops(config: VisionConfig) -> int:
    """Operations of one image's forward pass at the training size."""
    tokens = (config.image_size // config.patch_size) ** 2
    dim = config.dim
    pooled = dim * (4 if config.pooling == "corners" else 1)
    products = tokens * config.patch_size**2 * config.channels * dim + pooled * config.classes  # embedding and head
    tokens += config.pooling == "class_token"
    for mode in config.modes:
        block = tokens * dim * dim * (4 + 2 * config.mlp_ratio) + 2 * tokens**2 * dim  # linear maps, mixing
        if mode != "attention":
            inputs = (0 if config.stm_bias_only else 3 if mode == "P" else 7) + (4 * config.heads if mode == "P" else 0)
            inputs += config.heads if config.direct_weight else 0
            block += tokens * dim * inputs + GATING_PRODUCTS[mode] * config.heads * tokens**2
        products += config.depth // len(config.modes) * block
    return 2 * products


def efficientnet_flops(config: EfficientNetConfig) -> int:
    """As `vision_flops`: convolutions, depthwise ones too, squeeze-excite and the head."""
    side = -(-config.image_size // 2)
    dim = config.stem
    products = side**2 * 9 * config.channels * dim
    for kernel, stride, repeats, expansion, dim_out in config.stages:
        for n in range(repeats):
            hidden = dim * expansion
            products += side**2 * dim * hidden * (expansion > 1)
            side = side if n else -(-side // stride)
            products += side**2 * hidden * (kernel**2 + dim_out) + 2 * hidden * max(1, dim // 4)
            dim = dim_out
    return 2 * (products + side**2 * dim * config.features + config.features * config.classes)


def vil_flops(config: ViLConfig) -> int:
    """As `vision_flops`; the mLSTM as it runs, chunk by chunk: all pairs within a chunk, causal
    or not, and the state of each head, its normaliser as one more column."""
    tokens = (config.image_size // config.patch_size) ** 2
    dim = config.dim
    inner = 2 * config.dim
    maps = dim * 2 * inner + 9 * inner + 3 * QKV_BLOCK * inner + 2 * 3 * inner * config.heads + inner * dim
    chunk = even_chunk(CHUNK, tokens)
    key = inner // config.heads
    read_and_write = 2 * chunk * key * (key + 1)
    decay = key * (key + 1)
    mixing = -(-tokens // chunk) * config.heads * (chunk**2 * (2 * key + 1) + read_and_write + decay)
    ends = tokens * config.patch_size**2 * config.channels * dim + 2 * dim * config.classes  # embedding and head
    return 2 * (ends + config.depth * (tokens * maps + mixing))


def mamba2d_flops(config: Mamba2DConfig) -> int:
    """As `vision_flops`, with the scan's M2D_SCAN and attention between all pairs of cells."""
    side = config.image_size
    dim_in = config.channels
    products = 0
    for n, (dim, depth, mixer) in enumerate(zip(config.dims, config.depths, config.mixers, strict=True)):
        side, convolution = _convolve(side, dim_in, dim, *(STEP if n else STEM))
        inner = 2 * dim
        rank = -(-dim // 16)
        attended = max(1, dim // HEAD_DIM) * HEAD_DIM
        block = 2 * MLP_RATIO * dim**2
        if mixer == "attention":
            block += 4 * dim * attended + 2 * side**2 * attended
        else:  # in and out, selection, step sizes, scan
            block += inner * (2 * dim + 2 * rank + 2 * config.states + 2 * rank + M2D_SCAN * config.states)
        products += convolution + depth * side**2 * block
        dim_in = dim
    return 2 * (products + dim_in * config.classes)


def ss2d_flops(config: SS2DConfig) -> int:
    """As `vision_flops`, with the four scans' SS2D_SCAN."""
    side = config.image_size
    products = 0
    gated = config.form == "as_run"
    for n, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True)):
        channels, window = config.down(n)
        for before, after in zip(channels, channels[1:], strict=False):
            side, convolution = _convolve(side, before, after, *window)
            products += convolution
        inner = 2 * dim
        rank = -(-dim // 16)
        states = config.states
        a_map = rank + 2 * states + rank + SS2D_SCAN * states  # selection, step sizes, scan
        block = inner * (dim * (2 + gated) + 9 + MAPS * a_map) + 2 * MLP_RATIO * dim**2
        products += depth * side**2 * block
    return 2 * (products + dim * config.classes)


def _convolve(side: int, dim_in: int, dim_out: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """The side of the map after a convolution, and its multiply-adds."""
    side = (side + 2 * padding - kernel) // stride + 1
    return side, side**2 * kernel**2 * dim_in * dim_out


FLOPS: dict[str, Callable[[Any], int]] = {
    "vision": vision_flops,
    "efficientnet": efficientnet_flops,
    "mamba2d": mamba2d_flops,
    "ss2d": ss2d_flops,
    "vil": vil_flops,
}


def forward_flops(config: Any) -> int | None:
    """Operations of one example's forward pass of a model's config; None if not implemented for it."""
    count = FLOPS.get(config.family)
    return None if count is None or getattr(config, "track", None) else count(config)
