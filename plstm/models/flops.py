"""Operations of a forward pass, counted from the architecture.

Convention: two operations a multiply-add, of matrix products and of the gating matrix; norms, activations and biases
are left out. The paper's figures (Table 4) count a multiply-add once, so compare them with half of ours.
"""

from plstm.models.vision import VisionConfig

# Multiply-adds a pair of nodes in the cheapest form of the gating matrix: P-mode merges both edges of a node, D-mode is
# a product of two segments. Each pair is reached by one direction of the four.
GATING_PRODUCTS = {"P": 3, "D": 1}


def forward_flops(config: VisionConfig, image_size: int | None = None) -> int:
    """Operations of one image's forward pass at `image_size` pixels a side (the training size unless given)."""
    size = image_size or config.image_size
    tokens = (size // config.patch_size) ** 2
    embedding = tokens * config.patch_size**2 * config.channels * config.dim
    pooled = config.dim * (4 if config.pooling == "corners" else 1)
    tokens += config.pooling == "class_token"
    groups = config.depth // len(config.modes)
    blocks = groups * sum(_block_products(config, mode, tokens) for mode in config.modes)
    return 2 * (embedding + blocks + pooled * config.classes)


def _block_products(config: VisionConfig, mode: str, tokens: int) -> int:
    dim, gates = config.dim, 4 * config.heads
    linear = tokens * dim * dim * (4 + 2 * config.mlp_ratio)
    mixing = 2 * tokens**2 * dim
    if mode == "attention":
        return linear + mixing
    gate_inputs = 0 if config.stm_bias_only else tokens * dim * (3 if mode == "P" else 7)
    orientation = tokens * dim * gates if mode == "P" else 0
    return linear + mixing + gate_inputs + orientation + GATING_PRODUCTS[mode] * config.heads * tokens**2
