"""How tables look in the terminal: a line under the head, and nothing around."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table


def rows_table(
    words: Iterable[str], numbers: Iterable[str] = (), title: str | None = None
) -> Table:
    """Return an empty table: columns of words, then columns of numbers, to the right."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def facts_table(title: str) -> Table:
    """Return an empty table of names and values."""
    table = rows_table(("", ""), title=title)
    table.show_header = False
    table.columns[0].no_wrap = True
    return table
