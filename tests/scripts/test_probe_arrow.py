"""Altered images: the geometry's label is the data's own, and each alteration changes what it says it does; and what a
run says of images on other canvases. Whole probes are in tests/test_runs.py."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from data.arrow_pointing.geometry import DISTRIBUTIONS, Arrow, ArrowVariant, Canvas, render, sample_parameters
from plstm.errors import UserError
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from scripts import probe_arrow
from scripts.probe_arrow import NO_CIRCLE, PROBES, draw_geometries, score, true_label

CANVAS = Canvas()


@pytest.fixture(scope="module")
def arrows() -> Arrow:
    return sample_parameters(np.random.default_rng(0), 5_000, CANVAS)


def one(arrows: Arrow, n: int) -> Arrow:
    return Arrow(*(value[n].item() for value in arrows))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("canvas", [CANVAS, Canvas(384), Canvas(48, 0.25)])
def test_the_label_of_the_data_is_the_geometry_s(canvas, distribution):
    arrows = sample_parameters(np.random.default_rng(1), 20_000, canvas, distribution)
    np.testing.assert_array_equal(true_label(arrows), arrows.label)


def test_turning_an_arrow_that_points_at_the_circle_makes_it_point_past(arrows):
    turned = PROBES["arrow reversed"](arrows, CANVAS)
    assert (turned.label[arrows.label == 1] == 0).all()
    assert 0 < (turned.label == 1).sum() < (arrows.label == 0).sum()
    np.testing.assert_allclose(np.cos(turned.phi), -np.cos(arrows.phi), atol=1e-12)


def test_another_image_s_circle_takes_its_size_along(arrows):
    exchanged = PROBES["circle of another image"](arrows, CANVAS)
    np.testing.assert_array_equal(exchanged.radius[:-1], arrows.radius[1:])
    np.testing.assert_array_equal(exchanged.phi, arrows.phi)
    assert {-1, 0, 1} == set(exchanged.label.tolist())
    assert (exchanged.label == 1).mean() < 0.2  # the arrow no longer knows


def test_without_the_circle_only_the_arrow_is_drawn(arrows):
    bare = PROBES[NO_CIRCLE](arrows, CANVAS)
    np.testing.assert_array_equal(bare.label, arrows.label)
    for n in range(5):
        kept, whole = render(one(bare, n), CANVAS), render(one(arrows, n), CANVAS)
        assert (kept == 0).sum() + 0.8 * np.pi * arrows.radius[n] ** 2 < (whole == 0).sum()
        assert (whole[kept == 0] == 0).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_run_is_probed_on_its_own_test_images(distribution):
    for factor, split in ((1, "test"), (2, "test_ext")):
        drawn = draw_geometries(Canvas(48 * factor, 0.25), Canvas(48, 0.25), 10, distribution)
        assert [one(drawn, n) for n in range(10)] == list(
            ArrowVariant(44, 48, 0.25, distribution=distribution).arrows(split, 10)
        )


def test_the_area_under_the_roc_curve_does_not_depend_on_the_threshold():
    rng = np.random.default_rng(4)
    labels = rng.integers(-1, 2, 300)
    evidence = np.round(labels + rng.normal(size=300), 1)  # some are equal
    at, past = evidence[labels == 1, None], evidence[labels == 0]
    scores, shifted = score(evidence, labels), score(evidence - 2, labels)
    naive = ((at > past) + (at == past) / 2).mean()
    assert scores["area_under_roc"] == shifted["area_under_roc"] == pytest.approx(naive, abs=1e-5)
    assert scores["accuracy"] > shifted["accuracy"] + 0.1 and scores["answered_at"] > shifted["answered_at"] + 0.3
    assert scores["balanced_accuracy"] == pytest.approx(((at > 0).mean() + (past <= 0).mean()) / 2, abs=1e-5)
    assert score(evidence[labels == 1], labels[labels == 1])["area_under_roc"] is None


@pytest.fixture
def untrained(monkeypatch):
    """Function of an experiment and overrides: any run that is looked for is one of it that has not been trained."""

    def use(experiment: str, *overrides: str) -> None:
        config = compose_experiment(experiment, "optim.batch_size=3", *overrides)
        model = TASKS["arrow"](config).build_model(jax.random.key(0))
        model.info = SimpleNamespace(weights_id="untrained")
        monkeypatch.setattr(probe_arrow, "config_of", lambda source, runs: config)
        monkeypatch.setattr(probe_arrow, "from_checkpoint", lambda source, runs: model)

    return use


@pytest.mark.parametrize("size", [44, 50])  # too small for the objects; no multiple of a patch
def test_a_size_that_cannot_be_is_refused_before_any_is_probed(untrained, tmp_path, size):
    untrained("arrow_48/vit")
    options = SimpleNamespace(runs=Path(), results=tmp_path, count=5, sizes=[size])
    with pytest.raises(UserError, match=f"^--sizes {size}: "):
        probe_arrow.probe("a run", options)
    assert not list(tmp_path.iterdir())


def test_a_model_with_statistics_answers_on_a_canvas_larger_than_that_of_its_training(untrained):
    untrained("arrow_48/efficientnet", "model.stages=[[3,1,1,2,8]]")
    *_, answer = probe_arrow.load_answer("a run", Path())
    canvas = Canvas(64, 0.25)
    evidence = answer(draw_geometries(canvas, Canvas(48, 0.25), 5, "paper"), canvas)
    assert np.isfinite(evidence).all() and len(np.unique(evidence)) == 5


def test_a_table_asks_for_the_runs_that_are_here_and_not_probed(monkeypatch, tmp_path, capsys):
    runs = [SimpleNamespace(id=name, name="a-s43") for name in ("probed", "again", "gone", "here")]
    monkeypatch.setattr(probe_arrow, "probed_cells", lambda *_: {"pLSTM": SimpleNamespace(runs=runs)})
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes/a-s43-probed.json").touch()
    (tmp_path / "probes/a-s43-again-retrained.json").touch()
    (tmp_path / "here/checkpoints").mkdir(parents=True)
    assert probe_arrow.shown_runs("arrow-48", tmp_path, tmp_path) == ["here"]
    assert "weights are not in" in (said := capsys.readouterr().out) and said.rstrip().endswith(": gone")
