"""What a run says of images on other canvases. Whole probes are in tests/test_runs.py."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from data.arrow_pointing.geometry import Canvas
from plstm.errors import UserError
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from scripts import probe_arrow
from scripts.probe_arrow import draw_geometries


@pytest.fixture
def untrained(monkeypatch):
    """Function of an experiment: any run that is looked for is one of it that has not been trained."""

    def use(experiment: str) -> None:
        config = compose_experiment(experiment, "optim.batch_size=3")
        build = TASKS["arrow"](config).build_model
        monkeypatch.setattr(probe_arrow, "find_run", lambda run, runs: runs)
        monkeypatch.setattr(probe_arrow, "load_config", lambda folder: config)
        monkeypatch.setattr(probe_arrow, "from_checkpoint", lambda _: build(jax.random.key(0)))

    return use


@pytest.mark.parametrize("size", [44, 50])  # too small for the objects; no multiple of a patch
def test_a_size_that_cannot_be_is_refused_before_any_is_probed(untrained, tmp_path, size):
    untrained("arrow_48/vit")
    options = SimpleNamespace(runs=Path(), results=tmp_path, out=None, count=5, sizes=[size])
    with pytest.raises(UserError, match=f"^--sizes {size}: "):
        probe_arrow.probe("a run", options)
    assert not list(tmp_path.iterdir())


def test_a_model_with_statistics_answers_on_a_canvas_larger_than_that_of_its_training(untrained):
    untrained("arrow_48/efficientnet")
    *_, answer = probe_arrow.load_answer("a run", Path())
    canvas = Canvas(64, 0.25)
    evidence = answer(draw_geometries(canvas, Canvas(48, 0.25), 5, "paper"), canvas)
    assert np.isfinite(evidence).all() and len(np.unique(evidence)) == 5


def test_a_table_asks_for_the_runs_that_are_here_and_not_probed(monkeypatch, tmp_path, capsys):
    runs = [SimpleNamespace(id=name, name="a-s43") for name in ("probed", "again", "gone", "here")]
    chosen = SimpleNamespace(chosen=SimpleNamespace(runs=runs))
    monkeypatch.setattr(probe_arrow, "find_groups", lambda *_: [chosen])
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes/a-s43-probed.json").touch()
    (tmp_path / "probes/a-s43-again-retrained.json").touch()
    (tmp_path / "here/checkpoints").mkdir(parents=True)
    assert probe_arrow.shown_runs("arrow-48", tmp_path, tmp_path) == ["here"]
    assert "weights are not in" in (said := capsys.readouterr().out) and said.rstrip().endswith(": gone")
