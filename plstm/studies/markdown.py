"""Text of Markdown pages: tables, paragraphs, and names that mean only themselves."""

import re
import textwrap

DASH = "–"  # a cell without a value
Grid = list[list[str]]  # lines of cells, the first is the header


def pipes(grid: Grid) -> list[str]:
    """The lines of a table."""
    header, *rows = ("| " + " | ".join(cells) + " |" for cells in grid)
    return [header, "|" + " --- |" * len(grid[0]), *rows]


def filled(text: str, indent: str = "") -> str:
    """The text in lines of 120 characters, but for words that are longer."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def escape(text: str) -> str:
    """Text that means only itself in a table."""
    return re.sub(r"([|*])", r"\\\1", text)
