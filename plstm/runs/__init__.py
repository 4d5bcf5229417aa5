"""Runs as a user handles them: the command line, folders, sessions, weights, fine-tuning, pictures."""
