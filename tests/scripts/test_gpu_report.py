"""The report on GPU programs: on a text written by hand, and on real ones where the compiler for GPUs is installed."""

import importlib.util

import jax
import pytest
from flax import nnx

from plstm.errors import UserError
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from plstm.training.meshes import MIN_SPLIT
from scripts.gpu_report import collectives, compile_step

HAS_COMPILER = importlib.util.find_spec("jax_cuda12_plugin") is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="make setup EXTRA=gpu-report")
TEXT = """
%body (carry: (s32[], f32[6,10])) -> (s32[], f32[6,10]) {
  %part = bf16[10]{0} fusion(%inputs), kind=kLoop, calls=%fused_slice
  %whole-start = (bf16[10]{0}, bf16[20]{0}) all-gather-start(%part), dimensions={0}
  %whole = bf16[20]{0} all-gather-done(%whole-start)
}

%outer (carry: (s32[], f32[6,10])) -> (s32[], f32[6,10]) {
  %while = (s32[], f32[6,10]{1,0}) while(%tuple), condition=%d, body=%body, config={"known_trip_count":{"n":"3"}}
}

ENTRY %main (p: f32[4,4]) -> f32[4,4] {
  %while = (s32[], f32[6,10]{1,0}) while(%tuple), condition=%c, body=%outer, config={"known_trip_count":{"n":"2"}}
  %sum = (f32[4,4]{1,0}, f32[]) all-reduce(%p, %q), to_apply=%add
}
"""


def test_collectives_count_as_often_as_their_loop_runs():
    assert collectives(TEXT) == {
        "all-gather": {"count": 6, "elements": 120, "bytes": 240},
        "all-reduce": {"count": 1, "elements": 17, "bytes": 68},
    }


@pytest.mark.skipif(HAS_COMPILER, reason="here it is")
def test_without_the_compiler_one_line_says_what_to_install():
    with pytest.raises(UserError, match="make setup EXTRA=gpu-report"):
        compile_step(compose_experiment("arrow/plstm"), 1)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("method", "fsdp"), [("fused", 1), ("parallel", 1), ("chunkwise", 1), ("fused", 8)])
def test_eight_devices_exchange_nothing_but_gradients_and_split_parameters(method, fsdp):
    """With both modes of pLSTM, and mixup on. Each number of a parameter is exchanged once in each direction."""
    shrunk = ["optim.batch_size=1024", "model.depth=2", "data.size=64", "model.image_size=64", f"mesh.fsdp={fsdp}"]
    config = compose_experiment("imagenet/plstm", *shrunk)
    model = nnx.eval_shape(lambda: TASKS["imagenet"](config).build_model(0))
    config = compose_experiment("imagenet/plstm", *shrunk, f"model.method={method}")
    found = collectives(compile_step(config, 8).as_text())
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    split = sum(size for size in sizes if size >= MIN_SPLIT) if fsdp > 1 else 0
    exchanged = {kind: found.get(kind, {}).get("elements", 0) for kind in ("all-gather", "reduce-scatter")}
    assert exchanged == {"all-gather": split, "reduce-scatter": split / 8}  # the whole, and a device's part
    assert 0 <= found["all-reduce"]["elements"] - (sum(sizes) - split) < 200  # metrics and norms


@needs_compiler
@pytest.mark.slow
def test_a_full_size_step_fits_small_gpus():
    """docs/speed.md: as an experiment's defaults give it, with recomputed blocks."""
    compiled = compile_step(compose_experiment("imagenet/plstm", "optim.batch_size=1024"), 1)
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * 2**30
