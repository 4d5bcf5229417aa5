"""Make a small data set of photograph-like JPEGs in the layout of the official ImageNet tars, to try everything on.

    python scripts/make_photos.py --classes 10 --train 200 --val 20 --out photos
    make data-imagenet MANUAL=photos DATA=photos/data

A class is a texture, a shape of objects on it, colours and a scale; within it position, angle, light, noise, size (120
to 500 pixels) and JPEG quality vary. Classes are named as real ones. Everything is a function of the arguments.
"""

import io
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image

from data.imagenet.source import TRAIN_TAR, VAL_TAR, synsets
from plstm.errors import UserError, run_script
from scripts.common import Parser

TAU = 2 * np.pi
WAVES = (  # amount of the second colour at u, v, which count periods
    lambda u, v: np.sin(TAU * u),  # stripes
    lambda u, v: np.sin(TAU * u) * np.sin(TAU * v) * 2,  # checks
    lambda u, v: np.cos(TAU * u) + np.cos(TAU * v) - 0.9,  # dots
    lambda u, v: np.sin(TAU * np.hypot(u, v)),  # rings
)
SHAPES = (  # whether a point lies in the shape of radius about 1
    lambda x, y: np.hypot(x, y) < 1,  # disc
    lambda x, y: np.maximum(abs(x), abs(y)) < 0.85,  # square
    lambda x, y: np.maximum(y, abs(x) * 1.73 - y) < 0.75,  # triangle
    lambda x, y: abs(np.hypot(x, y) - 0.8) < 0.25,  # ring
    lambda x, y: (np.minimum(abs(x), abs(y)) < 0.28) & (np.hypot(x, y) < 1),  # cross
    lambda x, y: np.hypot(x, y) < 0.65 + 0.4 * np.cos(5 * np.arctan2(y, x)),  # star
    lambda x, y: (abs(x) < 1.2) & (abs(y) < 0.25),  # bar
)


def smooth_noise(rng: np.random.Generator, width: int, height: int, cells: int) -> np.ndarray:
    """Float32 [height, width], about normal: random numbers on a grid of `cells` a side, bicubic in between."""
    grid = Image.fromarray(rng.standard_normal((cells, cells)).astype(np.float32))
    return np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))


def draw(number: int, rng: np.random.Generator) -> Image.Image:
    """One picture of class `number`."""
    short, long = np.sort(rng.integers(120, 501, 2))
    short = max(short, long // 2)
    width, height = (long, short) if rng.random() < 0.7 else (short, long)
    colours = []
    for shift in (0, 0.12, 0.5):  # golden steps keep the hues of any number of classes apart
        pure = 0.5 + 0.5 * np.cos(TAU * (0.618 * number + shift + rng.normal(0, 0.03) + np.array([0, 1, 2]) / 3))
        colours.append(rng.uniform(0.15, 0.35) + rng.uniform(0.45, 0.65) * pure)

    y, x = np.mgrid[:height, :width].astype(np.float32) / short
    x -= rng.uniform(0, width / short)
    y -= rng.uniform(0, height / short)
    angle = 0.4 * number + rng.normal(0, 0.2)
    period = (0.09, 0.16, 0.28)[number // 5 % 3] * np.exp(rng.normal(0, 0.15))
    bend = 0.03 * smooth_noise(rng, width, height, 4)
    u = (x * np.cos(angle) + y * np.sin(angle) + bend) / period
    v = (y * np.cos(angle) - x * np.sin(angle) + bend) / period
    kind = number % (len(WAVES) + 1)
    if kind < len(WAVES):
        field = WAVES[kind](u, v)
    else:  # clouds
        cells = max(int(u.max() - u.min()), 3)
        field = smooth_noise(rng, width, height, cells) + smooth_noise(rng, width, height, 2 * cells) / 2
    share = 1 / (1 + np.exp(-4 * field))[..., None]
    picture = colours[0] * (1 - share) + colours[1] * share

    y, x = np.mgrid[:height, :width].astype(np.float32) / short
    for _ in range(rng.integers(2, 5)):
        scale = rng.uniform(0.12, 0.28)
        turn = rng.uniform(-0.6, 0.6)
        left = (x - rng.uniform(0.1, 0.9) * width / short) / scale
        down = (y - rng.uniform(0.1, 0.9)) / scale
        a = left * np.cos(turn) + down * np.sin(turn)
        b = down * np.cos(turn) - left * np.sin(turn)
        body = SHAPES[number % len(SHAPES)](a, b)
        picture[body] = colours[2] * rng.uniform(0.75, 1.2) * (1 - 0.25 * a + 0.25 * b)[body][:, None]

    light = np.exp(0.25 * smooth_noise(rng, width, height, 3))[..., None] * rng.uniform(0.7, 1.15)
    picture = 255 * picture * light + rng.normal(0, rng.uniform(3, 12), picture.shape)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def encode(picture: Image.Image, quality: int, subsampling: int) -> bytes:
    """A JPEG."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, subsampling=subsampling)
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes | None) -> None:
    """Appends a file to an open tar, or without content an empty folder."""
    member = tarfile.TarInfo(name)
    if content is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def make(out: Path, classes: int, train: int, val: int, seed: int = 0) -> None:
    """Writes both tars into `out`: `train` and `val` images of each class. A validation image's class follows from its
    position among all 50,000, so empty folders, which readers skip, take the places of images that are left out."""
    for name, value, most in (("classes", classes, 1000), ("train", train, 5000), ("val", val, 50)):
        if not 1 <= value <= most:
            raise UserError(f"--{name} {value}: must be 1 to {most}")
    if seed < 0:
        raise UserError(f"--seed {seed}: must be at least 0")
    names = [synsets()[n * 1000 // classes] for n in range(classes)]
    out.mkdir(parents=True, exist_ok=True)

    def photo(split: int, number: int, index: int) -> bytes:
        rng = np.random.default_rng((seed, split, number, index))
        return encode(draw(number, rng), int(rng.integers(75, 97)), int(rng.integers(0, 3)))

    with tarfile.open(out / TRAIN_TAR, "w") as whole:
        for number, name in enumerate(names):
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w") as tar:
                for index in range(train):
                    add(tar, f"{name}_{index}.JPEG", photo(0, number, index))
            add(whole, f"{name}.tar", file.getvalue())
    labels = np.array(synsets("validation_labels.txt"))
    drawn = {place: n for n, name in enumerate(names) for place in np.flatnonzero(labels == name)[:val].tolist()}
    with tarfile.open(out / VAL_TAR, "w") as tar:
        for place in range(max(drawn) + 1):
            content = photo(1, drawn[place], place) if place in drawn else None
            add(tar, f"ILSVRC2012_val_{place + 1:08}.JPEG", content)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--classes", type=int, default=10, help="at most 1,000")
    parser.add_argument("--train", type=int, default=200, help="training images a class")
    parser.add_argument("--val", type=int, default=20, help="validation images a class, at most 50")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument("--out", type=Path, required=True, help="folder for the two tars")
    options = parser.parse_args()
    make(options.out, options.classes, options.train, options.val, options.seed)
    print(f"{options.out}: {TRAIN_TAR} and {VAL_TAR}")


if __name__ == "__main__":
    run_script(main)
