"""Fine-tuning: which run a run starts from, and what becomes of its weights."""

import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from hydra import compose

import plstm
from plstm.config import Config
from plstm.errors import UserError
from plstm.models import GraphConfig, VisionConfig, build_model
from plstm.models.weights import read_info
from plstm.runs.cli import quote_ids
from plstm.runs.compose import to_config, to_eval_config
from plstm.runs.finetuning import adapt, check_start, initial_id, initial_weights
from plstm.runs.identity import run_id
from plstm.runs.session import Session
from plstm.runs.weights import from_checkpoint
from plstm.training.steps import named_leaves
from tests.models.vision_models import filled
from tests.runs.test_weights import save_run
from train import start

SMALL = ["debug=smoke", "model.dim=16", "model.heads=2", "model.depth=1", "optim.name=adamw"]
HERE = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])


@pytest.fixture(scope="module")
def pretraining(composed):
    return to_config(composed("experiment=imagenet_small/vit", *SMALL))


@pytest.fixture(scope="module")
def weights(pretraining):
    """Of step 8; those of step 16 are twice as large."""
    return nnx.state(build_model(pretraining.model, 0), nnx.Param)


@pytest.fixture(scope="module")
def trained(pretraining, weights, tmp_path_factory):
    """A finished pre-training with its best checkpoint before its last."""
    folder, twice = tmp_path_factory.mktemp("runs") / run_id(pretraining), jax.tree.map(lambda leaf: 2 * leaf, weights)
    save_run(folder, pretraining, {8: (weights, None, 0.9), 16: (twice, {"val": {"accuracy": 0.0}}, 0.1)})
    return folder


@pytest.fixture(scope="module")
def finetuning(composed, trained):
    """Function of more arguments: the config of a fine-tuning run at 64 pixels."""

    def make(*arguments) -> Config:
        start = [f"init_from={trained.name}", "data.size=64", f"paths.runs={trained.parent}"]
        return to_config(
            composed("experiment=imagenet_small/vit", "variant=finetune_small", *SMALL, *start, *arguments)
        )

    return make


def test_a_run_is_named_by_its_id_its_first_digits_or_its_folder_and_the_new_id_follows_it(
    trained, finetuning, tmp_path
):
    runs, elsewhere = trained.parent, shutil.copytree(trained, tmp_path / "my best run")
    for name in (trained.name, trained.name[:5], str(trained), str(elsewhere)):
        assert initial_id(name, runs) == trained.name
    other = "0123456789ab"
    assert initial_id(other, runs) == other  # its folder need not be here
    for name in ("no-such", "/no/such"):
        with pytest.raises(UserError, match=f"init_from={name}: no such run.*{trained.name}"):
            initial_id(name, runs)
    with pytest.raises(
        UserError, match="^init_from: name the run or the .safetensors file to fine-tune, init_from=<id, "
    ):
        initial_id("", runs)
    starts = ([], [f"init_from={other}"], ["init_checkpoint=best"])
    assert len({run_id(finetuning(*start)) for start in starts}) == 3


def test_a_file_is_named_by_its_weights_and_starts_as_its_run_does(finetuning, trained, tmp_path):
    file = tmp_path / "model.safetensors"
    plstm.save(from_checkpoint(trained), file, class_names=())
    renamed = shutil.copy(file, tmp_path / "renamed.safetensors")
    digest = read_info(file).sha256[:12]
    assert initial_id(str(file), trained.parent) == initial_id(str(renamed), trained.parent) == digest
    config = finetuning(f"init_from={file}")
    params = nnx.state(build_model(config.model, 99), nnx.Param)
    found, line = initial_weights(str(file), config, params, HERE)
    expected, _ = initial_weights(trained.name, config, params, HERE)
    jax.tree.map(np.testing.assert_array_equal, found["params"], expected["params"])
    assert line == f"the weights of {file}; position embedding 6 x 6 -> 8 x 8"

    for change, words in (
        ("model.dim=32", f"model.dim=32: {file} has 16; fine-tune with the same model"),
        ("init_checkpoint=best", "init_checkpoint=best: a weights file has one step only; leave it out"),
    ):
        with pytest.raises(UserError, match=f"^{words}$"):
            check_start(str(file), finetuning(change))
    plstm.save(build_model(GraphConfig(), 0, {"features": 2, "classes": 2}), file)
    with pytest.raises(UserError, match=f"^model.family=vision: {file} has graph"):
        check_start(str(file), config)
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match=f"^{file}: not a whole safetensors file"):
        initial_id(str(file), trained.parent)


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ("attention", "window_mlstm", True),  # a student of its teacher
        ("window_mlstm", "window_mlstm", True),
        ("gdn", "gdn_negative", False),  # these have the same parameters, which mean something else
        ("attention", "attention_nope", False),
        ("window_gdn", "window_gdn_negative", False),
        ("window", "attention", False),
    ],
)
def test_blocks_may_become_students_alone(composed, tmp_path, old, new, fits):
    def config(block):
        model = ["model.dim=16", "model.heads=2", f"model.blocks=[{block},gated_mlp]"]
        return to_config(composed("experiment=code/language", "model=code/transformer", "debug=smoke", *model))

    file = tmp_path / "model.safetensors"
    plstm.save(build_model(config(old).model, 0, {"vocabulary": 257, "classes": 256}), file)
    if fits:
        check_start(str(file), config(new))
        return
    with pytest.raises(UserError, match=rf"^model.blocks=\['{new}', 'gated_mlp'\]: {file} has \['{old}', "):
        check_start(str(file), config(new))


def test_a_training_starts_from_those_weights(finetuning, trained, weights, tmp_path, monkeypatch):
    class Seen(Exception):
        """The arguments of `Session.describe`, which comes before the first step."""

    def see(*arguments):
        raise Seen(*arguments)

    config = finetuning("data.size=48", "logger.mode=disabled", f"init_from={trained}", f"paths.results={tmp_path}")
    monkeypatch.setattr(Session, "describe", see)
    with pytest.raises(Seen) as seen:
        start(config, [], None)
    session, _, _, origin = seen.value.args
    assert origin == f"the weights of {trained}, step 16"
    jax.tree.map(lambda ours, first: np.testing.assert_array_equal(ours, 2 * first), session.state.params, weights)
    assert session.folder.name == run_id(config) and config.init_from == trained.name


@pytest.mark.parametrize(("names", "is_new"), [(("away", "at"), False), (("at", "away"), True), ((), False)])
def test_classes_of_other_names_make_a_new_head(composed, tmp_path, names, is_new):
    config = to_config(composed(*SMALL, "model.modes=[P]"))
    model = build_model(config.model, 0)
    plstm.save(model, file := tmp_path / "model.safetensors", class_names=names)
    fresh = nnx.state(build_model(config.model, 1), nnx.Param)
    weights, line = initial_weights(str(file), config, fresh, HERE)
    assert ("a new head" in line) == is_new
    expected = named_leaves(fresh if is_new else nnx.state(model, nnx.Param))["head.kernel"]
    np.testing.assert_array_equal(named_leaves(weights["params"])["head.kernel"], expected)


def test_ids_that_look_like_numbers_are_ids_and_only_these_are_quoted(composed):
    for run in ("12e456", "123e45", "1e5", "123456", "1f392a"):
        assert to_eval_config(compose("eval", overrides=[quote_ids(f"run={run}")])).run == run
        assert (
            compose(
                "train", overrides=["experiment=arrow_48/vit", "variant=demo", quote_ids(f"init_from={run}")]
            ).init_from
            == run
        )
    words = ["optim.peak_lr=1e-4,3e4", "seed=1e5", "init_from=runs/12e45", "run=1f392a"]
    assert [quote_ids(word) for word in words] == words
    assert quote_ids("data.teacher=12e456") == 'data.teacher="12e456"'
    assert quote_ids("init_from=1e5,3f,2e7") == 'init_from="1e5",3f,"2e7"'


def test_a_larger_image_gives_what_the_trained_model_gives(finetuning, pretraining, weights):
    config = finetuning("init_checkpoint=best")
    fresh = build_model(config.model, 99)
    found, line = initial_weights(config.init_from, config, nnx.state(fresh, nnx.Param), HERE)
    assert found["statistics"] is None and line.endswith("step 8; position embedding 6 x 6 -> 8 x 8")
    trained = build_model(pretraining.model, 0)
    images = jax.random.normal(jax.random.key(0), (2, 64, 64, 3))
    wanted = trained(images)
    assert (fresh(images) != wanted).any()
    nnx.update(fresh, found["params"])
    np.testing.assert_array_equal(fresh(images), wanted)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(["model=efficientnet_small", "model.stages=[[3,1,1,2,8]]"], marks=pytest.mark.slow),
        ["model=vil_small", "model.depth=2"],
    ],
    ids=str,
)
def test_so_does_a_model_with_running_statistics_or_a_resize_of_its_own(composed, tmp_path, model):
    chosen = ["debug=smoke", "experiment=imagenet/vit", *model, f"paths.runs={tmp_path}"]
    pretraining = to_config(composed(*chosen, "data.size=48"))
    trained, folder = filled(pretraining.model, 1), tmp_path / run_id(pretraining)
    params, statistics = nnx.state(trained, nnx.Param), nnx.state(trained, nnx.BatchStat)
    statistics = jax.tree.map(lambda leaf: abs(leaf) + 0.5, statistics) if jax.tree.leaves(statistics) else None
    nnx.update(trained, *filter(None, (params, statistics)))
    save_run(folder, pretraining, {8: (params, {}, 0.9)}, statistics)

    config = to_config(composed(*chosen, "data.size=64", f"init_from={folder.name}"))
    fresh = filled(config.model, 2)
    found, _ = initial_weights(folder.name, config, nnx.state(fresh, nnx.Param), HERE)
    nnx.update(fresh, *filter(None, found.values()))
    images = jax.random.normal(jax.random.key(0), (2, 64, 64, 3))
    wanted = trained(images)
    assert np.isfinite(wanted).all()
    np.testing.assert_array_equal(fresh(images), wanted)


def test_a_run_that_was_trained_by_kernels_of_a_gpu_starts_one_anywhere(composed, tmp_path):
    there, here = (to_config(composed(*SMALL, "model.modes=[P]", f"model.method={m}")) for m in ("fused", "auto"))
    params = nnx.state(build_model(here.model, 1), nnx.Param)
    save_run(tmp_path / "run", there, {8: (params, {}, 0.9)})
    found, _ = initial_weights(str(tmp_path / "run"), here, params, HERE)
    jax.tree.map(np.testing.assert_array_equal, found["params"], params)


def test_another_model_is_refused(finetuning):
    for change, theirs in (("model.norm=layernorm", "rmsnorm"), ("model.dim=32", "16"), ("model.patch_size=16", "8")):
        config = finetuning(change)
        with pytest.raises(UserError, match=f"{change}: the run .* has {theirs}"):
            initial_weights(config.init_from, config, None, HERE)


@pytest.mark.parametrize(
    ("arguments", "final", "words"),
    [
        (["seed=44"], None, r"has not finished \(stopped at step 8\)"),
        (["seed=45", "loop.best_split=null"], {}, "init_checkpoint=best"),
    ],
)
def test_a_run_without_the_checkpoint_is_refused(composed, trained, weights, finetuning, arguments, final, words):
    config = to_config(composed("experiment=imagenet_small/vit", *SMALL, *arguments))
    folder = trained.with_name(run_id(config))
    save_run(folder, config, {8: (weights, final, 0.9)})
    with pytest.raises(UserError, match=words):
        initial_weights(folder.name, finetuning("init_checkpoint=best"), None, HERE)


def shapes_of(**changes):
    settings = {"image_size": 32, "dim": 16, "depth": 2, "heads": 2, "classes": 3} | changes
    return nnx.state(nnx.eval_shape(lambda: build_model(VisionConfig(**settings), 0)), nnx.Param)


def test_only_other_classes_make_a_new_head():
    fill = lambda value, shapes: jax.tree.map(lambda leaf: np.full(leaf.shape, value), shapes)  # noqa: E731
    params, changes = adapt(fill(1.0, shapes_of()), fill(2.0, shapes_of(classes=5)))
    assert changes == ["a new head, 3 -> 5 classes"]
    assert {name for name, leaf in named_leaves(params).items() if leaf.max() == 2} == {"head.kernel", "head.bias"}
    assert adapt(shapes_of(), shapes_of())[1] == []
    params, of_others = adapt(fill(1.0, shapes_of()), fill(2.0, shapes_of()), has_other_classes=True)
    assert of_others == ["a new head, for other classes"] and named_leaves(params)["head.bias"].max() == 2
    found, wanted = ({"head": {"kernel": np.ones((4, classes))}} for classes in (3, 5))  # a head without bias
    assert adapt(found, wanted) == (wanted, changes) and adapt(found, found)[1] == []
    with pytest.raises(UserError, match="parameter head.kernel is .* there and .* here"):
        adapt(found, {"head": {"kernel": np.ones((8, 5))}})


def test_parameters_that_were_announced_are_drawn_and_no_others():
    trained = {"out": np.ones(2), "head": {"kernel": np.ones((4, 3))}}
    fresh = {"out": np.zeros(2), "linear": {"mix": np.zeros(3)}, "head": {"kernel": np.zeros((4, 3))}}
    params, changes = adapt(trained, fresh, new=["linear"])
    assert changes == ["1 tensors of linear drawn"] and params["linear"]["mix"].max() == 0
    assert params["out"].min() == params["head"]["kernel"].min() == 1
    for new, words in (([], "linear.mix is in the new model only"), (["mi", "out"], "linear.mix is in the new")):
        with pytest.raises(UserError, match=words):
            adapt(trained, fresh, new=new)
    with pytest.raises(UserError, match=r"init_new: the trained model lacks no parameter with out in its name"):
        adapt(trained, fresh | {"out": np.zeros(3)}, new=["linear", "out"])  # another width is not drawn


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        *(({"dim": 32, "classes": classes}, "embedding.project.bias") for classes in (3, 5)),
        ({"position_embedding": False}, "position is in the trained one only"),
        ({"layer_scale": 0.1}, r"groups.blocks.0.mixer_scale\S* is in the new model only"),
        ({"depth": 4}, r"groups.blocks.0.\S+ is \(1, .* there and \(2, .* here"),
    ],
)
def test_any_other_difference_names_its_parameter(changes, name):
    with pytest.raises(UserError, match=name):
        adapt(shapes_of(), shapes_of(**changes))
