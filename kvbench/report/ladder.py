"""The page of a ladder: a number against the rate of sessions, one line an arm, and the knees.

Beside the page the figure is written as a file of its own, `ladder.svg`, in the colours of the
light page: for design documents.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvbench import __version__
from kvbench.errors import InputError
from kvbench.report.canvas import ARMS, INK, MUTED, Canvas, colour, drawing, line_style
from kvbench.units import format_number, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One arm.

    Attributes:
        arm: Its name.
        rates: Sessions per second, rising.
        values: The number at each.
        lows: Lower ends of its intervals.
        highs: Upper ends.
        knee: Highest rate that meets the objective; infinite where it is beyond either end.
        knee_low: Lower end of its interval; likewise.
        knee_high: Upper end; likewise.
        reason: Why a run of it may not be judged, or None.
    """

    arm: str
    rates: tuple[float, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    knee: float
    knee_low: float
    knee_high: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LadderView:
    """What the page shows.

    Attributes:
        title: What was run.
        facts: Of the runs, for the head.
        objective: As written.
        measured: What it measures: "ttft p95".
        seconds: Whether that is a duration; else it is a share or a number.
        limit: Of the objective.
        seeds: Runs of each step.
        lines: The arms.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    objective: str
    measured: str
    seconds: bool
    limit: float
    seeds: int
    lines: tuple[Line, ...]

    @property
    def text(self) -> Callable[[float], str]:
        """How a value is said."""
        return format_seconds if self.seconds else format_number


def build_ladder(view: LadderView, out: Path) -> Path:
    """Write the page, and the figure beside it; return the page's path.

    Raises:
        InputError: They cannot be written.
    """
    with drawing():
        svg = _figure(view)
    environment = Environment(
        loader=PackageLoader("kvbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rates = sorted({rate for line in view.lines for rate in line.rates})
    page = environment.get_template("ladder.html.jinja").render(
        view=view,
        svg=Markup(svg),  # noqa: S704 - our own drawing
        swatches=[_swatch(number) for number in range(len(view.lines))],
        knees=[(line.arm, *knee_words(line)) for line in view.lines],
        reasons=[(line.arm, line.reason) for line in view.lines if line.reason],
        rates=[format_number(rate) for rate in rates],
        rows=[[_cell(view, line, rate) for rate in rates] for line in view.lines],
        version=__version__,
    )
    try:
        out.write_text(page, encoding="utf-8")
        out.with_suffix(".svg").write_text(_standalone(svg), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write the ladder: {error.strerror}",
            where=str(out),
            hint="choose another file with --out",
        ) from error
    return out


def knee_words(line: Line) -> tuple[str, str]:
    """Return the highest rate that meets the objective, and its interval, in words."""
    if line.knee == -math.inf:
        value = f"below {format_number(line.rates[0])}/s"
    elif line.knee == math.inf:
        value = f"beyond {format_number(line.rates[-1])}/s"
    else:
        value = f"{format_number(line.knee)}/s"
    low = "below the lowest" if line.knee_low == -math.inf else f"{format_number(line.knee_low)}/s"
    if line.knee_low == math.inf:
        return value, "it is met at every rate, for certain"
    high = "beyond the highest"
    if line.knee_high == -math.inf:
        return value, "it is missed at every rate, for certain"
    if line.knee_high != math.inf:
        high = f"{format_number(line.knee_high)}/s"
    return value, f"{low} to {high}"


def _figure(view: LadderView) -> str:
    canvas = Canvas("ladder", height=3.4)
    axes = canvas.axes
    finite = [v for line in view.lines for v in (*line.values, *line.highs) if math.isfinite(v)]
    roof = 1.2 * max([*finite, view.limit])
    for number, line in enumerate(view.lines):
        values = np.array(line.values)
        low = np.maximum(np.array(line.lows), 1e-9)
        high = np.minimum(np.array(line.highs), roof)
        axes.fill_between(line.rates, low, high, color=colour(number), alpha=0.13, linewidth=0)
        axes.plot(
            line.rates, np.where(np.isfinite(values), values, np.nan), color=colour(number),
            linestyle=line_style(number), marker="o", markersize=4, label=line.arm,
        )  # fmt: skip
    axes.axhline(view.limit, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"{view.text(view.limit)}", (1, view.limit), xycoords=("axes fraction", "data"),
        xytext=(-2, 3), textcoords="offset points", ha="right", color=MUTED,
    )  # fmt: skip
    if view.seconds:
        canvas.y_seconds(view.measured)
    else:
        canvas.y_numbers(view.measured)
    canvas.x_numbers("sessions per second")
    axes.set_xlim(left=0)
    if len(view.lines) > 1:
        axes.legend(loc="upper left", fontsize=9)
    said = "; ".join(f"{line.arm}: {knee_words(line)[0]}" for line in view.lines)
    return canvas.svg(f"{view.measured} against sessions per second. {view.objective}: {said}")


def _swatch(number: int) -> str:
    return f"border-top: 3px {line_style(number)} var(--arm-{number % ARMS})"


def _cell(view: LadderView, line: Line, rate: float) -> str:
    if rate not in line.rates:
        return "–"
    at = line.rates.index(rate)
    value = line.values[at]
    return view.text(value) if view.seconds or value > 1 else format_share(value)


def _standalone(svg: str) -> str:
    """Return the figure as a file: with a namespace, a size, and the light page's colours."""
    css = files("kvbench.report").joinpath("templates/page.css").read_text(encoding="utf-8")
    light = css[: css.index("@media")]
    for name, value in re.findall(r"(--[\w-]+): (#[0-9a-f]+)", light):
        svg = svg.replace(f"var({name})", value)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="720" ', 1).replace(
        "inherit", "sans-serif"
    )
