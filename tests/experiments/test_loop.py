"""The loop of train.py: the host reads nothing from the device except where it logs or evaluates."""

from __future__ import annotations

import jax.numpy as jnp

from plstm.experiments.config import plain_config, run_id, to_config
from plstm.training.interrupt import Interrupt
from train import Training


def test_the_host_reads_from_the_device_at_log_points_only(composed, tmp_path, monkeypatch):
    folders = [f"data.root={tmp_path}", f"paths.runs={tmp_path}/runs", f"paths.results={tmp_path}/results"]
    tiny = ["debug=smoke", "model=vit_small", "model.dim=16", "model.heads=2", "logger.mode=disabled"]
    loop = ["optim.epochs=4", "loop.log_every=5", "loop.eval_every=1000"]
    config = to_config(composed("experiment=demo/vit", *tiny, *loop, *folders))
    run = run_id(plain_config(config))
    training = Training(config, run, tmp_path / "runs" / run, [], None)
    training.show_banner()

    array, reads = type(jnp.zeros(1)), []
    value = array._value  # what float(), int() and NumPy call for an array's numbers
    monkeypatch.setattr(array, "_value", property(lambda self: reads.append(training.step) or value.fget(self)))
    with Interrupt() as interrupt:
        training.run_loop(interrupt)
    training.checkpoints.close()
    training.tracker.finish(1)
    assert training.steps >= 12
    assert set(reads) == {*range(5, training.steps, 5), training.steps}
