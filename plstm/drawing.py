"""What all figures share: type, the canvas, and files that come out the same byte for byte."""

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
}


def style():
    """The context in which a figure is drawn: Matplotlib's defaults, whatever a matplotlibrc says, and STYLE."""
    from matplotlib.style import context

    return context(["default", STYLE])


def new_figure(width: float, height: float) -> Any:
    """A figure of its own, in inches, on the Agg canvas: no window system, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> Path:
    """Writes the figure as PNG, the same bytes for the same figure; returns `path`."""
    write_file(path, lambda file: figure.savefig(file, format="png", metadata={"Software": None}))
    return path
