"""`python -m data.augment sheet in.jpg out.png`: shows what a recipe does to a picture."""

import argparse
from pathlib import Path

from PIL import Image

from data.augment.recipes import RECIPES
from data.augment.views import draw_view, make_view, view_rng
from data.commands import Parser
from data.decoding import CorruptImage, decode
from data.pictures import contact_sheet, write_picture
from plstm.errors import UserError, run_script
from plstm.preprocessing import evaluation_crop


def main() -> None:
    plain = vars(RECIPES["none"])
    listing = ["recipes, and their settings where they differ from a random crop and flip:"]
    for name, config in RECIPES.items():
        changes = [f"{key}={value}" for key, value in vars(config).items() if value != plain[key]]
        listing.append(f"  {name:16s}{', '.join(changes) or '(nothing)'}")
    about = "ImageNet augmentation: crop, flip, auto-augment, color jitter."
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser("python -m data.augment", description=about, epilog="\n".join(listing), formatter_class=style)
    show = parser.add_subparsers(required=True).add_parser("sheet", help="draw a contact sheet of a picture's views")
    show.add_argument("input", type=Path, help="the picture")
    show.add_argument("output", type=Path, help="the picture to write, by its suffix")
    show.add_argument("--recipe", choices=RECIPES, default="deit3", help="(deit3)")
    show.add_argument("--seed", type=int, default=43, help="of the run (43)")
    show.add_argument("--views", type=int, default=11, help="how many (11)")
    show.add_argument("--size", type=int, default=192, help="of a view, in pixels (192)")
    args = parser.parse_args()
    for key, least, most in (("seed", 0, 2**63), ("views", 1, 100), ("size", 16, 2048)):
        if not least <= (value := getattr(args, key)) <= most:
            raise UserError(f"--{key} {value}: must be {least} to {most}")
    try:
        image = decode(args.input.read_bytes())
    except (OSError, CorruptImage) as error:
        why = getattr(error, "strerror", None) or f"not a picture ({error})"
        raise UserError(f"{args.input}: {why}") from error
    write_picture(sheet(image, args), args.output)


def sheet(image: Image.Image, args: argparse.Namespace) -> Image.Image:
    """The contact sheet: the central crop, and the views of image 0 in epoch 0 of a run with this seed."""
    config = RECIPES[args.recipe]
    panels = [(evaluation_crop(image, args.size, 1.0), f"input, {image.width} x {image.height}: central crop")]
    for n in range(args.views):
        view = draw_view(*image.size, config, view_rng(args.seed, 0, 0, n))
        width = view.box[2] - view.box[0]
        height = view.box[3] - view.box[1]
        parts = [f"crop {width * height / (image.width * image.height):.0%}, {width} x {height}"] + ["flip"] * view.flip
        parts += [name if argument is None else f"{name} {round(argument, 3)}" for name, argument in view.steps]
        panels.append((make_view(image, args.size, view), f"view {n}: {'; '.join(parts)}"))
    keys = ", ".join(f"{key} {value}" for key, value in vars(config).items())
    title = f"{args.recipe}, seed {args.seed}: {keys}. Erasing and mixing happen on the device, not here."
    return contact_sheet(panels, title, columns=4, lines=6)


if __name__ == "__main__":
    run_script(main)
