"""Operations of a forward pass: two a multiply-add, of matrix products and of the gating matrix, and nothing else.

The paper's figures (Table 4) count a multiply-add once, so compare them with half of ours.
"""

from plstm.models.vision import VisionConfig

# Multiply-adds a pair of nodes in the cheapest form of the gating matrix: P-mode merges both edges of a node, D-mode is
# a product of two segments. Each pair is reached by one direction of the four.
GATING_PRODUCTS = {"P": 3, "D": 1}


def forward_flops(config: VisionConfig, image_size: int | None = None) -> int:
    """Operations of one image's forward pass at `image_size` pixels a side (the training size unless given)."""
    tokens, dim = ((image_size or config.image_size) // config.patch_size) ** 2, config.dim
    pooled = dim * (4 if config.pooling == "corners" else 1)
    products = tokens * config.patch_size**2 * config.channels * dim + pooled * config.classes  # embedding and head
    tokens += config.pooling == "class_token"
    for mode in config.modes:
        block = tokens * dim * dim * (4 + 2 * config.mlp_ratio) + 2 * tokens**2 * dim  # linear maps, mixing
        if mode != "attention":
            inputs = (0 if config.stm_bias_only else 3 if mode == "P" else 7) + (4 * config.heads if mode == "P" else 0)
            block += tokens * dim * inputs + GATING_PRODUCTS[mode] * config.heads * tokens**2
        products += config.depth // len(config.modes) * block
    return 2 * products
