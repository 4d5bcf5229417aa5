"""The arrow-pointing data set on disk: the TFDS builder, the packed form, failures, and the commands."""

import dataclasses
import io
import itertools
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.arrow_pointing import __main__ as commands
from data.arrow_pointing import builder as packed_module
from data.arrow_pointing.builder import ArrowPointing, data_source, load_packed, prepare
from data.arrow_pointing.geometry import DISTRIBUTIONS, SPLITS, ArrowVariant, digest, render
from data.loading import unpack
from plstm.errors import UserError
from plstm.files import data_root
from tests.commands import begin, call, damages, end, refused

MODULE = ["-m", "data.arrow_pointing"]
VARIANT = ArrowVariant(
    train_seed=7, size=45, object_scale=0.25, train_images=40, eval_images=9
)  # 45 * 45 is no multiple of 8


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    prepare(VARIANT, str(root))
    return root


@pytest.fixture
def root(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "data")


def folder(root: Path, name: str = "arrow_pointing") -> Path:
    return root / name / VARIANT.name / "1.0.0"


def images(split: str) -> list[np.ndarray]:
    return [render(arrow, VARIANT.canvas(split)) for arrow in VARIANT.arrows(split)]


@pytest.mark.parametrize("split", SPLITS)
def test_stored_examples_are_those_of_the_stream_in_order(prepared, split):
    source = data_source(VARIANT, split, str(prepared), generate=False)
    assert len(source) == (40 if split == "train" else 9)
    for index, (arrow, image) in enumerate(zip(VARIANT.arrows(split), images(split), strict=True)):
        example = source[index]
        assert example["image"].dtype == np.uint8
        np.testing.assert_array_equal(example["image"], image[..., None])
        assert {key: example[key] for key in arrow._fields} == pytest.approx(arrow._asdict(), rel=1e-6)
    in_a_reading_process = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(in_a_reading_process[3]["image"], source[3]["image"])


def test_named_variants_are_built_read_and_pickled_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(ArrowVariant, "images", lambda self, split: 40 if split == "train" else 9)
    source = data_source(ArrowVariant(44), "train", str(tmp_path))
    assert pickle.loads(pickle.dumps(source))[3]["label"] == source[3]["label"]
    program = "import sys, data.arrow_pointing, data.arrow_pointing.builder, tensorflow_datasets as tfds; "
    program += "print(len(tfds.data_source('arrow_pointing/seed44', data_dir=sys.argv[1])['train']))"
    assert call("-c", program, tmp_path) == "40\n"


@pytest.mark.parametrize("split", SPLITS)
def test_packed_split_is_the_same_first_and_from_its_file(root, split, monkeypatch):
    first = load_packed(VARIANT, split, str(root))
    monkeypatch.setattr(packed_module, "_pack", None)
    for packed in (first, load_packed(VARIANT, split, str(root))):
        assert packed.labels.tolist() == [arrow.label for arrow in VARIANT.arrows(split)]
        assert packed.bits.dtype == packed.labels.dtype == np.uint8
        np.testing.assert_array_equal(unpack(packed.bits, packed.size), images(split))
        assert not packed.bits.flags.writeable and not packed.labels.flags.writeable


def zipped(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize("damage", ["cut", "another shape"])
def test_damaged_packed_file_is_packed_again(root, damage):
    before = load_packed(VARIANT, "train", str(root))
    file = folder(root, "arrow_pointing_packed") / "train.npz"
    sound = file.read_bytes()
    other = zipped(bits=np.zeros((40, 2), np.uint8), labels=np.zeros(40, np.uint8))
    file.write_bytes(sound[:-100] if damage == "cut" else other)
    after = load_packed(VARIANT, "train", str(root))
    np.testing.assert_array_equal(after.bits, before.bits)
    assert file.read_bytes() == sound and os.listdir(file.parent) == ["train.npz"]


def test_a_flipped_bit_in_a_packed_file_is_found_or_harmless(tmp_path):
    bits, labels = np.random.default_rng(0).integers(0, 256, (5, 8), np.uint8), np.arange(5, dtype=np.uint8)
    sound, file, found = zipped(bits=bits, labels=labels), tmp_path / "x.npz", 0
    for place in range(len(sound)):
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        read = packed_module._read(file, 5, 8)
        found += read is None
        for actual, expected in zip(read or (), (bits, labels), strict=False):
            np.testing.assert_array_equal(actual, expected)
    assert found > len(sound) / 2


def test_packed_file_that_cannot_be_kept_is_only_a_warning(root):
    place = folder(root, "arrow_pointing_packed")
    place.parent.mkdir(parents=True)
    place.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="packed"):
        packed = load_packed(VARIANT, "val", str(root))
    assert packed.bits.shape == (9, 254)


def test_damaged_data_set_is_named(root):
    shard = next(folder(root).glob("*train.array_record*"))
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(UserError, match=f"{VARIANT.name}.*delete that folder"):
        load_packed(VARIANT, "train", str(root))
    with pytest.raises(UserError, match=f"{VARIANT.name}.*delete that folder"):
        list(data_source(VARIANT, "train", str(root)))


def test_the_folder_comes_from_key_environment_or_home(prepared, tmp_path, monkeypatch):
    missing = tmp_path / "not there"
    with pytest.raises(UserError, match=r"data\.root=.*not there.*mkdir"):
        load_packed(VARIANT, "train", str(missing))
    monkeypatch.setenv("PLSTM_DATA", str(missing))
    with pytest.raises(UserError, match=r"PLSTM_DATA=.*not there.*mkdir"):
        load_packed(VARIANT, "train")
    assert not missing.exists()
    monkeypatch.setenv("PLSTM_DATA", str(prepared))
    assert len(data_source(VARIANT, "val", generate=False)) == 9
    monkeypatch.setenv("PLSTM_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root(None) == tmp_path / ".cache/plstm/data"
    assert (tmp_path / ".cache/plstm/data").is_dir()


def test_missing_data_are_named_and_the_command_builds_them(tmp_path):
    with pytest.raises(UserError, match=f"{VARIANT.name}.*no data there; data.generate=true makes it"):
        load_packed(VARIANT, "train", str(tmp_path), generate=False)
    command = f"build --seed 7 --size 45 --scale 0.25 --train-images 40 --eval-images 9 --root {tmp_path}"
    assert call(*MODULE, *command.split()).strip() == str(folder(tmp_path))
    assert len(load_packed(VARIANT, "train", str(tmp_path), generate=False).labels) == 40


def test_balanced_data_set_is_another_one(tmp_path):
    balanced = dataclasses.replace(VARIANT, distribution="balanced")
    packed = load_packed(balanced, "val_ext", str(tmp_path))
    arrows, canvas = list(balanced.arrows("val_ext")), balanced.canvas("val_ext")
    assert packed.labels.tolist() == [arrow.label for arrow in arrows]
    np.testing.assert_array_equal(unpack(packed.bits, packed.size), [render(arrow, canvas) for arrow in arrows])


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from data.arrow_pointing.builder import prepare
from data.arrow_pointing.geometry import ArrowVariant
from plstm.errors import UserError
try:
    prepare(ArrowVariant(size=48, object_scale=0.25, train_images=200, eval_images=1), sys.argv[1])
except UserError as error:
    print(error)
"""


def test_failed_write_is_named_and_leaves_nothing_half_done(tmp_path):
    printed = call("-B", "-c", FULL_DISK, tmp_path)
    assert str(tmp_path) in printed and "File too large" in printed
    assert not list(tmp_path.rglob("*array_record*"))


def test_two_processes_at_once_share_one_preparation(tmp_path):
    sizes = ["--size=48", "--scale=0.25", "--train-images=300", "--eval-images=5", f"--root={tmp_path}"]
    both = [begin(*MODULE, "build", *sizes) for _ in range(2)]
    notes = [end(process)[1] for process in both]
    assert sum("preparing" in note for note in notes) == 1, notes
    config = ArrowVariant(size=48, object_scale=0.25, train_images=300, eval_images=5)
    assert len(load_packed(config, "train", str(tmp_path), generate=False).labels) == 300


def test_no_two_variants_share_a_folder():
    values = [0, 43], [192, 384], [1.0, 0.25], [100_000, 9], [None, 2_048], DISTRIBUTIONS
    variants = [ArrowVariant(*each) for each in itertools.product(*values)]
    assert len({variant.name for variant in variants}) == len(variants)
    assert ArrowVariant(45, 48, 0.25, 50_000, 2_048).name == "seed45_size48_scale0.25_train50000_eval2048"
    named = {name: config.variant for name, config in ArrowPointing.builder_configs.items()}
    assert named["seed45_distributionbalanced"] == ArrowVariant(45, distribution="balanced") and len(named) == 10
    assert [ArrowVariant().images(split) for split in SPLITS] == [100_000, 5_120, 5_120, 10_240, 10_240]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("hash valid", "val_ext"),
        ("hash val --seed 44", "--seed 44"),
        ("hash val --count 6000", "hash val takes 1 to 5120"),
        ("sheet val sheet.png --count 0", "sheet val takes 1 to 600 images"),
    ],
)
def test_bad_commands_say_what_is_wrong(command, words):
    assert words in refused(commands.main, *command.split())


def test_hash_and_sheet_commands(tmp_path):
    hashed = end(begin(*MODULE, "hash", "train", "--count", "1000"))
    assert hashed == ("train 1000 470 4a0392e4b4a57134fe91c282\n", "")
    call(*MODULE, "sheet", "val_ext", tmp_path / "sheet.png", "--count", 7, "--size", 48, "--scale", 0.25)
    sizes = ["--count", 60, "--size", 48, "--scale", 0.25, "--distribution", "balanced"]
    variant = ArrowVariant(43, 48, 0.25, distribution="balanced")
    images = ((render(arrow, variant.canvas("val")), arrow.label) for arrow in variant.arrows("val", 60))
    assert call(*MODULE, "hash", "val", *sizes) == f"val {' '.join(map(str, digest(images)))}\n"
    assert os.listdir(tmp_path) == ["sheet.png"]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 6 * 160 and sheet.height > 2 * 96


def test_whatever_is_damaged_the_images_are_read_or_the_folder_is_named(root):
    expected, refused = data_source(VARIANT, "train", str(root))[7], 0
    for path in (path for path in folder(root).iterdir() if not {"val", "test"} & set(path.name.split("-")[1:2])):
        for damage in damages(path):
            try:
                found = data_source(VARIANT, "train", str(root), generate=False)[7]
            except UserError as error:
                refused += 1
                assert VARIANT.name in str(error), (path.name, damage)
            else:
                np.testing.assert_array_equal(found["image"], expected["image"], f"{path.name}, {damage}")
    assert refused > 8
