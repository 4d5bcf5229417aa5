"""Reading graph sets in their text format: a small set, damage, fetching, and the folds."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from unittest.mock import Mock
from urllib.error import HTTPError

import numpy as np
import pytest

from data.graphs import tudataset
from data.graphs.tudataset import fingerprint, load_tudataset, make_folds, read_tudataset
from plstm.errors import UserError

HERE = Path(__file__).parents[1] / "tudataset"
TOY = tudataset.TOY  # 40 graphs of 3 to 9 nodes; class 1 has one or two cycles, class -1 is a tree


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(TOY, tmp_path / "TOY")


def lines(folder: Path, kind: str) -> list[str]:
    return (folder / f"TOY_{kind}.txt").read_text().splitlines()


def rewrite(folder: Path, kind: str, rows: list[str]) -> None:
    (folder / f"TOY_{kind}.txt").write_text("".join(f"{row}\n" for row in rows))


def test_what_is_read_is_what_the_files_say():
    graphs = read_tudataset("TOY", TOY)
    assert len(graphs) == 40 and graphs.classes == ("-1", "1")
    owner = [int(row) - 1 for row in lines(TOY, "graph_indicator")]
    assert graphs.labels.tolist() == [int(label == "1") for label in lines(TOY, "graph_labels")]
    rows = zip(lines(TOY, "node_attributes"), lines(TOY, "node_labels"), strict=True)
    expected = [[*map(float, a.split(",")), *(float(label == known) for known in "014")] for a, label in rows]
    np.testing.assert_array_equal(graphs.features, np.array(expected, np.float32))

    undirected = {tuple(sorted(int(node) - 1 for node in pair.split(","))) for pair in lines(TOY, "A")}
    found = set()
    for g in range(len(graphs)):
        nodes, edges = graphs.graph(g)
        assert nodes == owner.count(g) and (edges[:, 0] < edges[:, 1]).all() and edges.max() < nodes
        assert (len(edges) >= nodes) == graphs.labels[g]  # whether it has a cycle
        found |= {(lower, higher) for lower, higher in (edges + owner.index(g)).tolist()}
    assert found == undirected


def test_order_spaces_doubles_and_loops_do_not_matter(folder):
    rows = lines(folder, "A")
    rewrite(folder, "A", [row.replace(" ", "") for row in [*reversed(rows), rows[0], "5, 5"]])
    read, known = read_tudataset("TOY", folder), read_tudataset("TOY", TOY)
    assert fingerprint(read) == fingerprint(known)
    labels = lines(folder, "node_labels")
    rewrite(folder, "node_labels", ["1" if labels[0] != "1" else "0", *labels[1:]])
    assert fingerprint(read_tudataset("TOY", folder)) != fingerprint(known)


def test_nodes_without_features_get_a_one(folder):
    for kind in ("node_labels", "node_attributes"):
        (folder / f"TOY_{kind}.txt").unlink()
    graphs = read_tudataset("TOY", folder)
    assert graphs.features.shape[1] == 1 and (graphs.features == 1).all()


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("A", lambda rows: [*rows, "1, 4000"], "node numbers from 1 to"),
        ("A", lambda rows: ["1, 100", *rows[1:]], "line 1 joins nodes of two graphs"),
        ("graph_indicator", lambda rows: ["3" if row == "2" else row for row in rows], "from 1 to the 40 graphs"),
        ("graph_labels", lambda rows: rows[:-1], "from 1 to the 39 graphs"),
        ("graph_labels", lambda rows: ["1, 2"] * 40, "has 2 columns, not 1"),
        ("node_labels", lambda rows: rows[:-1], "lines for .* nodes"),
        ("node_attributes", lambda rows: ["1.0", *rows[1:]], "damaged"),
        ("node_attributes", lambda rows: [f"nan{rows[0].lstrip('-.0123456789')}", *rows[1:]], "not finite"),
        ("graph_labels", None, "TOY_graph_labels.txt.*delete"),
    ],
)
def test_damaged_and_missing_files_are_named(folder, kind, change, why):
    if change is None:
        (folder / f"TOY_{kind}.txt").unlink()
    else:
        rewrite(folder, kind, change(lines(folder, kind)))
    with pytest.raises(UserError, match=why) as error:
        read_tudataset("TOY", folder)
    assert str(folder) in str(error.value) and "delete" in str(error.value)


@pytest.mark.parametrize("place", ["TOY", "TOY/raw", "tudataset/TOY"])
def test_a_local_copy_is_found(tmp_path, place):
    shutil.copytree(TOY, tmp_path / place)
    assert len(load_tudataset("TOY", str(tmp_path), download=False)) == 40


def test_a_copy_that_differs_from_the_known_set_is_refused(tmp_path, monkeypatch):
    shutil.copytree(TOY, tmp_path / "TOY")
    known = fingerprint(read_tudataset("TOY", TOY))
    monkeypatch.setitem(tudataset.FINGERPRINTS, "TOY", known)
    load_tudataset("TOY", str(tmp_path), download=False)
    monkeypatch.setitem(tudataset.FINGERPRINTS, "TOY", "0" * 64)
    with pytest.raises(UserError, match=f"{known}.*data.verify=false"):
        load_tudataset("TOY", str(tmp_path), download=False)
    load_tudataset("TOY", str(tmp_path), download=False, verify=False)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder that stands for the web server; sets are fetched from there into tmp_path / "data"."""
    folder = tmp_path / "server"
    folder.mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(tudataset, "URL", f"file://{folder}/{{name}}.zip")
    monkeypatch.setattr(tudataset, "TOY", tmp_path / "none" / "TOY")  # the clone's copy would be found
    return folder


def write_zip(path: Path, names=None) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(TOY.iterdir()):
            if names is None or file.name in names:
                archive.write(file, f"TOY/{file.name}")


def test_a_missing_set_is_fetched_once(server, tmp_path, capsys):
    write_zip(server / "TOY.zip")
    root = tmp_path / "data"
    assert fingerprint(load_tudataset("TOY", str(root))) == fingerprint(read_tudataset("TOY", TOY))
    assert "fetching" in capsys.readouterr().err
    (server / "TOY.zip").unlink()
    assert len(load_tudataset("TOY", str(root))) == 40
    assert {path.name for path in (root / "tudataset").iterdir()} == {"TOY", ".TOY.lock"}


def test_a_set_does_not_take_the_place_of_other_files(server, tmp_path):
    write_zip(server / "TOY.zip")
    kept = tmp_path / "data/tudataset/TOY/own/file"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(UserError, match="tudataset/TOY: has no TOY_A.txt but other files; move it away"):
        load_tudataset("TOY", str(tmp_path / "data"))
    assert kept.read_text() == "mine"
    kept.parent.rename(kept.parents[1] / "raw")
    for file in TOY.iterdir():
        (kept.parents[1] / "raw" / file.name).write_bytes(file.read_bytes())
    assert len(load_tudataset("TOY", str(tmp_path / "data"))) == 40  # as PyTorch Geometric keeps it


def test_what_cannot_be_fetched_is_named(server, tmp_path, monkeypatch):
    root = tmp_path / "data"
    with pytest.raises(UserError, match="TOY_A.txt .*data.download=true"):
        load_tudataset("TOY", str(root), download=False)
    with pytest.raises(UserError, match="data.name=TOY: cannot fetch .*TOY.zip"):
        load_tudataset("TOY", str(root))
    assert not any(root.iterdir())
    with monkeypatch.context() as patch:
        missing = HTTPError("https://x/TOY.zip", 404, "Not Found", None, None)
        patch.setattr(tudataset, "_open", Mock(side_effect=missing))
        with pytest.raises(UserError, match=r"TOY\.zip \(HTTP Error 404: Not Found\)"):
            load_tudataset("TOY", str(root))
    write_zip(server / "TOY.zip", names=["TOY_graph_labels.txt"])
    with pytest.raises(UserError, match="has no TOY_A.txt in it"):
        load_tudataset("TOY", str(root))
    write_zip(server / "TOY.zip")
    content = (server / "TOY.zip").read_bytes()
    (server / "TOY.zip").write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    with pytest.raises(UserError, match="cannot fetch .*CRC"):
        load_tudataset("TOY", str(root))
    assert {path.name for path in (root / "tudataset").iterdir()} == {".TOY.lock"}


PUBLISHED = json.loads((HERE / "folds.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_folds_are_those_of_scikit_learn(name):
    """The hashes were made with scikit-learn 1.9.1; the labels are the sets' own."""
    known = PUBLISHED[name]
    bits = np.frombuffer(bytes.fromhex(known["labels"]), np.uint8)
    folds = make_folds(np.unpackbits(bits)[: known["graphs"]].astype(np.int32))
    parts = b"".join(np.ascontiguousarray(part, "<i8").tobytes() for fold in folds for part in fold)
    assert hashlib.sha256(parts).hexdigest() == known["folds"]


def test_folds_partition_and_stratify():
    labels = np.random.default_rng(0).choice(3, size=211, p=[0.6, 0.3, 0.1]).astype(np.int32)
    folds = make_folds(labels, 7)
    assert sorted(np.concatenate([fold.test for fold in folds]).tolist()) == list(range(211))
    for fold in folds:
        assert sorted(np.concatenate(fold).tolist()) == list(range(211))
        shares = [np.bincount(labels[part], minlength=3) / len(part) for part in fold]
        np.testing.assert_allclose(shares, [np.bincount(labels) / 211] * 3, atol=0.06)
    with pytest.raises(UserError, match="data.folds=100: more than the"):
        make_folds(labels, 100)
