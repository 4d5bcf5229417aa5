"""Which form of the 2-D operator is fastest, by backend, as `scripts/benchmark.py tune` measured it.

`forms`: the form of the gating matrix, by structure. `chunkwise_from`: by structure and head size (the root of
d_k d_v), the number of nodes from which the chunkwise method is faster; None where it was not up to the largest grid
measured. `measured`: the times.
"""

TABLE = {
    "cpu": {
        "chunkwise_from": {"general": {64: 1882}, "no_ru": {64: None}, "rank_one": {64: None}},
        "forms": {"general": "source_scan", "no_ru": "batch_minor", "rank_one": "batch_minor"},
        "measured": "results/benchmarks/tune-cpu.json",
    }
}
