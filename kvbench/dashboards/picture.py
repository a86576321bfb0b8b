"""A dashboard as a picture, drawn from what its queries answered: Grafana's look, without Grafana.

For CI, for reports, and to look at a board before anybody imports it. Places, titles, units,
thresholds and colours come from the same board that the JSON is made of; fonts and legends are
simpler than Grafana's.
"""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from kvbench.dashboards.panel import COLUMNS, places
from kvbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from kvbench.dashboards.panel import Board, Panel, Place, Query
    from kvbench.dashboards.replay import Answer, Series, Span

INK, MUTED, GRID, GROUND, CARD = "#d8dae0", "#8e939c", "#2c3038", "#111217", "#1a1c22"
PALETTE = (
    "#6fa8dc", "#e0a94a", "#5fb98a", "#d16a8a", "#9a7fd1", "#5cc0c7", "#c98f5a", "#a3a948",
    "#7f8fd8", "#d98880",
)  # fmt: skip
"""Colours of series that have none of their own: easy to tell apart on dark."""

_COLUMN, _ROW, _HEAD = 0.56, 0.29, 0.62  # inches
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.facecolor": CARD,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "xtick.major.size": 0,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
}
_HEAT = LinearSegmentedColormap.from_list(
    "heat", [CARD, "#274a72", "#2f8f9d", "#8fd18a", "#f4f1a1"]
)


def render(board: Board, answers: Sequence[Answer], span: Span, to: Path) -> None:
    """Write a board's picture as PNG.

    Args:
        board: Which one.
        answers: What its panels got, in order.
        span: The time that is shown.
        to: File.
    """
    grid = places(board)
    rows = max(place.y + place.height for place in grid.values())
    with mpl.rc_context(_STYLE):
        page = _Page(rows)
        page.title(f"kvbench / {board.title}", board.description, span)
        for row in board.rows:
            if row.title:
                page.heading(row.title, grid[f"# {row.title}"])
        for answer in answers:
            page.panel(answer, grid[answer.panel.title], span)
        page.save(to)


class _Page:
    """A figure with Grafana's grid on it.

    Args:
        rows: Height of the grid.
    """

    def __init__(self, rows: int) -> None:
        self._width = COLUMNS * _COLUMN
        self._height = rows * _ROW + _HEAD
        self._figure = Figure(figsize=(self._width, self._height), facecolor=GROUND)
        FigureCanvasAgg(self._figure)

    def title(self, title: str, question: str, span: Span) -> None:
        """Write what the board is, and which time it shows."""
        top = 1 - 0.24 / self._height
        self._figure.text(0.008, top, title, fontsize=13, weight="bold", va="center")
        low = 1 - 0.48 / self._height
        self._figure.text(0.008, low, question, fontsize=8, color=MUTED, va="center")
        ends = [
            datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") for at in (span.start, span.end)
        ]
        self._figure.text(
            0.992, top, " to ".join(ends) + " UTC", fontsize=8, color=MUTED, va="center", ha="right"
        )

    def heading(self, title: str, place: Place) -> None:
        """Write a row's heading."""
        x, y, _, height = self._box(place)
        self._figure.text(x, y + height / 2, title, fontsize=9.5, weight="bold", va="center")

    def panel(self, answer: Answer, place: Place, span: Span) -> None:
        """Draw a panel: its card, its title, and what its kind has on it."""
        x, y, width, height = self._box(place)
        self._figure.patches.append(
            FancyBboxPatch(
                (x, y), width, height, boxstyle="square,pad=0", facecolor=CARD, edgecolor=GRID,
                linewidth=0.6, transform=self._figure.transFigure, zorder=-1,  # under the axes
            )
        )  # fmt: skip
        inch_x, inch_y = 1 / self._width, 1 / self._height
        self._figure.text(
            x + 0.07 * inch_x, y + height - 0.13 * inch_y, answer.panel.title,
            fontsize=8, weight="bold", va="center",
        )  # fmt: skip
        inside = (x, y, width, height - 0.24 * inch_y)
        if answer.empty:
            words = "\n".join(answer.faults) or answer.panel.idle
            axes = self._axes(inside)
            axes.text(0.5, 0.5, words, ha="center", va="center", color=MUTED, fontsize=10)
            return
        draw = _KINDS[answer.panel.kind]
        left, below, right = _MARGINS[answer.panel.kind]
        lines = _legend_lines(answer, place.width * _COLUMN)
        below += 0.15 * lines
        axes = self._figure.add_axes(
            (
                inside[0] + left * inch_x,
                inside[1] + below * inch_y,
                inside[2] - (left + right) * inch_x,
                inside[3] - below * inch_y,
            )
        )
        draw(axes, answer, span)
        if lines:
            self._legend(axes, answer, place, -(0.3 + 0.15 * (lines - 1)) / (place.height * _ROW))

    def _legend(self, axes: Axes, answer: Answer, place: Place, _low: float) -> None:
        """Put the legend under the axes."""
        handles, names = axes.get_legend_handles_labels()
        if answer.panel.kind == "stack":
            handles, names = handles[::-1], names[::-1]
        x, y, _, _ = self._box(place)
        per_line = _per_line(answer, place.width * _COLUMN)
        self._figure.legend(
            handles, names, loc="lower left", ncols=per_line, fontsize=7, handlelength=1.0,
            columnspacing=1.0, handletextpad=0.4, borderpad=0.2, labelspacing=0.15,
            labelcolor=MUTED, bbox_to_anchor=(x, y), borderaxespad=0.1,
        )  # fmt: skip

    def _axes(self, box: tuple[float, float, float, float]) -> Axes:
        """Return axes without any, for text."""
        axes = self._figure.add_axes(box)
        axes.set_axis_off()
        return axes

    def _box(self, place: Place) -> tuple[float, float, float, float]:
        """Return a place as a share of the figure, with a gap around it."""
        gap = 0.045
        return (
            (place.x * _COLUMN + gap) / self._width,
            1 - (_HEAD + (place.y + place.height) * _ROW - gap) / self._height,
            (place.width * _COLUMN - 2 * gap) / self._width,
            (place.height * _ROW - 2 * gap) / self._height,
        )

    def save(self, to: Path) -> None:
        """Write the file, in few colours: it is small then."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with io.BytesIO() as drawn:
            self._figure.savefig(drawn, dpi=100, facecolor=GROUND, format="png")
            with Image.open(drawn) as picture:
                picture.convert("RGB").quantize(160).save(to, optimize=True)


def _per_line(answer: Answer, inches: float) -> int:
    """Return how many entries of the legend fit beside each other."""
    longest = max(len(one.name) for series in answer.series for one in series)
    return max(1, int(inches / (0.3 + 0.065 * longest)))


def _legend_lines(answer: Answer, inches: float) -> int:
    """Return how many lines the legend takes."""
    if answer.panel.kind not in {"lines", "stack"}:
        return 0
    entries = sum(len(series) for series in answer.series)
    return min(3, math.ceil(entries / _per_line(answer, inches)))


def worded(value: float, unit: str) -> str:
    """Return a value as Grafana would write it in that unit."""
    match unit:
        case "percentunit":
            return f"{100 * value:.3g} %" if abs(value) < 0.9995 else f"{100 * value:.0f} %"
        case "s":
            return "0 s" if value == 0 else format_seconds(value)
        case "bytes":
            return format_bytes(value)
        case "reqps":
            return f"{_short(value)}/s"
        case _:
            return _short(value)


def _short(value: float) -> str:
    """Return a number with K, M or G behind it."""
    for letter, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _series(answer: Answer) -> list[tuple[Query, Series, str]]:
    """Return every series with its query and its colour."""
    found: list[tuple[Query, Series, str]] = []
    for query, series in zip(answer.panel.queries, answer.series, strict=True):
        for one in sorted(series, key=lambda s: s.name):
            found.append((query, one, query.colour or PALETTE[len(found) % len(PALETTE)]))
    return found


def _step_colour(panel: Panel, value: float) -> str:
    """Return the colour that a threshold gives to a value."""
    colour = INK
    for at, that in panel.steps:
        if at is None or value >= at:
            colour = that
    return colour


def _stat(axes: Axes, answer: Answer, _span: Span) -> None:
    """Draw one number, with its past behind it."""
    axes.set_axis_off()
    panel = answer.panel
    one = next(series[0] for series in answer.series if series)
    colour = _step_colour(panel, one.latest)
    axes.text(
        0.5, 0.62, worded(one.latest, panel.unit), transform=axes.transAxes, ha="center",
        va="center", fontsize=17, weight="bold", color=colour,
    )  # fmt: skip
    if len(one.points) > 1:
        at, values = np.array(one.points).T
        ground = min(float(values.min()), 0.0)
        axes.fill_between(at, values, ground, color=colour, alpha=0.18, linewidth=0)
        axes.plot(at, values, color=colour, linewidth=0.8, alpha=0.7)
        top = max(float(values.max()), 1e-12)
        axes.set_ylim(ground, ground + 2.6 * (top - ground) or 1)


def _time_axis(axes: Axes, span: Span) -> None:
    """Make x the time of the day."""
    axes.set_xlim(span.start, span.end)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S"))
    )


def _curves(axes: Axes, answer: Answer, span: Span) -> None:
    """Draw curves, or areas upon each other."""
    panel = answer.panel
    if panel.kind == "stack":
        _areas(axes, answer, span)
    for query, one, colour in _series(answer):
        if panel.kind == "stack" and not query.dashed:
            continue
        at, values = _gaps(one, span)
        style = (0, (4, 2)) if query.dashed else "solid"
        axes.plot(at, values, color=colour, linestyle=style, label=one.name)
        if len(one.points) == 1:
            axes.plot(at, values, ".", color=colour)
    _time_axis(axes, span)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        low, high = axes.get_ylim()
        axes.set_ylim(
            panel.least if panel.least is not None else low,
            panel.most * 1.02 if panel.most is not None else max(high, 1e-9),
        )
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: worded(value, panel.unit)))


def _gaps(one: Series, span: Span) -> tuple[list[float], list[float]]:
    """Return a series with NaN where steps are missing, so that no line bridges them."""
    at: list[float] = []
    values: list[float] = []
    for moment, value in one.points:
        if at and moment - at[-1] > 1.5 * span.step:
            at.append(moment)
            values.append(math.nan)
        at.append(moment)
        values.append(value)
    return at, values


def _areas(axes: Axes, answer: Answer, span: Span) -> None:
    """Draw areas upon each other; where a series has no value, it has no height."""
    stacked = [entry for entry in _series(answer) if not entry[0].dashed]
    steps = round((span.end - span.start) / span.step) + 1
    moments = span.start + span.step * np.arange(steps)
    below = np.zeros(steps)
    for _, one, colour in stacked:
        height = np.zeros(steps)
        for at, value in one.points:
            height[min(steps - 1, round((at - span.start) / span.step))] = value
        above = below + height
        axes.fill_between(
            moments, below, above, color=colour, alpha=0.75, linewidth=0, label=one.name
        )
        below = above


def _heat(axes: Axes, answer: Answer, span: Span) -> None:
    """Draw how much fell into each bucket, darker for less."""
    series = sorted(answer.series[0], key=lambda one: float(one.labels["le"]))
    moments = sorted({at for one in series for at, _ in one.points})
    table = np.array([[dict(one.points).get(at, 0.0) for at in moments] for one in series])
    fell = np.diff(table, axis=0, prepend=0).clip(min=0)
    used = np.flatnonzero(fell.sum(axis=1) > 1e-9)
    low, high = (used[0], used[-1] + 1) if len(used) else (0, len(series))
    low = max(0, low - 1)
    axes.grid(visible=False)
    axes.imshow(
        fell[low:high], aspect="auto", origin="lower", cmap=_HEAT, interpolation="nearest",
        extent=(moments[0], moments[-1] + span.step, 0, high - low),
    )  # fmt: skip
    bounds = [float(one.labels["le"]) for one in series[low:high]]
    axes.set_yticks(range(1, len(bounds) + 1), [worded(b, answer.panel.unit) for b in bounds])
    _time_axis(axes, span)


def _bars(axes: Axes, answer: Answer, _span: Span) -> None:
    """Draw one bar for each series."""
    entries = _series(answer)[::-1]
    values = [one.latest for _, one, _ in entries]
    axes.barh(range(len(entries)), values, color=PALETTE[0], height=0.55)
    axes.set_yticks(range(len(entries)), [one.name for _, one, _ in entries])
    axes.set_xlim(0, max(values) * 1.3 or 1)
    axes.set_xticks([])
    axes.grid(visible=False)
    for number, value in enumerate(values):
        axes.text(value, number, f" {worded(value, answer.panel.unit)}", va="center", fontsize=8)


def _table(axes: Axes, answer: Answer, _span: Span) -> None:
    """Write one line for each set of labels, and a column for each query."""
    panel = answer.panel
    axes.set_axis_off()
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for number, (query, series) in enumerate(zip(panel.queries, answer.series, strict=True)):
        for one in series:
            key = tuple(one.labels.get(label, "") for label, _ in panel.labels)
            lines.setdefault(key, {})[number] = worded(one.latest, query.unit or panel.unit)
    heads = [*(head for _, head in panel.labels), *(query.legend for query in panel.queries)]
    most = max(1, int(panel.height - 2))
    rows = [
        [*key, *(had.get(n, "") for n in range(len(panel.queries)))]
        for key, had in sorted(lines.items())
    ][:most]
    for column, head in enumerate(heads):
        x = 0.008 + column / len(heads)
        axes.text(x, 0.98, head, transform=axes.transAxes, color=MUTED, va="top", fontsize=8)
        for number, row in enumerate(rows, 1):
            y = 0.98 - number / (most + 1)
            axes.text(x, y, row[column], transform=axes.transAxes, va="top", fontsize=8.5)


_KINDS: Mapping[str, Callable[[Axes, Answer, Span], None]] = {
    "stat": _stat,
    "lines": _curves,
    "stack": _curves,
    "heat": _heat,
    "bars": _bars,
    "table": _table,
}
_MARGINS: Mapping[str, tuple[float, float, float]] = {
    "stat": (0.05, 0.03, 0.05),
    "lines": (0.5, 0.24, 0.12),
    "stack": (0.5, 0.24, 0.12),
    "heat": (0.55, 0.24, 0.12),
    "bars": (0.5, 0.1, 0.1),
    "table": (0.05, 0.03, 0.05),
}
"""Inches that labels take: left, below, right."""
