"""How the cells of a table are written in Markdown and in LaTeX."""

from __future__ import annotations

import re

from plstm.results.definitions import TableDefinition

DASH = "–"


class Markdown:
    """How a cell is written in Markdown; `Latex` has the same."""

    pm = "±"

    @staticmethod
    def escape(text: str) -> str:
        """Text that means only itself."""
        return text.replace("|", "\\|").replace("*", "\\*")

    @staticmethod
    def math(text: str) -> str:
        """Numbers and signs."""
        return text

    @staticmethod
    def link(text: str, target: str) -> str:
        """Text that leads to a file, where the format has links."""
        return f"[{text}]({target})"


class Latex:
    """How a cell is written in LaTeX; `Markdown` has the same."""

    pm = r"\pm"

    @staticmethod
    def escape(text: str) -> str:
        """See `Markdown.escape`."""
        special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
        special |= {"±": r"$\pm$", "×": r"$\times$", "<": "$<$", ">": "$>$"}
        return re.sub(r"[\\~^±×<>&%$#_{}]", lambda match: special.get(match[0], f"\\{match[0]}"), text)

    @staticmethod
    def math(text: str) -> str:
        """See `Markdown.math`."""
        return f"${text}$"

    @staticmethod
    def link(text: str, target: str) -> str:
        """See `Markdown.link`."""
        return text


Style = type[Markdown] | type[Latex]


def markdown_table(grid: list[list[str]]) -> list[str]:
    """The lines of a table whose first row is its header."""
    header, *rows = ("| " + " | ".join(cells) + " |" for cells in grid)
    return [header, "|" + " --- |" * len(grid[0]), *rows]


def latex_page(table: TableDefinition, header: list[str], lines: list[str], notes: list[str]) -> str:
    """A whole `table` environment."""
    begin = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{Latex.escape(f'{table.title}. {table.caption.strip()}')}}}",
        rf"\label{{tab:{table.name}}}",
        r"\centering\footnotesize",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
    ]
    end = [r"\bottomrule", r"\end{tabular}", *[rf"\par {Latex.escape(note)}" for note in notes], r"\end{table}", ""]
    return "\n".join([*begin, *lines, *end])
