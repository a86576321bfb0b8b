"""The picture of a calibration: what was predicted against what was measured, for a file.

Left, the time to first token of every prompt: on the diagonal the prediction is right, and the band
is 10 % to either side. Right, the seconds between tokens by batch size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from kvbench.errors import InputError
from kvbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")

_BAND = 0.1
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "svg.hashsalt": "kvbench",
}
_BLUE, _ORANGE, _GREY = "#2563eb", "#ea580c", "#6b7280"

Pair = tuple[float, float]
"""Seconds measured, seconds predicted."""


def draw(
    path: Path,
    title: str,
    fitted: Sequence[Pair],
    held_out: Sequence[Pair],
    gaps: Sequence[tuple[int, int, float, float]],
) -> None:
    """Draw a calibration into a file.

    Args:
        path: Where to; its suffix decides the format.
        title: Stands above.
        fitted: TTFTs that the fit has seen.
        held_out: TTFTs that it has not.
        gaps: Sequences in the batch, tokens of context of each, seconds measured and predicted.

    Raises:
        InputError: The format is not known, or the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"--plot: expected a file that ends in {', '.join(FORMATS)}, got {path}")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        _draw_ttft(left, fitted, held_out)
        _draw_gaps(right, gaps)
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
        try:
            figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else {})
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _draw_ttft(axes: Axes, fitted: Sequence[Pair], held_out: Sequence[Pair]) -> None:
    """Draw predictions over measurements, both on logarithmic axes."""
    seconds = np.array([*fitted, *held_out])
    ends = np.array([seconds.min() / 1.4, seconds.max() * 1.4])
    axes.fill_between(
        ends, ends * (1 - _BAND), ends * (1 + _BAND), color=_GREY, alpha=0.15, lw=0, label="± 10 %"
    )
    axes.plot(ends, ends, color=_GREY, lw=0.8)
    for pairs, colour, filled, label in (
        (fitted, _BLUE, False, "seen by the fit"),
        (held_out, _ORANGE, True, "held out"),
    ):
        if pairs:
            measured, predicted = zip(*pairs, strict=True)
            axes.scatter(
                measured, predicted, s=26, label=label, edgecolors=colour, linewidths=1.1,
                facecolors=colour if filled else "none",
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="time to first token, measured", ylabel="predicted")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper left", frameon=False)


def _draw_gaps(axes: Axes, gaps: Sequence[tuple[int, int, float, float]]) -> None:
    """Draw the time between tokens over the size of the batch."""
    if not gaps:
        axes.text(0.5, 0.5, "no batch could be measured", ha="center", color=_GREY)
        return
    sizes = [size for size, *_ in gaps]
    axes.scatter(
        sizes, [seconds for *_, seconds, _ in gaps], s=26, facecolors="none", edgecolors=_BLUE,
        linewidths=1.1, label="measured",
    )  # fmt: skip
    axes.scatter(
        sizes, [seconds for *_, seconds in gaps], s=30, marker="_", color=_ORANGE, label="predicted"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(sizes)), [str(size) for size in sorted(set(sizes))])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.3 * max(max(seconds) for _, _, *seconds in gaps))  # room for the legend
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.set(xlabel="sequences in the batch", ylabel="between tokens")
    axes.legend(loc="upper left", frameon=False, ncols=2)
