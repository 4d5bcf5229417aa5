"""The GPU program of a training step, compiled and counted without a GPU.

    python scripts/benchmarks/gpu_program.py                                     # the cases of docs/speed.md
    python scripts/benchmarks/gpu_program.py imagenet/plstm_t --gpu H200 --devices 8 optim.batch_size=1024

XLA compiles the real step ahead of time for a described GPU. Memory, kernels, bytes and collectives are those of that
program. Times are a roofline: each kernel takes 3 us and the longer of its bytes at 85% of the memory's bandwidth and
its products at 60% (bfloat16), 50% (TF32) and 60% (float32) of the peak. Real programs are tuned on the device, which
this one is not; expect +-30%. Needs the compiler: make setup EXTRA=gpu-report.
Without an experiment it writes results/benchmarks/gpu-program.json.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it says that there is no driver

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies

from plstm.config import Config
from plstm.errors import UserError, run_script
from plstm.runs.experiments import compose_experiment
from plstm.tasks import TASKS
from plstm.training.meshes import Layout, make_mesh
from plstm.training.optimizers import build_optimizer
from plstm.training.steps import init_state, make_train_step
from scripts.benchmarks.hlo import COLLECTIVES, Kernel, Module
from scripts.common import ROOT, Parser, positive, write_results

LAUNCH_SECONDS = 3e-6
# XLA chooses between cuBLAS and Triton products by trying them on the GPU; without one, it takes cuBLAS.
OPTIONS = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}


@dataclass(frozen=True)
class Gpu:
    """What a compiler and a roofline need to know of a GPU; compute capability 9.0."""

    name: str
    memory: int  # bytes
    bandwidth: float  # bytes a second
    flops: dict[str, float]  # a second that large products reach

    @property
    def target(self) -> str:
        """XLA's description, `GpuTargetConfigProto` in text form."""
        limits = {"threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49152}
        limits |= {"shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448, "core_count": 132}
        limits |= {"threads_per_core_limit": 2048, "fpus_per_core": 128, "block_dim_limit_x": 2147483647}
        limits |= {"block_dim_limit_y": 65535, "block_dim_limit_z": 65535, "l2_cache_size": 52428800}
        limits |= {"registers_per_core_limit": 65536, "registers_per_block_limit": 65536, "clock_rate_ghz": 1.98}
        limits |= {"memory_bandwidth": int(self.bandwidth), "device_memory_size": self.memory}
        info = " ".join(f"{key}: {value}" for key, value in limits.items())
        versions = "dnn_version_info {major: 9 minor: 10} runtime_version {major: 12 minor: 9 patch: 0}"
        name = f'platform_name: "CUDA" device_description_str: "{self.name}"'
        return f"gpu_device_info {{{info} cuda_compute_capability {{major: 9}}}} {name} {versions}"


PEAKS = {"bf16": 0.6 * 989e12, "tf32": 0.5 * 494e12, "f32": 0.6 * 67e12}
GPUS = {
    "H100": Gpu("NVIDIA H100 80GB HBM3", 84_942_979_072, 3.35232e12, PEAKS),
    "H200": Gpu("NVIDIA H200", 150_754_820_096, 4.8e12, PEAKS),
}
CASES: list[tuple[str, int, list[str]]] = [  # experiment, devices, overrides
    ("imagenet/plstm_t", 1, ["optim.batch_size=1024"]),
    ("imagenet/vit_t", 1, ["optim.batch_size=1024"]),
    ("imagenet/plstm_t", 1, ["optim.batch_size=1024", "model.method=parallel"]),
    ("imagenet/plstm_t", 1, ["optim.batch_size=1024", "model.remat=false"]),
    ("imagenet/plstm_t", 1, ["optim.batch_size=1024", "data.size=224", "model.image_size=224"]),
    ("imagenet/plstm_t", 8, []),
    ("imagenet/plstm_b", 16, []),
    ("imagenet/vit_b", 16, []),
    ("arrow/plstm", 1, []),
    ("arrow/vit", 1, []),
    ("arrow/plstm", 8, []),
]
# The part of a model or step that a kernel belongs to: the first function here that it was written in.
PARTS = {
    "gates": ("PModeGates", "DModeGates", "GroupedGates", "Orientation"),
    "gated product": ("attend",),
    "gating matrix": ("plstm2d",),
    "attention": ("AttentionMixer",),
    "projections and head norm": ("PLSTMMixer", "QueryKeyValue"),
    "MLP": ("MLP",),
    "norms and residuals": ("RMSNorm", "LayerNorm", "Block.", "VisionModel.pool"),
    "patches": ("PatchEmbedding", "VisionModel.embed"),
    "loop over layers": ("VisionModel.apply_blocks",),
    "mixing and loss": ("ImageNetTask", "VisionTask", "mix"),
    "optimizer": ("make_train_step.<locals>.train_step",),
}


def compile_step(config: Config, gpu: Gpu, devices: int) -> Any:
    """The compiled training step of an image experiment, nothing run and nothing read. UserError without a compiler."""
    jax.devices()  # finds the plugins
    try:
        topology = topologies.get_topology_desc(platform="cuda", target_config=gpu.target, topology=f"1x1x{devices}")
    except Exception as error:
        raise UserError("no compiler for GPUs here; install it: make setup EXTRA=gpu-report") from error
    task, optimizer = TASKS[config.task](config), build_optimizer(config.optim, schedule := lambda step: 1e-3)
    layout = Layout(make_mesh(config.optim.batch_size, config.mesh.fsdp, topology.devices))
    with mock.patch.object(jax, "default_backend", lambda: "gpu"):
        model = nnx.eval_shape(lambda: task.build_model(0))
        graphdef, state = nnx.graphdef(model), nnx.eval_shape(lambda: init_state(model, optimizer)[1])
        step = make_train_step(graphdef, optimizer, schedule, task.loss, layout=layout)
        place = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # noqa: E731
        state = jax.tree.map(place, state, layout.state(state))
        batch = {name: place(leaf, layout.rows) for name, leaf in batch_shapes(config).items()}
        key = place(jax.eval_shape(lambda: jax.random.key(0)), layout.copies)
        return step.lower(state, batch, key).compile(OPTIONS)


def batch_shapes(config: Config) -> dict[str, jax.ShapeDtypeStruct]:
    count, side = config.optim.batch_size, config.data.size
    image = (count, side * side // 8) if config.task == "arrow" else (count, side, side, 3)
    return {"image": jax.ShapeDtypeStruct(image, jnp.uint8), "label": jax.ShapeDtypeStruct((count,), jnp.int32)}


def part_of(kernel: Kernel) -> str:
    for function in kernel.functions:
        for part, prefixes in PARTS.items():
            if function.startswith(prefixes):
                return part
    return "loop over layers" if kernel.kind == "fill" else "other"


def seconds(kernel: Kernel, gpu: Gpu) -> float:
    moved = (kernel.read + kernel.written) / (0.85 * gpu.bandwidth)
    computed = kernel.flops / gpu.flops.get(kernel.precision, gpu.flops["f32"]) if kernel.flops else 0
    return kernel.times * (LAUNCH_SECONDS + max(moved, computed))


def count(compiled: Any, gpu: Gpu) -> dict[str, Any]:
    """Memory in bytes, and sums over all kernels, by part, by kind, by precision of products, of collectives."""
    kernels, memory = list(Module(compiled.as_text()).kernels()), compiled.memory_analysis()
    peak = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    products = defaultdict(int)
    for kernel in kernels:
        if kernel.flops:
            products[kernel.precision] += kernel.times * kernel.flops
    collectives = [
        {"kind": kernel.kind, "shape": kernel.shape, "times": kernel.times, "bytes": kernel.times * kernel.written}
        for kernel in kernels
        if kernel.kind in COLLECTIVES
    ]
    return {
        "memory_bytes": peak - memory.alias_size_in_bytes,
        **totals(kernels, gpu),
        "parts": grouped(kernels, gpu, part_of),
        "kinds": grouped(kernels, gpu, lambda kernel: kernel.kind),
        "product_flops": dict(products),
        "collectives": collectives,
    }


def totals(kernels: list[Kernel], gpu: Gpu) -> dict[str, float]:
    return {
        "bytes": sum(kernel.bytes for kernel in kernels),
        "kernels": sum(kernel.times for kernel in kernels),
        "seconds": sum(seconds(kernel, gpu) for kernel in kernels),
    }


def grouped(kernels: list[Kernel], gpu: Gpu, key: Any) -> dict[str, dict[str, float]]:
    groups = defaultdict(list)
    for kernel in kernels:
        groups[key(kernel)].append(kernel)
    found = {name: totals(group, gpu) for name, group in groups.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def report(experiment: str, devices: int, gpu_name: str, overrides: list[str]) -> dict[str, Any]:
    """One compiled step, printed and as a row."""
    row = {"experiment": experiment, "gpu": gpu_name, "devices": devices, "overrides": overrides}
    config, gpu = compose_experiment(experiment, *overrides), GPUS[gpu_name]
    row |= {"batch": config.optim.batch_size} | count(compile_step(config, gpu, devices), gpu)
    print("\n".join(lines_of(row)), flush=True)
    return row


def lines_of(row: dict[str, Any]) -> Iterator[str]:
    what = " ".join([row["experiment"], *row["overrides"]])
    yield f"\n{what}: {row['batch']} images on {row['devices']} x {row['gpu']}"
    yield f"  memory {row['memory_bytes'] / 2**30:.1f} GiB a device"
    for title, groups in (("by part", row["parts"]), ("by kind", row["kinds"])):
        yield f"  {title:28}{'GB':>9}{'kernels':>9}{'ms':>9}"
        for name, own in {**groups, "all": row}.items():
            yield f"    {name:26}{own['bytes'] / 1e9:9.2f}{own['kernels']:9,}{own['seconds'] * 1e3:9.2f}"
    flops = ", ".join(f"{name} {value / 1e12:.2f}" for name, value in row["product_flops"].items())
    yield f"  products, TFLOP: {flops}"
    for one in row["collectives"]:
        yield f"  {one['times']:3} x {one['kind']} {one['shape'][:70]}: {one['bytes'] / 1e6:.1f} MB"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("experiment", nargs="?", help="a file of configs/experiment that trains on images")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    parser.add_argument("--gpu", choices=list(GPUS), default="H100")
    parser.add_argument("--devices", type=positive, default=1)
    parser.add_argument("--out", type=Path, help="(default: results/benchmarks/gpu-program.json, for no experiment)")
    options = parser.parse_args()
    cases = [(options.experiment, options.devices, options.overrides)] if options.experiment else CASES
    rows = [report(experiment, devices, options.gpu, overrides) for experiment, devices, overrides in cases]
    usual = None if options.experiment else ROOT / "results/benchmarks/gpu-program.json"
    if out := options.out or usual:
        write_results(out, {"rows": rows})
        print(f"Written to {out}")


if __name__ == "__main__":
    run_script(main)
