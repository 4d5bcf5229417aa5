"""Data sets: their laws, TFDS builders and loading."""
