"""Run examples/annotated_plstm.py and write it as a page, with what it prints and draws, and its pictures beside it.

A cell of the script begins with `# %%` (code) or `# %% [markdown]` (text in comments). A figure's label is its
picture's description and, in small letters, its file's name. `make examples` calls this.
"""

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.drawing import save
from plstm.errors import run_script
from plstm.files import write_file
from scripts.common import ROOT, Parser

CELL = re.compile(r"^# %%(.*)\n((?:(?!# %%).*\n)*)", re.MULTILINE)
SCRIPT = ROOT / "examples/annotated_plstm.py"


def render(script: Path, folder: Path) -> Path:
    """Runs the cells in one namespace; writes the page and its pictures into `folder` and returns the page."""
    import matplotlib

    matplotlib.use("Agg")
    text = script.read_text(encoding="utf-8")
    parts = []
    namespace: dict[str, Any] = {"__name__": script.stem}
    with matplotlib.rc_context():
        for cell in CELL.finditer(text):
            body = cell[2].strip("\n")
            if "[markdown]" in cell[1]:
                parts.append(re.sub("^# ?", "", body, flags=re.MULTILINE))
            else:
                lines_above = text.count("\n", 0, cell.start(2))
                code = compile("\n" * lines_above + cell[2], script, "exec")  # so that errors name the script's lines
                parts += [f"```python\n{body}\n```", *_run(code, namespace, folder)]
    page = folder / f"{script.stem}.md"
    write_file(page, ("\n\n".join(parts) + "\n").encode())
    return page


def _run(code: Any, namespace: dict[str, Any], folder: Path) -> list[str]:
    """What a cell prints and draws, in Markdown."""
    import matplotlib.pyplot as plt

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    parts = [f"```text\n{printed.getvalue().rstrip()}\n```"] if printed.getvalue() else []
    for figure in map(plt.figure, plt.get_fignums()):
        label = figure.get_label()
        path = save(figure, folder / f"{re.sub('[^a-z0-9]+', '-', label.lower())}.png")
        parts.append(f"![{label}]({path.name})")
    plt.close("all")
    return parts


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, default=SCRIPT.parent, help="folder of the page and its pictures")
    print("wrote", render(SCRIPT, parser.parse_args().out))


if __name__ == "__main__":
    run_script(main)
