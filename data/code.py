"""Python source code, a byte a token: of packages of the index, of a folder of one's own, or a few made-up functions.

    python -m data.code fetch       # once: 24 wheels (67 MB), which are read as archives and not installed
    python -m data.code list        # files and bytes of each package

A package's tokens are its files, one after another, each a SEPARATOR and its bytes. Left out are tests, vendored and
generated code, files that are tables of numbers or of characters other than ASCII, and copies of a file. Models train
on the first packages below, but for every twentieth file, which is `val`; `test` is of packages that no training sees.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.random import RandomState

from data.packages import Archives, fetch_again, fetch_arrays, fetch_parser, load_arrays
from plstm.errors import UserError, first_line, run_script
from plstm.files import data_root, files_below

SEPARATOR = 256
SPLITS = ("train", "val", "test")
HELD_OUT = 20  # every so many files one of `val`
FILE = "code.npz"
DIGEST = "2720b3473c2b"  # of `digest`
LEFT_OUT = re.compile(r"(^|/)_?test|_tests?\.py$|(^|/)conftest\.py$|(^|/)(_?vendor|externals)/|_pb2")
DIGITS = 0.15  # a larger share of a file's bytes makes it a table
OTHERS = 0.03  # the same of bytes that are no ASCII
Corpus = Mapping[str, Mapping[str, np.ndarray]]  # split -> group, such as a package -> tokens uint16 [T]

TRAIN = {
    "pandas": ("3.1.1", "028490c8ac2e03e18c9b08b7f3612e149b03570209bcf741d23833a7a5377ab2"),
    "scikit_learn": ("1.9.1", "e5d7b18a5b9dca241a74695f3275fa4c895a9dadc72b3d8df5fa9d1083c9b83e"),
    "matplotlib": ("3.11.2", "df4f7784aca81a94f254c0a2767d592ee25f407e488f5fa7203e51093fb6ca27"),
    "tensorflow_datasets": ("4.9.10", "7ec065f0a628e28152b487ba9cbe72fa36d3854705d9f3abd04c6cf5d7a91527"),
    "fonttools": ("4.68.0", "3edce69ecdefa73ab1041901ca22eefed6ebb93a77bc77e889d940479f25bf7d"),
    "wandb": ("0.31.0", "009bcf370598d5e7a3d3bb66e33510f78c17fcc0505f8aa7ecf51dbc4378f979"),
    "orbax_checkpoint": ("0.12.8", "6a42c005db85bf412ae39598a008c894070fd69ca94ee39e2cca02c7ccc28d1f"),
    "narwhals": ("2.29.0", "1c69b3dc30240f6e848c5a673cafc86affa44184ecce721e25b7194663ad10dc"),
    "pydantic": ("2.14.3", "3f7b347782ab7e4cf4c798496ae3a82787d9f21ec12676a9c564355eeef8daa8"),
    "hypothesis": ("6.170.15", "e9e20ec17d2095e9314ea232b4e34b5510def0d9e7a7e764cc70cae88fe4b0c4"),
    "optax": ("0.2.8", "e3ca2d36c99daab1800ae9dbc0545034382d6bc780b24d969e1b0df65fa31cb4"),
    "grain": ("0.2.18", "1ecd87427b4050b695f9b9b5a41d8058208586d3f90a2e56f14a64f920aa47f8"),
    "fsspec": ("2026.9.0", "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f"),
    "absl_py": ("2.5.1", "721200f2f0e9960f2ca9dc3a2a706b201f5f75d812c158f059cbbe29eeafbdb8"),
    "etils": ("1.15.0", "b9e7f3d7ab980c564245cd54e2b928e6abcb0521d6042ad3fdb13eea725309f0"),
    "click": ("8.5.1", "8bb5376d2006950386f8c6427613334a2acadc5f559cb80e638d00b4df957e37"),
    "joblib": ("1.6.0", "3dbbf9f6e4b592a2357b854608e980fe6390d131d7a82f011a377ef2ebef7aba"),
}
TEST = {
    "pytest": ("9.2.0", "07acdcf88ec174f907dc01af70bf52d49b014bbab03faeeade31c96b18c2e588"),
    "rich": ("15.0.0", "33bd4ef74232fb73fe9279a257718407f169c09b78a87ad3d296f548e27de0bb"),
    "hydra_core": ("1.3.8", "d5f184c291691cba835c7f04bc4e36270ad88b1d7e394a3712f5af084c30b394"),
    "omegaconf": ("2.3.1", "3d701d14e9a8828f1edd28bb70b725908b34277cdd72cf7d6a83f94dadc6b6a0"),
    "httpx": ("0.28.1", "d909fcccc110f8c7faf814ca82a9a4d816bc5a6dbfea25d6591d6985b8ba59ad"),
    "requests": ("2.34.2", "2a0d60c172f83ac6ab31e4554906c0f3b3588d37b5cb939b1c061f4907e278e0"),
    "attrs": ("26.1.0", "c647aa4a12dfbad9333ca4e71fe62ddc36f4e63b2d260a37a8b83d2f043ac309"),
}


# ---------------------------------------------------------------------- from files to tokens
def as_tokens(files: Iterable[bytes]) -> np.ndarray:
    """uint16 [T]: before each file a SEPARATOR."""
    separator = np.array([SEPARATOR], np.uint16)
    return np.concatenate([part for file in files for part in (separator, np.frombuffer(file, np.uint8))])


def digest(corpus: Corpus) -> str:
    """SHA-256 of all tokens and the names of their groups, 12 digits."""
    found = hashlib.sha256()
    for split in SPLITS:
        for group, tokens in corpus[split].items():
            found.update(f"{split}/{group} {len(tokens)}\n".encode() + tokens.astype("<u2").tobytes())
    return found.hexdigest()[:12]


def is_table(content: bytes) -> bool:
    """Whether a file is mostly numbers, or bytes that are not ASCII."""
    values = np.frombuffer(content, np.uint8)
    digits = (values >= ord("0")) & (values <= ord("9"))
    return digits.mean() > DIGITS or (values >= 128).mean() > OTHERS


def split_files(files: Mapping[str, Mapping[str, bytes]]) -> Corpus:
    """The corpus of all .py files by package and name."""
    parts: dict[str, dict[str, list[bytes]]] = {split: {} for split in SPLITS}
    seen = set()
    kept = 0
    for package, contents in files.items():
        for name, content in sorted(contents.items()):
            if content in seen or not content or LEFT_OUT.search(name) or is_table(content):
                continue
            seen.add(content)
            kept += 1
            split = "test" if package in TEST else "val" if kept % HELD_OUT == 0 else "train"
            parts[split].setdefault(package, []).append(content)
    return {split: {package: as_tokens(own) for package, own in groups.items()} for split, groups in parts.items()}


# ---------------------------------------------------------------------- packages
def fetch(root: str | None, wheels: Path | None) -> Path:
    """Writes the corpus of the packages into one file in the data root; see `fetch_arrays`."""

    def arrays_of(archives: Archives) -> dict[str, np.ndarray]:
        files = {}
        for package, wheel in archives.items():
            files[package] = {name: wheel.read(name) for name in wheel.namelist() if name.endswith(".py")}
        corpus = split_files(files)
        return {f"{split}/{group}": tokens for split in SPLITS for group, tokens in corpus[split].items()}

    return fetch_arrays(data_root(root) / FILE, TRAIN | TEST, wheels, "data.code", arrays_of)


def load_packages(root: str | None) -> Corpus:
    """What `fetch` wrote. Raises UserError where it is missing or damaged."""
    path = data_root(root) / FILE
    again = fetch_again("data.code", root)
    corpus: dict[str, dict[str, np.ndarray]] = {split: {} for split in SPLITS}
    for key, tokens in load_arrays(path, again).items():
        split, _, group = key.partition("/")
        if split not in SPLITS:
            raise UserError(f"{path}: damaged ({key}); {again}")
        corpus[split][group] = tokens
    if (own := digest(corpus)) != DIGEST:
        raise UserError(f"{path}: its digest is {own}, not {DIGEST}; {again}")
    return corpus


# ---------------------------------------------------------------------- other texts
def load_folder(path: str | None) -> Corpus:
    """A folder's text: all files below its train/, val/ and test/ that are not hidden, in the order of their paths. A
    group is a folder in one of these. Raises UserError for a split without files and for a file without bytes."""
    if not path:
        raise UserError("data.path: name the folder of text, data.path=...")
    corpus: dict[str, dict[str, np.ndarray]] = {}
    for split in SPLITS:
        folder = Path(path) / split
        groups: dict[str, list[bytes]] = {}
        for file in files_below(folder) if folder.is_dir() else ():
            parts = file.relative_to(folder).parts
            try:
                content = file.read_bytes()
            except OSError as error:
                raise UserError(f"{file}: {first_line(error)}; see data.path") from error
            if not content:
                raise UserError(f"{file}: has no bytes; delete it")
            group = parts[0] if len(parts) > 1 else split
            if not group.isprintable():
                raise UserError(f"{folder}: the name of its folder {ascii(group)} is not text; rename it")
            groups.setdefault(group, []).append(content)
        if not groups:
            raise UserError(f"data.path={path}: {folder} has no files; text lies in train/, val/ and test/")
        corpus[split] = {group: as_tokens(files) for group, files in groups.items()}
    return corpus


def toy() -> Corpus:
    """Made-up functions, for tests and debug=smoke."""
    rng = RandomState(0)
    names = ("area", "length", "volume", "weight", "height")

    def function() -> str:
        name, first, second = rng.choice(names, 3, replace=False)
        body = f'    """The {name} of {first}."""\n'
        body += f"    {name}_all = [{first}(x) for x in ({second}_of[0], {second})]\n    if {name}_all:\n"
        return f"def {name}_{first}({first}, {second}):\n{body}        return {name}_all\n    return {first}\n\n\n"

    def group(files: int) -> np.ndarray:
        return as_tokens("".join(function() for _ in range(rng.randint(1, 20))).encode() for _ in range(files))

    return {"train": {"toy": group(20)}, "val": {"toy": group(4)}, "test": {"first": group(4), "second": group(3)}}


@functools.lru_cache(maxsize=1)
def load_corpus(name: str, root: str | None, path: str | None = None) -> Corpus:
    """`packages`, `toy` or `folder`. Raises UserError where it cannot be had."""
    if name == "toy":
        return toy()
    return load_folder(path) if name == "folder" else load_packages(root)


# ---------------------------------------------------------------------- the command
def main() -> None:
    packages = TRAIN | TEST
    parser, commands, root = fetch_parser("data.code", "Python source code.", packages, "(67 MB), keep their code")
    commands.add_parser("list", parents=[root], help="print files and bytes of each package")
    arguments = parser.parse_args()
    if arguments.command == "fetch":
        print(fetch(arguments.root, arguments.wheels))
        return
    corpus = load_packages(arguments.root)
    print("split  package              files       bytes")
    for split, groups in corpus.items():
        counts = {group: (int((tokens == SEPARATOR).sum()), len(tokens)) for group, tokens in groups.items()}
        total = tuple(map(sum, zip(*counts.values(), strict=True)))
        for group, (files, tokens) in [*counts.items(), ("all", total)]:
            print(f"{split:5}  {group:19}  {files:5}  {tokens - files:10,}")


if __name__ == "__main__":
    run_script(main)
