"""Training: state, steps, schedules, checkpoints, and what a run reports."""
