"""flax.nnx layers: gates, mixers, and the blocks around them."""
