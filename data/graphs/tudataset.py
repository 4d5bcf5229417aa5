"""Graph classification sets of TUDataset (Morris et al., 2020) in their original text format, and folds over them.

Text files, one line an item: NAME_A.txt ("node, node" of a directed edge, numbered from 1 over the whole set),
NAME_graph_indicator.txt (a node's graph), NAME_graph_labels.txt, and where the set has them NAME_node_labels.txt and
NAME_node_attributes.txt. Labels and attributes of edges are not read.
"""

import hashlib
import io
import os
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plstm.errors import DownloadError, UserError
from plstm.files import data_root, locked
from plstm.limits import FLOAT32_MAX

URL = "https://www.chrsmrrs.com/graphkerneldatasets/{name}.zip"
MOST_BYTES = 2**31  # of a set
TIMEOUT = 60  # seconds without an answer
TOY = Path(__file__).with_name("TOY")  # forty made-up graphs, which debug=smoke takes: no download


class Sizes(NamedTuple):
    features: int  # numbers that a node has
    classes: tuple[str, ...]  # labels, in order


# Of the sets of the results here, and below what `fingerprint` gives; a set that is not listed is taken as it is.
SIZES = {
    "MUTAG": Sizes(7, ("-1", "1")),
    "PTC_FM": Sizes(18, ("-1", "1")),
    "PROTEINS": Sizes(4, ("1", "2")),
    "NCI1": Sizes(37, ("0", "1")),
}
FINGERPRINTS = {
    "MUTAG": "f90eb0d7297e7112939f36834d3c741ce359dffa3b6d3db44cdd69bfbcb9ff7b",
    "PTC_FM": "5e57eb2a22149ecce410b3e37d1ab9bde69bc281dcaa91a7b03a37621e0e670f",
    "PROTEINS": "354bee8c22b3b7f5801fd779b7c06988f8ca92149965cac2a05586d93153a5a7",
    "NCI1": "9f21951c083822f6315433c0a090b26e1859211e2d561adaebffa8c6d99d8e9e",
}


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Undirected graphs with a class each, nodes and edges of all graphs one after another."""

    labels: np.ndarray  # int32 [G], places in `classes`
    node_start: np.ndarray  # int64 [G + 1]; graph g has the nodes node_start[g] to node_start[g + 1] - 1, in file order
    features: np.ndarray  # float32 [nodes, F], attributes, then one-hot labels; a one where there is neither
    edge_start: np.ndarray  # int64 [G + 1]
    edges: np.ndarray  # int32 [edges, 2], sorted pairs (lower, higher) of node numbers in the graph, no loops
    classes: tuple[str, ...]  # the file's labels in order

    def __len__(self) -> int:
        return len(self.labels)

    sizes = property(lambda self: Sizes(self.features.shape[1], self.classes))

    def graph(self, g: int) -> tuple[int, np.ndarray]:
        """The number of nodes of graph g, and its edges."""
        edges = self.edges[self.edge_start[g] : self.edge_start[g + 1]]
        return int(self.node_start[g + 1] - self.node_start[g]), edges


class Fold(NamedTuple):  # graph numbers, int64
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def load_tudataset(name: str, root: str | None = None, *, download: bool = True, verify: bool = True) -> GraphSet:
    """Reads a set, after fetching it into <root>/tudataset/<name>/ unless it is there, in <root>/<name>/ or in raw/ of
    either. Raises UserError for files that are missing or damaged, or with `verify` not of the known fingerprint."""
    folder = data_root(root)
    places = [place / below for place in (folder / "tudataset" / name, folder / name) for below in ("", "raw")]
    places += [TOY] * (name == TOY.name)
    found = next((place for place in places if (place / f"{name}_A.txt").is_file()), None)
    if found is None:
        if not download:
            raise UserError(f"{places[0]}: no {name}_A.txt there; data.download=true fetches it, or see data.root")
        found = _download(name, places[0])
    graphs = read_tudataset(name, found)
    known = FINGERPRINTS.get(name)
    if verify and known not in (None, own := fingerprint(graphs)):
        what = f"{found}: not the {name} that results here come from (fingerprint {own}, not {known})"
        raise UserError(f"{what}; delete that folder to fetch it again, or take it as it is with data.verify=false")
    return graphs


def read_tudataset(name: str, folder: Path) -> GraphSet:
    """The set `name` from the text files in `folder`. Raises UserError naming a file that is missing or damaged."""
    files = {kind: folder / f"{name}_{kind}.txt" for kind in ("A", "graph_indicator", "graph_labels")}
    graph_of, labels = (_table(files[kind], columns=1)[:, 0] for kind in ("graph_indicator", "graph_labels"))
    pairs = _table(files["A"], columns=2)
    count = len(labels)
    nodes = len(graph_of)
    if 0 in (nodes, count) or graph_of[0] != 1 or graph_of[-1] != count or not np.isin(np.diff(graph_of), (0, 1)).all():
        raise _damaged(files["graph_indicator"], f"must count up from 1 to the {count} graphs of graph_labels")
    if pairs.min() < 1 or pairs.max() > nodes:
        raise _damaged(files["A"], f"must hold pairs of node numbers from 1 to {nodes}")
    crossing = np.flatnonzero(graph_of[pairs[:, 0] - 1] != graph_of[pairs[:, 1] - 1])
    if len(crossing):
        raise _damaged(files["A"], f"line {crossing[0] + 1} joins nodes of two graphs")
    edges = np.unique(np.sort(pairs - 1, axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    graph = graph_of[edges[:, 0]] - 1
    node_start = np.searchsorted(graph_of, np.arange(1, count + 2))
    classes, labels = np.unique(labels, return_inverse=True)
    return GraphSet(
        labels=labels.astype(np.int32),
        node_start=node_start,
        features=_features(folder / f"{name}_node_attributes.txt", folder / f"{name}_node_labels.txt", nodes),
        edge_start=np.searchsorted(graph, np.arange(count + 1)),
        edges=(edges - node_start[graph][:, None]).astype(np.int32),
        classes=tuple(map(str, classes.tolist())),
    )


def _table(path: Path, columns: int | None = None, dtype: type = np.int64) -> np.ndarray:
    try:
        table = np.loadtxt(path, dtype, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if columns not in (None, table.shape[1]):
        raise _damaged(path, f"has {table.shape[1]} columns, not {columns}")
    return table


def _features(attributes: Path, labels: Path, nodes: int) -> np.ndarray:
    """Attributes, then each column of labels one-hot, or a one where there is neither file: float32 [nodes, F]."""
    parts = []
    for path, dtype in ((attributes, np.float64), (labels, np.int64)):
        if path.exists():
            table = _table(path, dtype=dtype)
            if len(table) != nodes:
                raise _damaged(path, f"has {len(table)} lines for {nodes} nodes")
            if not (np.abs(table) < FLOAT32_MAX).all():
                raise _damaged(path, "has numbers that are not finite")
            parts += [table] if path == attributes else [column[:, None] == np.unique(column) for column in table.T]
    return np.concatenate(parts or [np.ones((nodes, 1))], axis=1, dtype=np.float32)


def _damaged(path: Path, why: str) -> UserError:
    remedy = f"correct it, or delete {path.parent} to fetch a set of TUDataset again, or name another data.root"
    return UserError(f"{path}: missing or damaged ({why}); {remedy}")


def fingerprint(graphs: GraphSet) -> str:
    """SHA-256 of labels, structure and node features, whatever the order and the spaces in the text files."""
    fields = {"labels": "<i4", "node_start": "<i8", "edge_start": "<i8", "edges": "<i4", "features": "<f4"}
    content = b"".join(getattr(graphs, field).astype(dtype).tobytes() for field, dtype in fields.items())
    return hashlib.sha256(content).hexdigest()


def make_folds(labels: np.ndarray, folds: int = 10, seed: int = 42) -> list[Fold]:
    """Stratified folds: each is the test set once, and 1 / (folds - 1) of the rest validates. Raises UserError."""
    from sklearn.model_selection import StratifiedKFold, train_test_split

    counts = np.bincount(labels)
    if counts.min() < folds:
        raise UserError(f"data.folds={folds}: more than the {counts.min()} graphs of the smallest class")
    result = []
    for rest, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels):
        train, val = train_test_split(rest, test_size=1 / (folds - 1), random_state=seed, stratify=labels[rest])
        result.append(Fold(train, val, test))
    return result


def _download(name: str, folder: Path) -> Path:
    """Fetches and unpacks a set into `folder`; a second process that asks for it waits for the first."""
    url = URL.format(name=name)
    print(f"TUDataset: fetching {url}", file=sys.stderr, flush=True)
    try:
        with _open(url) as answer:  # first: what is no set leaves no lock behind
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / f".{name}.lock"), tempfile.TemporaryDirectory(dir=folder.parent) as new:
                if not (folder / f"{name}_A.txt").is_file():
                    _unpack(name, url, _read(url, answer), Path(new, name))
                    if folder.is_dir() and any(folder.iterdir()):
                        raise UserError(f"{folder}: has no {name}_A.txt but other files; move it away to fetch the set")
                    os.rename(Path(new, name), folder)
    except (OSError, HTTPException, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        is_of_file = getattr(error, "filename", None) and error.strerror  # an HTTPError's name is the address
        why = f"{error.filename}: {error.strerror}" if is_of_file else error
        remedy = f"is it one of {', '.join(SIZES)}? If there is such a set, put its text files into {folder}"
        raise DownloadError(f"data.name={name}: cannot fetch {url} ({why}); {remedy}") from error
    return folder


def _open(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=TIMEOUT)


def _read(url: str, answer: Any) -> bytes:
    content = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{url}: has more than {MOST_BYTES:,} bytes")
    return content


def _unpack(name: str, url: str, archive: bytes, folder: Path) -> None:
    """Writes the set's files into a new folder, by the last part of their paths alone."""
    folder.mkdir()
    with zipfile.ZipFile(io.BytesIO(archive)) as content:  # checks every file's CRC
        entries = [e for e in content.infolist() if Path(e.filename).name.startswith(f"{name}_") and not e.is_dir()]
        if (size := sum(entry.file_size for entry in entries)) > MOST_BYTES:
            raise UserError(f"{url}: unpacks to {size:,} bytes, and at most {MOST_BYTES:,} are taken")
        for entry in entries:
            (folder / Path(entry.filename).name).write_bytes(content.read(entry))
    if not (folder / f"{name}_A.txt").is_file():
        raise UserError(f"{url}: has no {name}_A.txt in it")
