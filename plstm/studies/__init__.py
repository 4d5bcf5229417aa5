"""Finished runs and those planned: records, curves, tables, figures, sweeps, pages."""
