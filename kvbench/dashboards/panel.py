"""What a dashboard is, before it is Grafana's: boards of rows of panels of queries. Pure values.

Rules, held by tests: every panel has a title, a sentence that says what to see in it, and a unit;
a panel that reads more than the pods' own metrics says whose; without traffic it says so, and shows
neither NaN nor a zero that nobody measured. Emission and rendering read these values; nothing here
knows JSON or pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from kvbench.alerts.rule import Needs

Kind: TypeAlias = Literal["stat", "lines", "stack", "heat", "bars", "table"]
"""One number; curves; areas upon each other; a heat map of buckets; bars of pods; a table."""

COLUMNS = 24
"""Width of Grafana's grid."""

NEEDS: dict[Needs, str] = {
    "pods": "",
    "exporter": "Needs `kvbench exporter`.",
    "router": "Needs `kvbench router`.",
    "load": "Needs a run of `kvbench run`.",
}
"""What a description ends with."""

GREEN, YELLOW, RED, BLUE, PURPLE, GREY = (
    "#3fa66b", "#d9a21b", "#d1495b", "#4f86c6", "#8d6cc0", "#8a8f98",
)  # fmt: skip
"""Colours with a meaning: well, look, bad; then series that always have the same one."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        expression: PromQL, with Grafana's `$` variables.
        legend: Name of its series; `{{label}}` stands for a label's value.
        colour: Of its series, if it has one meaning; otherwise Grafana chooses.
        dashed: Draw a line as something to compare with, not as something that happened.
        unit: Of a table's column, where it is not the panel's.
    """

    expression: str
    legend: str
    colour: str = ""
    dashed: bool = False
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: Unique on its board: links and numbers go by it.
        description: What it shows and what to look for, in a sentence or two.
        unit: Grafana's id of it.
        queries: What it asks.
        kind: How it is drawn.
        width: Columns, of 24.
        height: Grafana's rows, of 30 pixels.
        needs: Whose metrics it reads.
        idle: What it says when there is nothing to show.
        quiet: Nothing to show is good news: errors that did not happen.
        steps: Colours by value, from the lowest: (from, colour), the first from None.
        least: Where the axis begins.
        most: Where the axis ends.
        labels: Labels that a table has as columns, with their headings.
        link: Where a table's first column leads; `${__value.text}` stands for what it says.
        log: Draw the axis logarithmically.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    width: int = 8
    height: int = 8
    needs: Needs = "pods"
    idle: str = "no traffic"
    quiet: bool = False
    steps: tuple[tuple[float | None, str], ...] = ()
    least: float | None = 0
    most: float | None = None
    labels: tuple[tuple[str, str], ...] = ()
    link: str = ""
    log: bool = False

    @property
    def text(self) -> str:
        """The description, with whose metrics it needs."""
        return f"{self.description} {NEEDS[self.needs]}".strip()


def number(
    title: str,
    description: str,
    unit: str,
    expression: str,
    *,
    width: int = 4,
    needs: Needs = "pods",
    idle: str = "no traffic",
    steps: tuple[tuple[float | None, str], ...] = (),
) -> Panel:
    """Return one number, coloured by `steps`, as the top of a board has them."""
    return Panel(
        title,
        description,
        unit,
        (Query(expression, title),),
        kind="stat",
        width=width,
        height=4,
        needs=needs,
        idle=idle,
        steps=steps,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading; the first of a board has none."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard.

    Attributes:
        title: Also its uid, in small letters.
        description: Which question it answers.
        rows: In the order in which they are asked.
        variables: Names of the variables that it has, beside the data source.
    """

    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ("job", "model", "pod")

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands on the grid: columns and rows from the upper left corner."""

    x: int
    y: int
    width: int
    height: int


def places(board: Board) -> dict[str, Place]:
    """Return each panel's place by its title, and each heading's by "# " and its title.

    Panels stand from left to right; a panel that does not fit begins a new line.
    """
    placed: dict[str, Place] = {}
    y = 0
    for row in board.rows:
        if row.title:
            placed[f"# {row.title}"] = Place(0, y, COLUMNS, 1)
            y += 1
        x = tallest = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            placed[panel.title] = Place(x, y, panel.width, panel.height)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed
