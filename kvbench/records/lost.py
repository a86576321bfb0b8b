"""Rows of turns that were lost with the load worker that had them.

Every planned turn leaves one row, also where a worker died before it had filed it. Such a row is of
a kind of its own, `lost`: whether the turn was sent, and what was answered, nobody knows any more.
It says nothing of the target, and a run that has such rows is not valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvbench.records.reader import read_rows
from kvbench.records.unsent import Expected, unsent
from kvbench.records.writer import RowWriter
from kvbench.workload.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.records.run import RunFolder
    from kvbench.records.schema import TurnRecord
    from kvbench.workload.plan import Plan


def write_lost(folder: RunFolder, plan: Plan, worker: int, workers: int) -> int:
    """Write the rows that load worker `worker` of `workers` owes; return how many.

    Raises:
        InputError: The folder cannot be read or written.
    """
    there, _ = read_rows(folder)
    have = {row.index for row in there}
    rows = [row for row in _lost(folder.id, plan, worker, workers) if row.index not in have]
    if rows:
        with RowWriter(folder.rows_path(worker)) as writer:
            for row in rows:
                writer.append(row)
    return len(rows)


def _lost(run_id: str, plan: Plan, worker: int, workers: int) -> Iterator[TurnRecord]:
    """Yield a row for each turn of the part, due as if every answer had come at once."""
    for due, turn in Schedule(plan.part(worker, workers)).take_rest():
        row = unsent(
            turn,
            worker=worker,
            intended=due,
            expected=Expected(),
            request_id=f"{run_id}-{turn.index}",
        )
        message = f"load worker {worker} was gone before it had filed this turn"
        yield msgspec.structs.replace(row, error="lost", error_message=message)
