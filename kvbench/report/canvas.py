"""Charts as text: one drawing surface, one palette, inline SVG that follows the reader's theme.

- No pyplot: a `Canvas` owns its figure, and Matplotlib's settings hold only inside `drawing()`.
- Colours are roles, not values. Matplotlib draws with stand-ins, which are then replaced by CSS
  variables (`var(--arm-0)`), so that one chart is right on light, on dark and on paper.
- Text stays text, in the page's own font. Nothing in it is mathematics or markup.
- The same data gives the same bytes: no date, ids from a fixed salt and the chart's key.
- The SVG refers to nothing outside itself.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    NullLocator,
    PercentFormatter,
)

from kvbench.units import format_number, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from kvbench.report.words import Said

ARMS = 7
"""Colours for arms; further arms begin again with another line style."""

_STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400]
INK, MUTED, GRID = "#010203", "#040506", "#070809"
_ARM = "#0a0b{:02x}"
_ROLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {
    _ARM.format(i): f"--arm-{i}" for i in range(ARMS)
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvbench",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "xtick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One kind of marks in a chart, for its legend.

    Attributes:
        glyph: The mark as a character.
        ink: Its stand-in colour.
        text: What it stands for.
    """

    glyph: str
    ink: str
    text: str

    @property
    def colour(self) -> str:
        """Its colour on the page."""
        return f"var({_ROLES[self.ink]})"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, ready for the page.

    Attributes:
        key: Unique on the page.
        title: A few words.
        svg: Markup of ours: the only part that the page does not escape.
        shows: How to read it.
        findings: What these runs show in it, one sentence each.
        ceiling: Whether its legend has the ceiling's line.
        marks: The legend of a chart of one arm; else its legend is of the arms.
    """

    key: str
    title: str
    svg: str
    shows: str
    findings: tuple[Said, ...]
    ceiling: bool = False
    marks: tuple[Mark, ...] = ()


def colour(arm: int) -> str:
    """Return the stand-in colour of arm number `arm`."""
    return _ARM.format(arm % ARMS)


def line_style(arm: int) -> str:
    """Return the line style of arm number `arm`: solid for the first seven."""
    return ("solid", "dashed", "dotted")[arm // ARMS % 3]


def drawing() -> AbstractContextManager[None]:
    """Return the context in which everything is drawn: Matplotlib looks its style up late."""
    return mpl.rc_context(_STYLE)


class Canvas:
    """One chart being drawn, inside `drawing()`; axes are described after the data is in.

    Args:
        key: Names the chart; unique on its page, letters and digits.
        height: Inches; the width is always 4.8.
    """

    def __init__(self, key: str, height: float = 3.0) -> None:
        self.key = key
        self._figure = Figure(figsize=(4.8, height))
        FigureCanvasSVG(self._figure)
        # The same margins in every chart: their axes stand under each other on the page.
        self._figure.subplots_adjust(left=0.155, right=0.965, top=0.975, bottom=0.46 / height)
        self.axes: Axes = self._figure.add_subplot()
        self._figure.patch.set_alpha(0)
        self.axes.patch.set_alpha(0)

    def x_seconds(self, label: str) -> None:
        """Make x durations on a logarithmic axis."""
        self.axes.set_xlabel(label)
        self.axes.set_xscale("log")
        _log_ticks(self.axes.xaxis, *self.axes.get_xlim())

    def y_seconds(self, label: str) -> None:
        """Make y durations on a logarithmic axis."""
        self.axes.set_ylabel(label)
        self.axes.set_yscale("log")
        _log_ticks(self.axes.yaxis, *self.axes.get_ylim())

    def x_moments(self, label: str) -> None:
        """Make x moments of a run, from 0: in seconds, or in minutes if it is long."""
        self.axes.set_xlabel(label)
        end = self.axes.get_xlim()[1]
        step = next((step for step in _STEPS_S if end / step <= 6), end)
        moments = np.arange(0, end, step)
        in_minutes = end > 180
        self.axes.set_xlim(left=0)
        self.axes.set_xticks(
            moments, [f"{m / 60:g} min" if in_minutes else f"{m:g} s" for m in moments]
        )

    def y_share(self, label: str) -> None:
        """Make y a share from 0 to 100 %."""
        self.axes.set_ylabel(label)
        self.axes.set_ylim(0, 1.02)
        self.axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        self.axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))

    def x_numbers(self, label: str) -> None:
        """Make x plain numbers: "2,000"."""
        self.axes.set_xlabel(label)
        self.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))

    def x_share(self, label: str) -> None:
        """Make x a share from 0 to 100 %."""
        self.axes.set_xlabel(label)
        self.axes.set_xlim(0, 1)
        self.axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])

    def y_numbers(self, label: str) -> None:
        """Make y plain numbers: "2,000"."""
        self.axes.set_ylabel(label)
        self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))

    def chart(
        self,
        title: str,
        shows: str,
        findings: Sequence[Said],
        *,
        ceiling: bool = False,
        marks: tuple[Mark, ...] = (),
    ) -> Chart:
        """Return what was drawn, with all that is said of it; see `Chart`."""
        svg = self.svg(" ".join([f"{title}.", *map(str, findings)]))
        return Chart(self.key, title, svg, shows, tuple(findings), ceiling, marks)

    def svg(self, description: str) -> str:
        """Return the chart as an SVG element that says what it is to who cannot see it."""
        out = io.StringIO()
        self._figure.savefig(out, format="svg", metadata={"Date": None})
        return _inline(out.getvalue(), self.key, description)


def printable(text: str, most: int = 24) -> str:
    """Return `text` fit for a label in a chart: one line, Latin letters, at most `most` of them."""
    clean = "".join(c if " " <= c < "ɐ" and c.isprintable() else "?" for c in text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _log_ticks(axis: Axis, low: float, high: float) -> None:
    """Put ticks at powers of ten, or at 1, 2, 5 where there are too few powers to read from."""
    subs = (1.0,) if high > 200 * low else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))


def _inline(svg: str, key: str, description: str) -> str:
    """Return Matplotlib's document as an element of a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</defs>", "", svg, flags=re.DOTALL)  # it would style the page
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box, "Matplotlib writes a viewBox"
    label = description.translate({ord("&"): "&amp;", ord('"'): "&quot;", ord("<"): "&lt;"})
    svg = re.sub(
        r"<svg[^>]*>", lambda _: f'<svg role="img" aria-label="{label}" {box[0]}>', svg, count=1
    )
    svg = svg.replace('id="', f'id="{key}-').replace("url(#", f"url(#{key}-")
    svg = svg.replace('xlink:href="#', f'href="#{key}-')
    for stand_in, role in _ROLES.items():
        svg = svg.replace(stand_in, f"var({role})")
    return svg.replace("'DejaVu Sans'", "inherit").strip()
