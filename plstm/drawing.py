"""What all figures share: type, the canvas, a legend, and files that come out the same byte for byte."""

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


def legend_below(figure: Any, axes: Sequence[Any], columns: int = 5, order: Sequence[str] = ()) -> None:
    """One legend for all axes, each label once: those of `order` in it, the others behind them. It has fewer than
    `columns` columns where it would be wider than the figure."""
    entries = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    entries = {label: entries[label] for label in dict.fromkeys([*order, *entries]) if label in entries}
    for count in range(columns, 0, -1):
        legend = figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=count, fontsize=8, columnspacing=1.2
        )
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def save(figure: Any, path: Path) -> list[Path]:
    """Writes `path` with .png and with .svg, the same bytes for the same figure; returns both."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=metadata)
        written.append(path.with_name(f"{path.name}.{kind}"))
        write_file(written[-1], data.getvalue())
    return written
