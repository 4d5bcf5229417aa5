"""import_released.py: checkpoints in three formats, to weights that from_checkpoint takes, and back."""

import re

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict

from plstm.runs.released import from_released, to_released
from plstm.runs.weights import config_of, from_checkpoint
from scripts.import_released import main, read
from tests.commands import call_here, refused
from tests.models.vision_models import VIT, draw_images, filled, tiny

CONFIG = tiny(patch_size=8, image_size=48, classes=2)


@pytest.fixture(scope="module")
def tree() -> dict[str, np.ndarray]:
    return to_released(filled(CONFIG), CONFIG)


def test_a_checkpoint_becomes_a_model_and_a_checkpoint_again(tree, tmp_path):
    source, file, back = (tmp_path / name for name in ("released.npz", "model.safetensors", "back.npz"))
    np.savez(source, **tree)
    ended = call_here(main, source, file, "experiment=arrow_48/plstm", "model.dtype=float32")
    assert ended.status == 0 and ended.output.startswith(f"{file}: ")
    model, images = from_checkpoint(file), draw_images(48, 48)
    np.testing.assert_array_equal(model(images), from_released(tree, CONFIG)(images))
    info = model.info
    assert (info.run, info.step, info.class_names, info.preprocessing.size) == ("", 0, ("away", "at"), 48)
    assert info.weights_id == info.sha256[:12]
    assert (info.config.modes, info.config.dim, config_of(file).data.size) == (["P", "D"], 16, 48)
    assert call_here(main, "--export", file, back).status == 0
    assert_same(read(back), tree)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name, strict=True)


def test_all_formats_are_read_and_the_optimizer_is_left_out(tree, tmp_path):
    whole = {"params": {"params": unflatten_dict(tree, sep="/")}, "opt_state": {"mu": np.ones(3)}, "step": 7}
    (tmp_path / "released.msgpack").write_bytes(msgpack_serialize(whole))
    whole["opt_state"] = [{"mu": jnp.ones(3)}]
    ocp.PyTreeCheckpointer().save(tmp_path / "orbax", whole)
    for name in ("released.msgpack", "orbax"):
        assert_same(read(tmp_path / name), tree)


def test_bad_input_is_one_line(tree, tmp_path):
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "tree.npz", **tree)
    vit = tiny(patch_size=8, image_size=48, classes=2, **VIT)
    np.savez(tmp_path / "vit.npz", **to_released(filled(vit), vit))
    np.savez(tmp_path / "less.npz", **{name: leaf for name, leaf in tree.items() if name != "head/bias"})
    np.savez(tmp_path / "pickle.npz", head=np.array([object()]))
    for name in ("cut.npz", "cut.msgpack"):
        (tmp_path / name).write_bytes((tmp_path / "tree.npz").read_bytes()[:100])
    experiment, file = "experiment=arrow_48/plstm", tmp_path / "model.safetensors"
    for source, words, *arguments in (
        ("none.npz", "none.npz: not a checkpoint that can be read .No such file", file, experiment),
        *((name, f"{name}: not a checkpoint", file, experiment) for name in ("cut.npz", "cut.msgpack", "empty")),
        ("pickle.npz", "allow_pickle=False", file, experiment),
        ("less.npz", "^head/bias: not in the checkpoint; expected floats of shape .2,", file, experiment),
        ("tree.npz", "^experiment: name the one", file),
        ("tree.npz", "experiment=none: there is no such choice", file, "experiment=none"),
        ("tree.npz", "model.size: there is no such key", file, experiment, "model.size=3"),
        ("tree.npz", "^patch_embed/proj/kernel: is float32", file, experiment, "model.dim=32"),
        ("tree.npz", "model.pooling=class_token: .* no place on pLSTM's grid", file, "experiment=arrow_48/vit"),
        ("vit.npz", "^blocks_0/.*: not a parameter of this model; is it the experiment", file, experiment),
        ("tree.npz", "the data have 1,000 classes", file, "experiment=imagenet/plstm"),
        ("tree.npz", "model.bin: name it", tmp_path / "model.bin", experiment),
        ("none.safetensors", "takes no overrides", tmp_path / "back.npz", experiment, "--export"),
        ("none.safetensors", "no such file", tmp_path / "back.npz", "--export"),
    ):
        assert re.search(words, refused(main, tmp_path / source, *arguments))
    assert not file.exists()
