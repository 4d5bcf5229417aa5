"""flax.nnx layers: gates, the mixer of graphs, and what models share."""
