"""Pictures that the commands of this package write."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from plstm.errors import UserError, first_line
from plstm.files import write_file

MARGIN = 8  # pixels
LINE = 15
FONT = 12
MIN_WIDTH = 160
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def write_picture(image: Image.Image, path: Path) -> None:
    kind = Image.registered_extensions().get(path.suffix.lower())
    if kind not in Image.SAVE:
        raise UserError(f"{path}: Pillow writes no {path.suffix or 'file without a suffix'}; take .png")
    try:
        write_file(path, lambda file: image.save(file, kind))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot write the picture ({first_line(error)})") from error


def contact_sheet(panels: Sequence[tuple[np.ndarray, str]], title: str, columns: int, lines: int) -> Image.Image:
    """Panels of one size, uint8 [size, size] or [size, size, 3], each over its caption of at most `lines` lines."""
    size = len(panels[0][0])
    columns = min(columns, len(panels))
    cell_width = max(size, MIN_WIDTH) + MARGIN
    cell_height = size + lines * LINE + MARGIN
    width = columns * cell_width + MARGIN
    font = ImageFont.load_default(FONT)
    letter = font.getlength(LETTERS) / len(LETTERS)
    title = textwrap.fill(title, int((width - 2 * MARGIN) / letter))
    top = LINE * (title.count("\n") + 1) + 2 * MARGIN
    sheet = Image.new("RGB", (width, top + -(-len(panels) // columns) * cell_height), "#e8e8e8")
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, "black", font)
    for n, (pixels, caption) in enumerate(panels):
        x = MARGIN + n % columns * cell_width
        y = top + n // columns * cell_height
        sheet.paste(Image.fromarray(pixels), (x, y))
        draw.text((x, y + size + 2), textwrap.fill(caption, int((cell_width - MARGIN) / letter)), "black", font)
    return sheet
