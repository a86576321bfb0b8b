"""A verdict as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from kvbench.records.verdict import Decided, Verdict

_STYLES: dict[Decided, str] = {
    "passed": "green",
    "failed": "bold red",
    "cannot tell": "yellow",
    "invalid": "magenta",
}


def verdict_table(verdict: Verdict) -> Table:
    """Return a line for each gate: what it comes to, as written, and why."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("gate", overflow="fold")
    table.add_column("measured", overflow="fold")
    for result in verdict.gates:
        decided = Text(result.decided, style=_STYLES[result.decided])
        table.add_row(decided, Text(result.gate), Text(result.said))
    return table
