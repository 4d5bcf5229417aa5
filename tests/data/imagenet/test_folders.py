"""Class folders of images: labels, order, and what is no such tree."""

import pickle

import pytest

from data.imagenet.source import folder_source, synsets
from plstm.errors import UserError


def write(root, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"bytes of {name}".encode())


def test_labels_number_the_sorted_folders(tmp_path):
    write(tmp_path, "dog/b.JPEG", "dog/a.png", "cat/deep/er/x.jpg")
    write(tmp_path, "cat/notes.txt", "dog/c.GIF", "cat/.hidden.png", ".git/y.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match=f"{tmp_path}: files with .gif, .txt are left out; images have .jpeg"):
        source = folder_source(tmp_path)
    assert source.classes == ["cat", "dog", "empty"]
    names = ["cat/deep/er/x.jpg", "dog/a.png", "dog/b.JPEG"]
    assert list(pickle.loads(pickle.dumps(source))) == [
        {"image": f"bytes of {name}".encode(), "label": label, "file_name": name}
        for name, label in zip(names, (0, 1, 1), strict=True)
    ]


def test_wordnet_ids_have_imagenets_labels(tmp_path):
    write(tmp_path, "n15075141/a.JPEG", "n01440764/b.JPEG", "n01443537/c.JPEG")
    source = folder_source(tmp_path)
    assert [example["label"] for example in source] == [0, 1, 999] and source.classes == synsets()
    write(tmp_path, "n00000001/b.JPEG")  # an unknown one makes it another set
    assert folder_source(tmp_path).classes == ["n00000001", "n01440764", "n01443537", "n15075141"]


def test_what_is_no_tree_of_images_is_named(tmp_path):
    write(tmp_path, "flat/a.jpg", "texts/one/a.txt")
    for path, message in ((tmp_path / "no", "no such folder"), (tmp_path / "flat", "no class folders")):
        with pytest.raises(UserError, match=f"{path}: .*{message}"):
            folder_source(path)
    with pytest.raises(UserError, match="no images in its class folders"):
        folder_source(tmp_path / "texts")


def test_labels_are_those_of_a_model(tmp_path):
    write(tmp_path, "past/a.png", "at/b.png", "1/c.png", "0/d.png")
    source = folder_source(tmp_path, ("past", "at"))
    assert {example["file_name"]: example["label"] for example in source} == {
        "past/a.png": 0, "at/b.png": 1, "1/c.png": 1, "0/d.png": 0,
    }  # fmt: skip
    assert source.classes == ["past", "at"]
    write(tmp_path, "2/e.png")
    with pytest.raises(UserError, match=f"{tmp_path}/2: the model has no such class; it has past, at"):
        folder_source(tmp_path, ("past", "at"))
