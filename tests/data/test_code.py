"""Source code as data: what a corpus leaves out, how it is split, a folder of one's own; no package is fetched here."""

import functools
import hashlib
import zipfile

import numpy as np
import pytest

from data import code
from data.code import SEPARATOR, as_tokens, digest, load_folder, split_files, toy
from plstm.errors import UserError
from tests.commands import call_here

command = functools.partial(call_here, code.main)


def files_of(tokens):
    return [bytes(part[1:].astype(np.uint8)) for part in np.split(tokens, np.flatnonzero(tokens == SEPARATOR))[1:]]


def test_tests_vendored_and_generated_code_tables_and_copies_are_left_out():
    kept = {"a/b.py": b"x = a", "pytest.py": b"y = x", "a/latest.py": b"z = x", "_pytest/c.py": b"w = x"}
    bad = "tests/a.py test/a.py a/testing.py a/_testing/a.py a/b_test.py a/conftest.py a/_vendor/b.py a/externals/b.py"
    contents = {name: name.encode() for name in f"{bad} a/b_pb2.py a/b_pb2_grpc.py".split()}
    contents |= {"empty.py": b"", "digits.py": b"a = 123456", "accents.py": "a = 'ä'".encode(), "copy.py": b"x = a"}
    corpus = split_files({"grain": kept | contents, "rich": {"r.py": b"x = a", "s.py": b"r = b"}})
    assert sorted(files_of(corpus["train"]["grain"])) == sorted(kept.values())
    assert files_of(corpus["test"]["rich"]) == [b"r = b"] and corpus["val"] == {}


def test_every_twentieth_file_is_held_out():
    corpus = split_files({"grain": {f"{number:02}.py": b"x" * (1 + number) for number in range(45)}})
    assert [len(file) for file in files_of(corpus["val"]["grain"])] == [20, 40]
    assert len(files_of(corpus["train"]["grain"])) == 43


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder with the wheels of two packages, and the root of data sets."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for kind, package in (("TRAIN", "optax"), ("TEST", "rich")):
        path = folder / f"{package}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(20):
                archive.writestr(f"{package}/{number}.py", f"raise SystemExit({number}) # {package}")
            archive.writestr(f"{package}/data.txt", "text")
        monkeypatch.setattr(code, kind, {package: ("1.0", hashlib.sha256(path.read_bytes()).hexdigest())})
    monkeypatch.setenv("PLSTM_DATA", str(tmp_path))
    return folder


def test_fetch_reads_wheels_of_a_folder_and_list_prints_them(wheels, tmp_path, monkeypatch):
    assert "code.npz: no such file; fetch it: python -m data.code fetch, and see data.root" in command("list")[2]
    assert command("fetch", "--wheels", str(wheels)) == (0, f"{tmp_path / 'code.npz'}\n", "")
    _, out, err = command("list")
    assert out == "" and "its digest is " in err
    monkeypatch.setattr(code, "DIGEST", err.split("its digest is ")[1][:12])
    _, out, _ = command("list")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["train", "optax", "19"],
        ["train", "all", "19"],
        ["val", "optax", "1"],
        ["val", "all", "1"],
        ["test", "rich", "20"],
        ["test", "all", "20"],
    ]
    (tmp_path / "code.npz").write_bytes(b"PK")
    assert "code.npz cannot be read" in command("list")[2]
    (wheels / "rich-1.0-py3-none-any.whl").rename(wheels / "rich-2.0-py3-none-any.whl")
    assert "version 1.0 of rich is needed" in command("fetch", "--wheels", str(wheels))[2]


def test_a_folder_of_text(tmp_path):
    with pytest.raises(UserError, match="data.path: name the folder of text"):
        load_folder(None)
    for name in ("train/b.txt", "train/a/x.txt", "train/a/y/z.txt", "val/v", "test/t"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = load_folder(str(tmp_path))
    assert {split: [*groups] for split, groups in corpus.items()} == {
        "train": ["a", "train"],
        "val": ["val"],
        "test": ["test"],
    }
    assert files_of(corpus["train"]["a"]) == [b"train/a/x.txt", b"train/a/y/z.txt"]
    for name in ("train/.hidden", "train/a/.git/HEAD", "far/away.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("hidden")
    assert digest(load_folder(str(tmp_path))) == digest(corpus)
    (tmp_path / "val/linked").symlink_to(tmp_path / "far")
    assert files_of(load_folder(str(tmp_path))["val"]["linked"]) == [b"hidden"]
    (tmp_path / "val/linked").rename(tmp_path / "val/\udce9")
    with pytest.raises(UserError, match=r"val: the name of its folder '.udce9' is not text; rename it"):
        load_folder(str(tmp_path))
    (tmp_path / "val/\udce9").unlink()
    (tmp_path / "val/v").write_text("other")
    assert digest(load_folder(str(tmp_path))) != digest(corpus)
    (tmp_path / "val/v").write_text("")
    with pytest.raises(UserError, match="val/v: has no bytes; delete it"):
        load_folder(str(tmp_path))
    (tmp_path / "val/v").unlink()
    with pytest.raises(UserError, match="val has no files; text lies in train/, val/ and test/"):
        load_folder(str(tmp_path))


def test_the_toy_is_python_and_the_same_each_time():
    for file in files_of(toy()["train"]["toy"]):
        compile(file, "toy", "exec")
    assert digest(toy()) == "fb5de38de240"
    np.testing.assert_array_equal(as_tokens([b"a", b"bc"]), [256, 97, 256, 98, 99])
