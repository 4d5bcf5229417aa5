"""Compile training steps for a GPU without a GPU, and report their memory and what their devices exchange.

    python scripts/gpu_report.py                                        # the cases below
    python scripts/gpu_report.py imagenet/plstm --devices 8 optim.batch_size=1024

XLA compiles the real step ahead of time for a described H100: what its `memory_analysis` and the text of the program
say holds for that program. Its `cost_analysis` is empty without a device, so bytes and times need a GPU.
Needs the compiler: make setup EXTRA=gpu-report. Without an experiment it writes results/benchmarks/gpu-memory.json.
"""

import math
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it says that there is no driver

import jax
from flax import nnx
from jax.experimental import topologies

from plstm.config import Config
from plstm.errors import UserError, run_script
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.common import Parser, batch_shapes, machine_folder, planned_bytes, positive, write_results

# XLA chooses between cuBLAS and Triton products by trying them on the GPU; without one, it takes cuBLAS.
OPTIONS = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
GPU = "NVIDIA H100 80GB HBM3"
TARGET = f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 core_count: 132 threads_per_core_limit: 2048 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 l2_cache_size: 52428800
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000 device_memory_size: 84942979072 cuda_compute_capability {{major: 9}}
}} platform_name: "CUDA" device_description_str: "{GPU}"
dnn_version_info {{major: 9 minor: 10}} runtime_version {{major: 12 minor: 9 patch: 0}}"""  # a GpuTargetConfigProto
STUDENT = [  # of a Transformer as large as the models of code/paper, with the paper's context, window and sinks
    "data.name=toy",
    "data.context=4096",
    "model.window=512",
    "model.sinks=4",
    "model.dim=1024",
    "model.heads=16",
    "model.mlp_width=2752",
    "optim.batch_size=64",
    f"model.blocks=[{','.join(['window_mlstm', 'gated_mlp'] * 24)}]",
]
CASES: list[tuple[str, int, list[str]]] = [  # experiment, devices, overrides
    ("imagenet/plstm", 1, ["optim.batch_size=1024"]),
    ("imagenet/vit", 1, ["optim.batch_size=1024"]),
    ("imagenet/plstm", 1, ["optim.batch_size=1024", "model.method=fused"]),
    ("imagenet/plstm", 1, ["optim.batch_size=1024", "model.remat=false"]),
    ("imagenet/plstm", 16, ["variant=size_b"]),
    ("arrow/plstm", 1, []),
    ("arrow/plstm", 8, []),
    ("code/paper", 32, ["data.name=toy"]),
    ("code/distill", 8, STUDENT),
    ("series/paper", 4, ["data.name=toy", "data.bank=64"]),
]
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$", re.MULTILINE)
LOOP = re.compile(r' while\(.*body=%?([\w.-]+).*?(?:known_trip_count":\{"n":"(\d+)"|$)', re.MULTILINE)
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
COLLECTIVE = re.compile(rf" = (.+) ({KINDS})(?:-done)?\(")


def gpu_devices(count: int) -> list[Any]:
    """Descriptions of GPUs that XLA compiles for. UserError without a compiler."""
    jax.devices()  # finds the plugins
    try:
        return topologies.get_topology_desc(platform="cuda", target_config=TARGET, topology=f"1x1x{count}").devices
    except Exception as error:
        raise UserError("no compiler for GPUs here; install it: make setup EXTRA=gpu-report") from error


def compile_step(config: Config, devices: int) -> Any:
    """The compiled training step of an experiment; nothing is run. UserError without a compiler."""
    layout = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp, gpu_devices(devices)))
    task = TASKS[config.task](config)

    def schedule(step: jax.Array) -> float:
        return 1e-3

    def place(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    optimizer = build_optimizer(config.optim, schedule)
    with mock.patch.object(jax, "default_backend", lambda: "gpu"):
        model = nnx.eval_shape(lambda: task.build_model(0))
        state = nnx.eval_shape(lambda: init_state(model, optimizer))
        graphdef = nnx.graphdef(model)
        step = make_train_step(graphdef, optimizer, schedule, task.loss, layout=layout, only=config.optim.only)
        state = jax.tree.map(place, state, layout.state(state))
        batch = jax.tree.map(lambda leaf: place(leaf, layout.rows), batch_shapes(task))
        key = place(jax.eval_shape(lambda: jax.random.key(0)), layout.copies)
        return step.lower(state, batch, key).compile(OPTIONS)


def collectives(text: str) -> dict[str, dict[str, int]]:
    """How often the optimised program runs each kind of collective, and the numbers and bytes that each device gets;
    what stands in a loop counts as often as the loop runs."""
    starts = [*COMPUTATION.finditer(text)]
    ends = [start.start() for start in starts[1:]] + [len(text)]
    bodies = {start[1]: text[start.end() : end] for start, end in zip(starts, ends, strict=True)}
    times = Counter(dict.fromkeys(bodies, 1))
    for name, body in reversed(bodies.items()):  # callers stand after what they call
        for called, count in LOOP.findall(body):
            times[called] *= times[name] * int(count or 1)
    found: dict[str, Counter[str]] = {}
    for name, body in bodies.items():
        for shape, kind in COLLECTIVE.findall(body):
            arrays = re.findall(rf"\b({'|'.join(WIDTHS)})\[([\d,]*)\]", shape)
            sizes = [
                (math.prod(int(side) for side in sides.split(",") if side), WIDTHS[dtype]) for dtype, sides in arrays
            ]
            row = found.setdefault(kind, Counter())
            row["count"] += times[name]
            row["elements"] += times[name] * sum(size for size, _ in sizes)
            row["bytes"] += times[name] * sum(size * width for size, width in sizes)
    return {kind: dict(row) for kind, row in found.items()}


def report(experiment: str, devices: int, overrides: list[str]) -> dict[str, Any]:
    """One compiled step, printed and as a row; sizes are those of one device."""
    config = compose_experiment(experiment, *overrides)
    compiled = compile_step(config, devices)
    row = {"experiment": experiment, "gpu": GPU, "devices": devices, "overrides": overrides}
    row |= {"batch": config.optim.batch_size, "memory_bytes": planned_bytes(compiled)}
    row["collectives"] = collectives(compiled.as_text())
    what = [f"{one['count']} {kind} of {one['bytes'] / 1e6:.1f} MB" for kind, one in row["collectives"].items()]
    size = f"{row['memory_bytes'] / 2**30:.2f} GiB a device"
    print(" ".join([experiment, *overrides]), f"on {devices}", size, *what, sep="; ", flush=True)
    return row


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("experiment", nargs="?", help="a file of configs/experiment")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    parser.add_argument("--devices", type=positive, help="of an experiment (default: 1)")
    parser.add_argument("--out", type=Path, help="(default: results/benchmarks/gpu-memory.json, for no experiment)")
    options = parser.parse_intermixed_args()
    if options.devices and not options.experiment:
        parser.error("--devices: is of one experiment; name it")
    cases = [(options.experiment, options.devices or 1, options.overrides)] if options.experiment else CASES
    rows = [report(*case) for case in cases]
    usual = None if options.experiment else machine_folder("results") / "benchmarks/gpu-memory.json"
    if out := options.out or usual:
        write_results(out, {"rows": rows})
        print(f"Written to {out}")


if __name__ == "__main__":
    run_script(main)
