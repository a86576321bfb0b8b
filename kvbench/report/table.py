"""The table of runs: one definition of its columns, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from kvbench.units import format_number, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.records.summary import Summary


@dataclass(frozen=True, slots=True)
class Column:
    """One column after the arm's.

    Attributes:
        title: For the head.
        meaning: In a few words, for people who see the head for the first time.
        cell: The value of a run, in words.
        metered: Whether the page draws hit rate and ceiling under it.
    """

    title: str
    meaning: str
    cell: Callable[[Summary], str]
    metered: bool = False


def _hit_rate(summary: Summary) -> str:
    rate, ceiling = summary.hits.rate, summary.hits.ceiling
    if rate is None:
        return "unknown" if summary.turns else "–"
    return (
        format_share(rate) if ceiling is None else f"{format_share(rate)} / {format_share(ceiling)}"
    )


def _busiest(summary: Summary) -> str:
    share = summary.turn_balance.busiest
    return "–" if share is None else f"{100 * share:.0f} % of {len(summary.pods)}"


def _failed(summary: Summary) -> str:
    return format_number(summary.failures)


COLUMNS = (
    Column("turns", "rows of the run", lambda s: format_number(s.turns)),
    Column("hit / ceiling", "prompt tokens cached, and what was possible", _hit_rate, metered=True),
    Column("TTFT p50", "time to first token, median", lambda s: format_seconds(s.ttft.p50)),
    Column("p95", "of TTFT; failed turns are ∞", lambda s: format_seconds(s.ttft.p95)),
    Column("p99", "of TTFT; failed turns are ∞", lambda s: format_seconds(s.ttft.p99)),
    Column("tokens/s", "output tokens per second", lambda s: format_number(s.tokens_per_s)),
    Column("busiest", "share of the turns that the busiest pod had, of how many pods", _busiest),
    Column("failed", "turns not answered in full", _failed),
    Column("late p99", "how late turns were sent", lambda s: format_seconds(s.lateness.p99)),
)


def summary_table(summaries: Sequence[Summary]) -> Table:
    """Return the runs as a table for a terminal of 100 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("arm", overflow="fold")  # the one that gives way where the terminal is narrow
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    for summary in summaries:
        cells = [Text(column.cell(summary)) for column in COLUMNS]
        table.add_row(Text(summary.arm), *cells)  # Text: a name is not markup
    return table
