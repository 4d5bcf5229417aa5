"""`python -m data.arrow_pointing`: build the data set, hash a split, draw a contact sheet."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL
from tqdm import tqdm

from data.arrow_pointing.builder import prepare
from data.arrow_pointing.geometry import DISTRIBUTIONS, SPLITS, ArrowVariant, digest, render
from data.commands import Parser
from data.pictures import contact_sheet, write_picture
from plstm.errors import UserError, run_script

CAPTIONS = ("points away", "points at the circle")


def main() -> None:
    parser = Parser(prog="python -m data.arrow_pointing", description="The arrow-pointing data set.")
    sizes = Parser(add_help=False)
    sizes.add_argument("--seed", type=int, help="of the training images (43)")
    sizes.add_argument("--size", type=int, default=192, help="training canvas in pixels, half an extended one (192)")
    sizes.add_argument("--scale", type=float, default=1.0, help="multiplies every other pixel length (1.0)")
    sizes.add_argument("--thinnest", type=int, default=2, help="least width of an arrow's lines in pixels (2)")
    sizes.add_argument("--distribution", choices=DISTRIBUTIONS, default="paper", help="of the geometries (paper)")
    some = Parser(add_help=False, parents=[sizes])
    some.add_argument("split", choices=SPLITS)
    some.add_argument("--count", type=int, help="only the first so many images")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("hash", parents=[some], help="print: split, images, positives, sha256 of pixels and labels")
    sheet = commands.add_parser("sheet", parents=[some], help="draw the first images (24) with their labels")
    sheet.add_argument("out", type=Path, help="the picture to write, .png or another format of Pillow's")
    build = commands.add_parser("build", parents=[sizes], help="prepare the data set; print its folder")
    build.add_argument("--train-images", type=int, default=SPLITS["train"].images)
    build.add_argument("--eval-images", type=int, help="images of each other split (the paper's)")
    build.add_argument("--root", help="folder of all data sets ($PLSTM_DATA, else ~/.cache/plstm/data)")
    args = parser.parse_args()
    seed = 43 if args.seed is None else args.seed
    variant = ArrowVariant(seed, args.size, args.scale, distribution=args.distribution, thinnest=args.thinnest)
    if args.command == "build":
        counts = {"train_images": args.train_images, "eval_images": args.eval_images}
        print(prepare(replace(variant, **counts), args.root).data_path)
        return
    most = 600 if args.command == "sheet" else SPLITS[args.split].images
    usual = 24 if args.command == "sheet" else most
    count = usual if args.count is None else args.count
    if not 1 <= count <= most:
        raise UserError(f"--count {count}: {args.command} {args.split} takes 1 to {most} images")
    if args.seed is not None and args.split != "train":
        raise UserError(f"--seed {args.seed}: {args.split} is the same for every run; leave --seed out, or take train")
    arrows = variant.arrows(args.split, count)
    canvas = variant.canvas(args.split)
    images = ((render(arrow, canvas), arrow.label) for arrow in tqdm(arrows, total=count, leave=False, disable=None))
    if args.command == "hash":
        print_hash(args, images)
    else:
        title = f"arrow pointing, {args.split}, {canvas.size} x {canvas.size} pixels"
        panels = [(image, CAPTIONS[label]) for image, label in images]
        write_picture(contact_sheet(panels, title, columns=6, lines=1), args.out)


def print_hash(args: argparse.Namespace, images: Iterator[tuple[np.ndarray, int]]) -> None:
    """Print the digest; UserError where a whole split at the paper's sizes differs from the paper's images."""
    split = SPLITS[args.split]
    count, positives, sha = digest(images)
    print(args.split, count, positives, sha)
    own = args.size, args.scale, args.thinnest, args.distribution
    is_paper = (count, *own) == (split.images, 192, 1.0, 2, "paper")
    if is_paper and split.digest not in (None, sha):
        raise UserError(f"not the paper's images ({split.digest}); Pillow {PIL.__version__} may draw differently")


if __name__ == "__main__":
    run_script(main)
