"""Data sets: what they are, how they are prepared and read, and how they become batches."""
