"""From finished runs to results: run records, sweeps, statistics over seeds, tables and figures."""
