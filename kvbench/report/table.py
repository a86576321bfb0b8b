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
        title: For the head of the page's table.
        head: For the head of the terminal's, in two short lines.
        meaning: In a few words, for people who see the head for the first time.
        cell: The value of a run, in words.
        metered: Whether the page draws hit rate and ceiling under it.
    """

    title: str
    head: str
    meaning: str
    cell: Callable[[Summary], str]
    metered: bool = False


def _hit_rate(summary: Summary) -> str:
    rate, ceiling = summary.hits.rate, summary.hits.ceiling
    if rate is None:
        return "unknown" if summary.turns else "–"
    if ceiling is None:
        return format_share(rate)
    return f"{100 * rate:.1f} / {format_share(ceiling)}"


def _busiest(summary: Summary) -> str:
    share = summary.turn_balance.busiest
    return "–" if share is None else f"{100 * share:.0f} % of {len(summary.pods)}"


def _failed(summary: Summary) -> str:
    return format_number(summary.failures)


def _degenerate(summary: Summary) -> str:
    found = sum(summary.degenerate.values())
    return format_share(found / summary.judged) if summary.judged else "–"


FAILED = Column("failed", "failed", "turns not answered in full", _failed)

DEGENERATE = Column(
    "degenerate",
    "degen-\nerate",
    "answers that loop, are salad, echo, are empty or cut by the window; of those long enough",
    _degenerate,
)

COLUMNS = (
    Column("turns", "turns", "rows of the run", lambda s: format_number(s.turns)),
    Column(
        "hit / ceiling",
        "hit rate\n/ ceiling",
        "prompt tokens cached, and what was possible",
        _hit_rate,
        metered=True,
    ),
    Column(
        "TTFT p50",
        "TTFT\np50",
        "time to first token, median",
        lambda s: format_seconds(s.ttft.p50),
    ),
    Column(
        "TTFT p95", "TTFT\np95", "of TTFT; failed turns are ∞", lambda s: format_seconds(s.ttft.p95)
    ),
    Column(
        "TTFT p99", "TTFT\np99", "of TTFT; failed turns are ∞", lambda s: format_seconds(s.ttft.p99)
    ),
    Column(
        "tokens/s",
        "tokens\n/s",
        "output tokens per second",
        lambda s: format_number(s.tokens_per_s),
    ),
    Column(
        "busiest",
        "busiest\npod",
        "share of the turns that the busiest pod had, of how many pods",
        _busiest,
    ),
    FAILED,
    DEGENERATE,
    Column(
        "late p99",
        "late\np99",
        "how late turns were sent",
        lambda s: format_seconds(s.lateness.p99),
    ),
)


def summary_table(summaries: Sequence[Summary]) -> Table:
    """Return the runs as a table for a terminal of 80 columns; of 90 where something is wrong."""
    all_well = {
        FAILED.title: not any(summary.failures for summary in summaries),
        DEGENERATE.title: not any(summary.degenerate for summary in summaries),
    }
    columns = [column for column in COLUMNS if not all_well.get(column.title)]
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("arm", overflow="fold")  # the one that gives way where the terminal is narrow
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for summary in summaries:
        cells = [Text(column.cell(summary)) for column in columns]
        table.add_row(Text(summary.arm), *cells)  # Text: a name is not markup
    return table
