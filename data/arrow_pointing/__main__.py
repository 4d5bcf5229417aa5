"""`python -m data.arrow_pointing`: build the data set, hash a split, draw a contact sheet."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL
from tqdm import tqdm

from data.arrow_pointing.builder import prepare
from data.arrow_pointing.geometry import SPLITS, Arrow, ArrowVariant, digest, render
from data.pictures import contact_sheet, write_picture
from plstm.errors import UserError, run_script

CAPTIONS = ("points away", "points at the circle")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m data.arrow_pointing", description="The arrow-pointing data set.")
    sizes = argparse.ArgumentParser(add_help=False)
    sizes.add_argument("--seed", type=int, help="of the training images (43)")
    sizes.add_argument("--size", type=int, default=192, help="training canvas in pixels, half an extended one (192)")
    sizes.add_argument("--scale", type=float, default=1.0, help="multiplies every other pixel length (1.0)")
    some = argparse.ArgumentParser(add_help=False, parents=[sizes])
    some.add_argument("split", choices=SPLITS)
    some.add_argument("--count", type=int, help="only the first so many images")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("hash", parents=[some], help="print: split, images, positives, sha256 of pixels and labels")
    sheet = commands.add_parser("sheet", parents=[some], help="draw the first images with their labels")
    sheet.add_argument("out", type=Path, help="the picture to write, .png or another format of Pillow's")
    build = commands.add_parser("build", parents=[sizes], help="prepare the data set; print its folder")
    build.add_argument("--train-images", type=int, default=SPLITS["train"].images)
    build.add_argument("--eval-images", type=int, help="images of each other split (the paper's)")
    build.add_argument("--root", help="folder of all data sets ($PLSTM_DATA, else ~/.cache/plstm/data)")
    args = parser.parse_args()
    {"build": build_data, "hash": print_hash, "sheet": draw_sheet}[args.command](args)


def build_data(args: argparse.Namespace) -> None:
    """Prepare the data set and print its folder."""
    seed = 43 if args.seed is None else args.seed
    variant = ArrowVariant(seed, args.size, args.scale, args.train_images, args.eval_images)
    print(prepare(variant, args.root).data_path)


def _images(args: argparse.Namespace, count: int) -> Iterator[tuple[Arrow, np.ndarray]]:
    """The first `count` geometries and images of the split that the command line asks for."""
    limit = SPLITS[args.split].images
    if not 1 <= count <= limit:
        raise UserError(f"--count {count}: {args.split} has 1 to {limit} images to take")
    if args.seed is not None and args.split != "train":
        raise UserError(f"--seed {args.seed}: {args.split} is the same for every run; leave --seed out, or take train")
    variant = ArrowVariant(43 if args.seed is None else args.seed, args.size, args.scale)
    arrows, canvas = variant.arrows(args.split, count), variant.canvas(args.split)
    return ((arrow, render(arrow, canvas)) for arrow in tqdm(arrows, total=count, leave=False, disable=None))


def print_hash(args: argparse.Namespace) -> None:
    """Print the digest; UserError where a whole split at the paper's sizes differs from the paper's images."""
    split = SPLITS[args.split]
    count = split.images if args.count is None else args.count
    images, positives, sha = digest((image, arrow.label) for arrow, image in _images(args, count))
    print(args.split, images, positives, sha)
    whole = (images, args.size, args.scale) == (split.images, 192, 1.0)
    if whole and split.digest not in (None, sha):
        raise UserError(f"not the paper's images ({split.digest}); Pillow {PIL.__version__} may draw differently")


def draw_sheet(args: argparse.Namespace) -> None:
    """Write the contact sheet: the first images (24 unless --count says otherwise), six a row, each with its label."""
    count = 24 if args.count is None else args.count
    if not 1 <= count <= 600:
        raise UserError(f"--count {count}: a sheet holds 1 to 600 images")
    panels = [(image, CAPTIONS[arrow.label]) for arrow, image in _images(args, count)]
    size = len(panels[0][0])
    title = f"arrow pointing, {args.split}, {size} x {size} pixels"
    write_picture(contact_sheet(panels, title, columns=6, lines=1), args.out)


if __name__ == "__main__":
    run_script(main)
