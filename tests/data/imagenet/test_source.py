"""ImageNet on disk: small tars in the official layout through TFDS's own builder, read back; and the commands."""

import io
import pickle
import re
import shutil
import sys
import tarfile

import numpy as np
import pytest

from data.decoding import decode
from data.imagenet.source import TRAIN_TAR, VAL_TAR, load_source, prepare, synsets
from plstm.errors import ReadError, UserError
from scripts import make_photos, prepare_imagenet
from tests.commands import call_here, damages
from tests.drawing import encoded

CLASSES, TRAIN, VAL = 4, 6, 3
CMYK, PNG = "n01739381_1309.JPEG", "n02105855_2933.JPEG"  # as they are called in ImageNet
CORRUPT = "n02077923_1.JPEG"


def contents(tar_file: bytes) -> dict[str, bytes]:
    """The files in a tar, and in the tars in it, by name."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar_file)) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            content = tar.extractfile(member).read()
            found |= contents(content) if member.name.endswith(".tar") else {member.name: content}
    return found


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    make_photos.make(folder, CLASSES, TRAIN, VAL)
    picture = make_photos.draw(1, np.random.default_rng(1))
    cmyk = encoded(picture.convert("CMYK"), "JPEG")
    added = {CMYK: cmyk, PNG: encoded(picture), CORRUPT: cmyk[:999]}
    with tarfile.open(folder / TRAIN_TAR, "a") as whole:
        for name, content in added.items():
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as tar:
                make_photos.add(tar, name, content)
            make_photos.add(whole, f"{name.split('_')[0]}.tar", packed.getvalue())
    return folder


@pytest.fixture(scope="module")
def root(tars, tmp_path_factory):
    from tensorflow_datasets.core import shuffle

    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 100_000)  # so that it sorts on disk, as the real set does
        prepare(tars, str(folder))
    return folder


def examples(root, split, **options) -> dict[str, dict]:
    source = load_source(split, str(root), **options)
    found = {example["file_name"]: example for example in source}
    assert len(found) == len(source)
    return found


def test_training_images_keep_bytes_and_class(root, tars):
    found = examples(root, "train") | examples(root, "val")
    assert {name: example["image"] for name, example in found.items()} == contents((tars / TRAIN_TAR).read_bytes())
    assert len(found) == CLASSES * TRAIN + 3
    source = load_source("train", str(root))
    assert pickle.loads(pickle.dumps(source))[3] == source[3]  # as in reading processes
    for name, example in found.items():
        assert type(example["label"]) is int and synsets()[example["label"]] == name.split("_")[0]


def test_validation_images_keep_bytes_and_have_the_official_classes(root, tars):
    found = examples(root, "test")
    assert "tensorflow" not in sys.modules
    assert {name: example["image"] for name, example in found.items()} == contents((tars / VAL_TAR).read_bytes())
    assert list(examples(root, "test", most=10)) == list(found)[:10]
    official = synsets("validation_labels.txt")
    labels = [example["label"] for example in found.values()]
    assert sorted(labels) == sorted([0, 250, 500, 750] * VAL)  # four classes spread over the thousand
    for name, example in found.items():
        assert synsets()[example["label"]] == official[int(name[-13:-5]) - 1]


def test_cmyk_and_png_are_decoded(root):
    found = examples(root, "train") | examples(root, "val")
    by_kind = {decode(found[name]["image"]).mode for name in (CMYK, PNG)}
    assert by_kind == {"RGB"} and found[PNG]["image"].startswith(b"\x89PNG")
    difference = np.subtract(*(np.asarray(decode(found[name]["image"]), int) for name in (CMYK, PNG)))
    assert abs(difference).mean() < 6  # of one picture


def test_val_is_held_out_of_train_by_a_fixed_permutation(root):
    whole = list(examples(root, "train", held_out=0))
    order = np.random.RandomState(2012).permutation(len(whole))
    for held_out, count in ((3, 2), (1, 1), (10_000, 2)):  # at most a tenth of these 27
        val = list(examples(root, "val", held_out=held_out))
        assert val == [whole[place] for place in sorted(order[:count])]
        assert list(examples(root, "train", held_out=held_out)) == [name for name in whole if name not in val]
    assert np.random.RandomState(2012).permutation(1_281_167)[:3].tolist() == [1112327, 129412, 425277]


def test_wrong_splits_and_missing_data_are_named(root, tmp_path):
    for message, split, folder, options in (
        ("data.split=valid: no such split; choose from train, val, test", "valid", root, {}),
        ("data.split=val: has no images with data.held_out=0", "val", root, {"held_out": 0}),
        (f"{tmp_path}/imagenet2012: no ImageNet there.*make data-imagenet .*DATA={tmp_path}", "test", tmp_path, {}),
    ):
        with pytest.raises(UserError, match=message):
            load_source(split, str(folder), **options)


def test_a_damaged_file_is_named(root, tmp_path):
    copy = shutil.copytree(root, tmp_path / "data")
    (path,) = copy.glob("imagenet2012/*/*train.array_record*")
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : -len(content) // 3] = bytes(len(content) // 3)
    path.write_bytes(content)
    with pytest.raises(ReadError, match=f"{copy}/imagenet2012.*cannot be read"):  # a training saves before it ends
        list(load_source("train", str(copy)))


def test_whatever_is_damaged_beside_the_images_they_are_read_or_the_folder_is_named(root, tmp_path):
    expected, refused = list(load_source("test", str(root))), 0
    copy = shutil.copytree(root, tmp_path / "data")
    for path in (path for path in copy.rglob("*") if path.is_file() and "array_record" not in path.name):
        for damage in damages(path):
            try:
                assert list(load_source("test", str(copy))) == expected, (path.name, damage)
            except UserError as error:
                refused += 1
                assert str(copy) in str(error), (path.name, damage)
    assert refused > 8


def test_the_command_prepares_once(tars, tmp_path, monkeypatch):
    status, output, errors = call_here(prepare_imagenet.main, "--manual", tars, "--data", tmp_path)
    assert status == 0 and "ready; images: train 25, val 2, test 12" in output
    assert "not the official 147,897,477,120: an incomplete download" in errors
    monkeypatch.setattr(prepare_imagenet, "prepare", None)
    again = call_here(prepare_imagenet.main, "--manual", tmp_path / "gone", "--data", tmp_path)
    assert again.status == 0 and "ready" in again.output


def test_the_command_says_what_is_wrong_with_the_tars(tars, tmp_path, monkeypatch):
    broken, text, data = tmp_path / "broken", tmp_path / "text", tmp_path / "data"
    for folder in (broken, text, data):
        folder.mkdir()
    for name in (TRAIN_TAR, VAL_TAR):
        (text / name).write_text("no tar" * 1000)
        (broken / name).write_bytes((tars / name).read_bytes()[:30_000])
    for message, *arguments in (
        ("name the folder with the official tars", ""),
        (rf"{TRAIN_TAR} \(137.7 GiB\) and {VAL_TAR} \(6.3 GiB\); download from https://image-net.org", tmp_path),
        (f"{text}/{TRAIN_TAR}: is not a tar file", text),
        (f"{broken}: cannot be prepared", broken),
        (f"{tars}/{TRAIN_TAR}: its md5 is [0-9a-f]{{32}}, not 1d675b47d978889d74fa0da5fadfb00e", tars, "--verify"),
    ):
        ended = call_here(prepare_imagenet.main, "--data", data, "--manual", *arguments)
        assert ended.status == 2 and re.search(message, ended.errors)
    (data / "imagenet2012/incomplete.ABC_5.1.0").mkdir(parents=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 100, 0))
    ended = call_here(prepare_imagenet.main, "--data", data, "--manual", tars)
    assert ended.status == 2
    assert re.search("0.0 GiB free, .*DATA=.*incomplete.ABC_5.1.0 is left from an interrupted", ended.errors)


def test_photographs_depend_on_the_arguments_alone(tars, tmp_path):
    for folder, seed in (("same", 0), ("other", 1)):
        make_photos.make(tmp_path / folder, CLASSES, 1, 1, seed)
    same, other = (contents((tmp_path / folder / TRAIN_TAR).read_bytes()) for folder in ("same", "other"))
    assert same.keys() == other.keys() == {f"{synsets()[place]}_0.JPEG" for place in (0, 250, 500, 750)}
    assert same.items() <= contents((tars / TRAIN_TAR).read_bytes()).items()
    assert all(same[name] != other[name] for name in same)
