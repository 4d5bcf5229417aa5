"""Counting of GPU programs: on a program written by hand, and on real ones where the compiler for GPUs is installed."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

from plstm.errors import UserError
from plstm.ops.grid import GridGates, plstm2d
from plstm.runs.experiments import compose_experiment
from plstm.tasks import TASKS
from plstm.training.meshes import MIN_SPLIT
from scripts.benchmarks.gpu_program import GPUS, compile_step, count, part_of
from scripts.benchmarks.hlo import ARRAY, Module, count_elements

HAS_COMPILER = importlib.util.find_spec("jax_cuda12_plugin") is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="make setup EXTRA=gpu-report")
CUBLAS = "(bf16[8,8]{1,0}, s8[4096]{0})"  # a result and a workspace, which is not counted
TEXT = (Path(__file__).parent / "program.hlo").read_text()


def test_kernels_count_as_often_as_their_loop_runs_and_move_what_they_use():
    kernels = {(kernel.kind, kernel.shape): kernel for kernel in Module(TEXT).kernels()}
    found = {key: (kernel.times, kernel.read, kernel.written) for key, kernel in kernels.items()}
    assert found == {
        ("fill", "f32[6,10,10]{2,1,0}"): (1, 0, 2400),
        ("elementwise", "f32[10,10]{1,0}"): (6, 400, 400),  # of 24,000 bytes the slice
        ("product", "f32[10,10]{1,0}"): (6, 800, 400),
        ("stack a layer's residual", "f32[6,10,10]{2,1,0}"): (6, 404, 400),  # in place; 4 bytes of index
        ("product", "f32[4,4]{1,0}"): (1, 128, 64),
        ("product", CUBLAS): (1, 128, 128),
        ("all-reduce", "f32[4,4]{1,0}"): (1, 64, 64),
    }
    looped, exact, half = (kernels["product", shape] for shape in ("f32[10,10]{1,0}", "f32[4,4]{1,0}", CUBLAS))
    assert [(kernel.flops, kernel.precision) for kernel in (looped, exact, half)] == [
        (2000, "tf32"), (128, "f32"), (512, "bf16"),
    ]  # fmt: skip
    assert looped.functions == ["Linear.__call__", "MLP.__call__", "make_train_step.<locals>.train_step"]
    assert part_of(looped) == "MLP"


@pytest.mark.skipif(HAS_COMPILER, reason="here it is")
def test_without_the_compiler_one_line_says_what_to_install():
    with pytest.raises(UserError, match="make setup EXTRA=gpu-report"):
        compile_step(compose_experiment("arrow/plstm"), GPUS["H100"], 1)


@needs_compiler
@pytest.mark.parametrize("structure", ["shared_incoming", "d_mode"])
@pytest.mark.parametrize("method", ["parallel", "chunkwise", "recurrent", "fused"])
def test_every_form_of_the_operator_and_its_gradients_compile_for_a_gpu(method, structure, monkeypatch):
    jax.devices()
    topology = topologies.get_topology_desc(platform="cuda", target_config=GPUS["H100"].target, topology="1x1x1")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    place = SingleDeviceSharding(topology.devices[0])
    array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=place)  # noqa: E731
    tokens, gate = array(2, 2, 6, 5, 16), array(2, 2, 4, 6, 5, dtype=jnp.float32)
    arguments = tokens, tokens, tokens, GridGates(*[gate] * 8), array(2, 2, 6, 5, dtype=jnp.float32)

    def loss(*arguments):
        return plstm2d(*arguments, method=method, structure=structure).astype(jnp.float32).sum()

    device = AbstractDevice(device_kind=GPUS["H100"].name, platform="gpu", num_cores=None)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4))).lower(*arguments).compile()
    assert sum(kernel.bytes for kernel in Module(compiled.as_text()).kernels()) > 0


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("method", "fsdp"), [("auto", 1), ("parallel", 1), ("chunkwise", 1), ("auto", 8)])
def test_eight_devices_exchange_nothing_but_gradients_and_split_parameters(method, fsdp):
    """With both modes of pLSTM, and mixup on. Each number of a parameter is exchanged once in each direction."""
    shrunk = ["optim.batch_size=1024", "model.depth=2", "data.size=64", "model.image_size=64", f"model.method={method}"]
    config = compose_experiment("imagenet/plstm_t", *shrunk, f"mesh.fsdp={fsdp}")
    exchanged = dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter"), 0)
    for one in count(compile_step(config, GPUS["H100"], 8), GPUS["H100"])["collectives"]:
        exchanged[one["kind"]] += one["times"] * sum(count_elements(sides) for _, sides in ARRAY.findall(one["shape"]))
    model = nnx.eval_shape(lambda: TASKS["imagenet"](config).build_model(0))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    split = sum(size for size in sizes if size >= MIN_SPLIT) if fsdp > 1 else 0
    assert exchanged["all-gather"] == exchanged["reduce-scatter"] == split * 9 / 8  # the whole and a device's part
    assert 0 <= exchanged["all-reduce"] - (sum(sizes) - split) < 200  # metrics and norms


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides"), [("plstm_t", []), ("plstm_t", ["model.method=parallel"]), ("vit_t", [])]
)
def test_only_gates_and_the_head_multiply_float32_and_in_full_precision(name, overrides):
    shrunk = ["optim.batch_size=128", "model.depth=2", "data.size=64", "model.image_size=64"]
    compiled = compile_step(compose_experiment(f"imagenet/{name}", *shrunk, *overrides), GPUS["H100"], 1)
    products = [kernel for kernel in Module(compiled.as_text()).kernels() if kernel.flops]
    assert {kernel.precision for kernel in products} == {"bf16", "f32"}
    exact = [kernel for kernel in products if kernel.precision == "f32"]
    parts = [part_of(kernel) for kernel in exact]
    assert set(parts) - {"gates", "gating matrix"} == {"mixing and loss"}  # where the model calls its head
    assert parts.count("mixing and loss") == 3


@needs_compiler
@pytest.mark.slow
def test_the_program_of_a_full_size_step_costs_at_most_what_docs_say():
    """docs/speed.md, of one H100, 192 pixels, bfloat16, as an experiment's defaults give it."""
    plstm, vit = (
        count(
            compile_step(compose_experiment(f"imagenet/{name}_t", "optim.batch_size=1024"), GPUS["H100"], 1),
            GPUS["H100"],
        )
        for name in ("plstm", "vit")
    )
    assert plstm["memory_bytes"] < 6 * 2**30 and plstm["kernels"] <= 2600
    assert plstm["bytes"] < 1.35 * vit["bytes"]
