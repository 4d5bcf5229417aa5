"""What all figures share: type, the canvas, and files that come out the same byte for byte."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plstm.files import write_file

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 150,
    "svg.hashsalt": "plstm",
}


def style():
    """The context in which a figure is drawn."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> Any:
    """A figure of its own, in inches, on the Agg canvas: no window system, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes `path` with .png and with .svg, the same bytes for the same figure; returns what it wrote."""
    written = []
    for kind in kinds:
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=metadata)
        written.append(path.with_name(f"{path.name}.{kind}"))
        write_file(written[-1], data.getvalue())
    return written
