"""Runs as a user handles them: the command line, folders, weights, fine-tuning, compute cost."""
