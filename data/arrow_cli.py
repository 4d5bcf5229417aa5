"""The commands behind `python -m data.arrow_pointing`: hash a split, draw a contact sheet, build the data set."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.arrow_law import SPLITS, Arrow, ArrowLaw, digest, render, split_geometry, split_law
from plstm.errors import UserError

TITLES = {1: "points at the circle", 0: "points away"}


def main(build: Callable[[argparse.Namespace], str]) -> int:
    """Run the command in sys.argv; `build` prepares the data set and returns its folder. Returns the exit status."""
    args = _parser().parse_args()
    try:
        if args.command == "build":
            print(build(args))
        elif args.command == "hash":
            print_hash(args)
        else:
            draw_sheet(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data.arrow_pointing", description="The arrow-pointing data set.")
    law = argparse.ArgumentParser(add_help=False)
    law.add_argument("--size", type=int, default=192, help="training canvas in pixels; extended splits double it (192)")
    law.add_argument("--scale", type=float, default=1.0, help="multiplies every other pixel length (1.0)")
    some = argparse.ArgumentParser(add_help=False, parents=[law])
    some.add_argument("split", choices=SPLITS)
    some.add_argument("--seed", type=int, help="of the training images; for the split train only (43)")
    some.add_argument("--count", type=int, help="only the first so many images")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("hash", parents=[some], help="print: split, images, positives, sha256 of pixels and labels")
    sheet = commands.add_parser("sheet", parents=[some], help="draw the first images with their labels")
    sheet.add_argument("out", type=Path, help="the picture to write, .png or another format of matplotlib's")
    build = commands.add_parser("build", parents=[law], help="prepare the data set; print its folder")
    build.add_argument("--seed", type=int, default=43, help="of the training images (43)")
    build.add_argument("--train-images", type=int, default=SPLITS["train"].images)
    build.add_argument("--eval-images", type=int, help="images of each other split (the paper's)")
    build.add_argument("--root", help="folder of all data sets ($PLSTM_DATA, else ~/.cache/plstm/data)")
    return parser


def _images(args: argparse.Namespace, count: int) -> Iterator[tuple[Arrow, np.ndarray]]:
    """The first `count` geometries and images of the split that the command line asks for."""
    limit = SPLITS[args.split].images
    if not 1 <= count <= limit:
        raise UserError(f"--count {count}: {args.split} has 1 to {limit} images to take")
    if args.seed is not None and args.split != "train":
        raise UserError(f"--seed {args.seed}: {args.split} is the same for every run; leave --seed out, or take train")
    law = ArrowLaw(args.size, args.scale)
    seed = 43 if args.seed is None else args.seed
    if seed < 0:
        raise UserError(f"--seed {seed}: must be 0 or more")
    geometry = split_geometry(args.split, law, seed, count)
    law = split_law(args.split, law)
    return ((arrow, render(arrow, law)) for arrow in tqdm(geometry, total=count, leave=False, disable=None))


def print_hash(args: argparse.Namespace) -> None:
    """Print the digest; UserError where a whole split of the paper's law differs from the paper's images."""
    split = SPLITS[args.split]
    count = split.images if args.count is None else args.count
    images, positives, sha = digest((image, arrow.label) for arrow, image in _images(args, count))
    print(args.split, images, positives, sha)
    whole = (images, args.size, args.scale) == (split.images, 192, 1.0)
    if whole and split.digest not in (None, sha):
        import PIL

        raise UserError(f"not the paper's images ({split.digest}); Pillow {PIL.__version__} may draw differently")


def draw_sheet(args: argparse.Namespace) -> None:
    """Write the contact sheet: the first images (24 unless --count says otherwise), six a row, each with its label."""
    from matplotlib.figure import Figure

    count = 24 if args.count is None else args.count
    if not 1 <= count <= 600:
        raise UserError(f"--count {count}: a sheet holds 1 to 600 images")
    columns = min(count, 6)
    rows = -(-count // columns)
    figure = Figure(figsize=(1.9 * columns, 2.1 * rows + 0.5), layout="constrained")
    size = split_law(args.split, ArrowLaw(args.size, args.scale)).size
    figure.suptitle(f"arrow pointing, {args.split}, {size} x {size} pixels")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (arrow, image) in zip(panels, _images(args, count), strict=False):
        panel.imshow(image, cmap="gray", vmin=0, vmax=255)
        panel.set_title(TITLES[arrow.label], fontsize=9, color=("tab:red", "tab:green")[arrow.label])
        panel.set(xticks=[], yticks=[])
    for panel in panels[count:]:
        panel.axis("off")
    partial = args.out.with_name(f".{os.getpid()}.{args.out.name}")
    try:
        figure.savefig(partial, dpi=150)
        os.replace(partial, args.out)
    except (OSError, ValueError) as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{args.out}: cannot write the picture ({error})") from error
