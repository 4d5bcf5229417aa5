"""Finished runs: records, curves, tables, figures, sweeps. Knows records and no task."""
