"""`kvbench explain`: why each turn of a run went where it went."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvbench.report.decisions import Told


def explain(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    turn: Annotated[
        str | None,
        typer.Option(help="A turn: its number in the plan, or SESSION:TURN."),
    ] = None,
) -> None:
    """Show what the router decided on a run's turns, and what each other pod would have cost.

    For example:

      kvbench explain runs/20261129-204301-chat

      kvbench explain runs/20261129-204301-chat --turn 17
    """
    from kvbench.errors import InputError
    from kvbench.records.decisions import read_decisions
    from kvbench.records.reader import read_rows
    from kvbench.records.run import RunFolder
    from kvbench.report.decisions import explain_run, explain_turn

    folder = RunFolder.open(run)
    rows, _ = read_rows(folder)
    decisions = read_decisions(folder.decisions_path)
    if not decisions:
        raise InputError(
            "this run has no decisions of a router",
            where=str(run),
            hint="send the load to a kvbench router: it tells them while a run goes on",
        )
    if turn is None:
        _show(explain_run(rows, decisions))
        return
    row = next((row for row in rows if turn in {str(row.index), f"{row.session}:{row.turn}"}), None)
    if row is None:
        raise InputError(
            f"--turn: this run has no turn {turn!r}",
            hint=f"a number below {len(rows)}, or such as {rows[0].session}:{rows[0].turn}"
            if rows
            else None,
        )
    if row.request_id not in decisions:
        raise InputError(f"--turn {turn}: no decision on it is on file", where=str(run))
    for told in explain_turn(row, decisions[row.request_id]):
        _show(told)


def _show(told: Told) -> None:
    """Print sentences and tables."""
    from rich.console import Console

    from kvbench.cli.tables import rows_table

    console = Console(highlight=False)
    for sentence in told.sentences:
        console.print(sentence, soft_wrap=True, markup=False)
    for grid in told.grids:
        # heads fold, names of pods do not: all that a policy weighs fits into 80 columns
        table = rows_table(grid.words, [head.replace(" ", "\n") for head in grid.numbers])
        for row in grid.rows:
            table.add_row(*row)
        console.print()
        console.print(grid.title, style="bold", soft_wrap=True)
        console.print(table)
