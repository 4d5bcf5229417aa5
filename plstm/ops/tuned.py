"""Which form of the 2-D operator is fastest, by backend: written by `scripts/benchmark.py tune`, not by hand.

`forms`: by structure, the form of the gating matrix for few and for many entries of the leading axes (from `plstm.ops.
grid.SHORTEST_BATCH`). `chunkwise_from`: by structure and head size (the root of d_k d_v), the nodes from which the
chunkwise form is faster; None where it was not up to the largest grid that was measured. `measured`: the times.
"""

TABLE = {'cpu': {'chunkwise_from': {'general': {64: 1882}, 'no_ru': {64: None}, 'rank_one': {64: None}},
         'forms': {'general': ['source_scan', 'source_scan'],
                   'no_ru': ['batch_minor', 'batch_minor'],
                   'rank_one': ['batch_minor', 'batch_minor']},
         'measured': 'results/benchmarks/tune-cpu.json'}}
