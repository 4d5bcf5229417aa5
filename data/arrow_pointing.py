"""The arrow-pointing data set (arXiv 2506.11997, Section 4.1) as a TFDS builder, and its loading; no TensorFlow needed.

    python -m data.arrow_pointing build --seed 43             # prepare; also: hash, sheet; see --help
    tfds.data_source("arrow_pointing/seed43", data_dir=...)   # after `import data.arrow_pointing`

Files are array_record, which TFDS writes and reads without TensorFlow. Where TensorFlow is installed there are also

    tfds build data/arrow_pointing.py --config seed43 --data_dir ...    # it imports apache-beam and mlcroissant, too
    tfds.load("arrow_pointing/seed43", data_dir=<a folder of its own>, builder_kwargs={"file_format": "tfrecord"})
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import io
import os
import shlex
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from PIL import Image
from tqdm import tqdm

from data.arrow_law import LABELS, SPLITS, ArrowLaw, render, split_geometry, split_law
from data.packed import PackedSplit, pack, packed_bytes
from plstm.errors import UserError

SMALL = {"size": 48, "scale": 0.25, "train_images": 50_000, "eval_images": 2_048}  # same law, for small machines


@dataclasses.dataclass(eq=False)
class ArrowConfig(tfds.core.BuilderConfig):
    """One variant of the data set; see `arrow_config`, which everyone but TFDS should call.

    train_seed: the seed of the training images. size: the training canvas in pixels; the extended splits double it.
    scale: of every other pixel length. train_images, eval_images: images per split, None for the paper's counts.
    Raises UserError for values that make no data set.
    """

    name: str = dataclasses.field(default="", init=False)  # always tells the other fields
    train_seed: int = 43
    size: int = 192
    scale: float = 1.0
    train_images: int = SPLITS["train"].images
    eval_images: int | None = None

    def __post_init__(self):
        self.scale = float(self.scale)
        ArrowLaw(self.size, self.scale)
        if self.train_seed < 0:
            raise UserError(f"data.train_seed={self.train_seed}: must be 0 or more; the paper's are 43 to 47")
        for key in ("train_images", "eval_images"):
            count = getattr(self, key)
            if count is not None and count < 1:
                raise UserError(f"data.{key}={count}: must be at least 1")
        self.name = self._full_name()

    def __reduce__(self):  # reading processes get the variant pickled, and TFDS wants named ones to be its own objects
        return arrow_config, (self.train_seed, self.size, self.scale, self.train_images, self.eval_images)

    def _full_name(self) -> str:
        """A name that no other variant has: every field that differs from the paper's, or `small_` for `SMALL`."""
        paper = {field.name: field.default for field in dataclasses.fields(ArrowConfig)}
        own = {key: getattr(self, key) for key in SMALL if getattr(self, key) != paper[key]}
        if own == SMALL:
            return f"small_seed{self.train_seed}"
        return "_".join([f"seed{self.train_seed}", *(f"{key.removesuffix('_images')}{own[key]}" for key in own)])

    @property
    def law(self) -> ArrowLaw:
        """The training law; `data.arrow_law.split_law` gives a split's."""
        return ArrowLaw(self.size, self.scale)

    def images(self, split: str) -> int:
        """How many images `split` has."""
        return self.train_images if split == "train" else self.eval_images or SPLITS[split].images


def arrow_config(
    train_seed: int = 43,
    size: int = 192,
    scale: float = 1.0,
    train_images: int = SPLITS["train"].images,
    eval_images: int | None = None,
) -> ArrowConfig:
    """The variant with these fields (see `ArrowConfig`); its name tells all of them: no two share a folder."""
    config = ArrowConfig(
        train_seed=train_seed, size=size, scale=scale, train_images=train_images, eval_images=eval_images
    )
    named = {known.name: known for known in ArrowPointing.BUILDER_CONFIGS}
    return named.get(config.name, config)


class ArrowPointing(tfds.core.GeneratorBasedBuilder):
    """Does the arrow point at the circle? Black on white, no anti-aliasing, labels balanced."""

    VERSION = tfds.core.Version("1.0.0")
    code_path = tfds.core.Path(__file__)  # TFDS's own search needs importlib_resources, which it does not declare
    BUILDER_CONFIGS = [ArrowConfig(train_seed=seed) for seed in range(43, 48)] + [
        ArrowConfig(train_seed=seed, **SMALL) for seed in range(43, 48)
    ]

    def __init__(self, *, file_format: str | None = None, **kwargs: Any):
        super().__init__(file_format=file_format or "array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        number = tfds.features.Scalar
        geometry = {"length": number(np.int32), "width": number(np.int32)}
        geometry |= {key: number(np.float32) for key in ("ax", "ay", "radius", "cx", "cy", "phi")}
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            homepage="https://arxiv.org/abs/2506.11997",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=LABELS),
                    **geometry,
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # the stored order is the law's, so a split's hash can be checked
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        config = self.builder_config
        law, count = split_law(split, config.law), config.images(split)
        for index, arrow in enumerate(split_geometry(split, config.law, config.train_seed, count)):
            yield index, {"image": Image.fromarray(render(arrow, law)), **arrow._asdict()}


def data_root(root: str | None) -> Path:
    """The folder of all data sets: `root`, or $PLSTM_DATA, or ~/.cache/plstm/data (made when missing).

    Raises UserError when a folder that the user named does not exist, or when the default cannot be made.
    """
    named = root or os.environ.get("PLSTM_DATA")
    if not named:
        default = Path("~/.cache/plstm/data").expanduser()
        with _told_by_path(default):
            default.mkdir(parents=True, exist_ok=True)
        return default
    folder = Path(named).expanduser().absolute()
    if not folder.is_dir():
        key = f"data.root={root}" if root else f"PLSTM_DATA={named}"
        raise UserError(f"{key}: no such folder; create it (mkdir -p {shlex.quote(str(folder))}) or name another")
    return folder


def build_command(config: ArrowConfig, root: str | None = None) -> str:
    """The shell command that prepares `config`."""
    words = ["python", "-m", "data.arrow_pointing", "build", "--seed", config.train_seed]
    words += ["--size", config.size, "--scale", config.scale, "--train-images", config.train_images]
    words += ["--eval-images", config.eval_images] if config.eval_images else []
    words += ["--root", root] if root else []
    return shlex.join(str(word) for word in words)


def prepare(config: ArrowConfig, root: str | None = None, generate: bool = True) -> ArrowPointing:
    """The builder of `config` with its data on disk, generated first where missing (about a minute for the paper's).

    A second process that asks for the same data waits for the first. Raises UserError when the data is missing and
    `generate` is False, and when it cannot be written.
    """
    folder = data_root(root)
    with quiet():
        builder = ArrowPointing(config=config, data_dir=folder)
        if builder.is_prepared():
            return builder
        if not generate:
            raise UserError(f"{builder.data_path}: no data there; build it with: {build_command(config, root)}")
        with _told_by_path(folder), open(folder / f".arrow_pointing_{config.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            builder = ArrowPointing(config=config, data_dir=folder)  # another process may have prepared it meanwhile
            if not builder.is_prepared():
                images = sum(config.images(split) for split in SPLITS)
                print(f"arrow pointing: preparing {images:,} images in {builder.data_path}", file=sys.stderr)
                builder.download_and_prepare()
        if not builder.is_prepared():  # TFDS leaves a folder as it is that exists without what it needs
            raise _damaged(builder.data_path, "dataset_info.json is missing")
    return builder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """TFDS without its notes on standard output, its hints, and progress bars where no terminal shows them."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _told_by_path(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.filename or path}: {error.strerror or error}"
        raise UserError(f"{why}; correct that, or set another data.root") from error
    except RuntimeError as error:  # what array_record makes of a full disk
        raise UserError(f"{path}: cannot be written ({error}); correct that, or set another data.root") from error


def data_source(
    config: ArrowConfig, split: str, root: str | None = None, generate: bool = True
) -> Sequence[dict[str, Any]]:
    """Random access to a split: item i has "image" uint8 [S, S, 1] (0 or 255), "label", and `Arrow`'s other fields.

    Order and pixels are those of the law. Raises UserError as `prepare` does, for an unknown split, and where images
    are missing.
    """
    if split not in SPLITS:
        raise UserError(f"data.split={split}: no such split; choose from {', '.join(SPLITS)}")
    builder = prepare(config, root, generate)
    source = builder.as_data_source(split)
    if len(source) != config.images(split):
        raise _damaged(builder.data_path, f"{split} has {len(source)} images, not {config.images(split)}")
    return source


def _damaged(folder: os.PathLike, why: str) -> UserError:
    return UserError(f"{folder}: damaged data set ({why}); delete that folder to have it built again")


def load_packed(config: ArrowConfig, split: str, root: str | None = None, generate: bool = True) -> PackedSplit:
    """A whole split at one bit a pixel, read-only; the first call packs it into a file that later calls memory-map.

    A damaged file is packed again; where it cannot be kept (read-only folder, full disk) a warning says so.
    Raises UserError as `data_source` does, and for a damaged data set.
    """
    source = data_source(config, split, root, generate)
    size, count = split_law(split, config.law).size, len(source)
    folder = Path(source.dataset_info.data_dir)
    path = folder / "packed" / f"{split}.npy"
    flat = _read_packed(path, count, size)
    if flat is None:
        try:
            with quiet():
                flat = _pack_source(source, split, size)
        except (RuntimeError, OSError) as error:  # what array_record and Pillow make of a damaged file
            raise _damaged(folder, str(error)) from error
        try:
            _save(path, flat)
        except OSError as error:
            message = f"{path}: cannot keep the packed images ({error.strerror}); every start packs them again"
            warnings.warn(message, stacklevel=2)
    return PackedSplit(*_views(flat, count, size), size)


def _views(flat: np.ndarray, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The bits [count, bytes an image] and labels [count] of a packed file's array, which a CRC-32 of 4 bytes ends."""
    row = packed_bytes(size)
    return flat[: count * row].reshape(count, row), flat[count * row : -4]


def _length(count: int, size: int) -> int:
    return count * (packed_bytes(size) + 1) + 4


def _checksum(flat: np.ndarray) -> np.ndarray:
    return np.frombuffer(zlib.crc32(flat[:-4]).to_bytes(4, "little"), np.uint8)


def _read_packed(path: Path, count: int, size: int) -> np.ndarray | None:
    """The packed file's array, or None where there is none or it is damaged."""
    try:
        flat = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    fits = flat.shape == (_length(count, size),) and flat.dtype == np.uint8
    return flat if fits and np.array_equal(flat[-4:], _checksum(flat)) else None


def _pack_source(source: Sequence[dict[str, Any]], split: str, size: int) -> np.ndarray:
    count = len(source)
    flat = np.empty(_length(count, size), np.uint8)
    bits, labels = _views(flat, count, size)
    print(f"arrow pointing: packing {count:,} images of {split}", file=sys.stderr)
    for index in tqdm(range(count), desc=f"packing {split}", leave=False, disable=None):
        example = source[index]
        bits[index], labels[index] = pack(example["image"][..., 0]), example["label"]
    flat[-4:] = _checksum(flat)
    flat.flags.writeable = False
    return flat


def _save(path: Path, flat: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            np.save(file, flat)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _build(args: argparse.Namespace) -> str:
    config = arrow_config(args.seed, args.size, args.scale, args.train_images, args.eval_images)
    return str(prepare(config, args.root).data_path)


if __name__ == "__main__":
    from data.arrow_cli import main

    # Handed over, as TFDS refuses a second import of this module under its real name.
    raise SystemExit(main(_build))
