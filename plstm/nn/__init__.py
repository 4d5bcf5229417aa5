"""flax.nnx layers: gates, mixers, recurrent cells, feature maps, and what models share."""
