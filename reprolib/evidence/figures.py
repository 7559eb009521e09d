"""The one figure style: legible, colour-blind safe, distinguishable without colour, drawn as SVG."""

from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib_inline.backend_inline import set_matplotlib_formats

COLOURS = sns.color_palette("colorblind")
OURS, PUBLISHED = COLOURS[0], COLOURS[3]
DASHES = ("-", "--", "-.", ":")


def use_style() -> None:
    """Set the book's style for the figures of a notebook."""
    set_matplotlib_formats("svg")
    sns.set_theme(
        context="notebook", style="ticks", palette="colorblind", font_scale=0.95,
        rc={
            "figure.figsize": (7.2, 4.2), "figure.dpi": 100, "figure.constrained_layout.use": True,
            "axes.grid": True, "grid.alpha": 0.35, "grid.linewidth": 0.6,
            "axes.spines.top": False, "axes.spines.right": False,
            "legend.frameon": False, "lines.linewidth": 2.0, "svg.hashsalt": "reprolib",
        },
    )  # fmt: skip


def lines(axes: Axes, curves: dict[str, tuple[Any, Any]], **kwargs: Any) -> None:
    """Draw labelled curves ``{label: (x, y)}``, each with its own colour and dash."""
    for (label, (x, y)), colour, dash in zip(curves.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        axes.plot(x, y, dash, color=colour, label=label, **kwargs)


def show() -> None:
    """Show the figure as the cell's only output, so that its caption and label belong to it."""
    plt.show()


def subplots(columns: int = 1, *, height: float = 4.0, **kwargs: Any) -> tuple[Figure, Any]:
    """A figure of the book's width with this many panels side by side."""
    return plt.subplots(1, columns, figsize=(7.2 if columns < 3 else 9.6, height), **kwargs)
