"""pLSTM: parallelizable linear source transition mark networks (arXiv 2506.11997) in JAX, with their experiments."""

__version__ = "0.1.0"
