"""What a load worker that died leaves undone: each of its turns without a row gets one.

The row is of a kind of its own, `lost`: whether the turn was sent, and what was answered, nobody
knows any more. It says nothing of the target, and the run it stands in is not valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvbench.load.outcome import Expected, unsent
from kvbench.load.schedule import Schedule
from kvbench.records.reader import read_rows
from kvbench.records.writer import RowWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.records.run import RunFolder
    from kvbench.records.schema import TurnRecord
    from kvbench.workload.plan import Plan


def write_lost(folder: RunFolder, plan: Plan, worker: int, workers: int) -> int:
    """Write the rows that worker `worker` of `workers` owes; return how many.

    Raises:
        InputError: The folder cannot be read or written.
    """
    there, _ = read_rows(folder)
    have = {row.index for row in there}
    with RowWriter(folder.rows_path(worker)) as writer:
        rows = [row for row in _rows(folder.id, plan, worker, workers) if row.index not in have]
        for row in rows:
            writer.append(row)
    return len(rows)


def _rows(run_id: str, plan: Plan, worker: int, workers: int) -> Iterator[TurnRecord]:
    """Yield a row for each turn of the part, due as if every answer had come at once."""
    for due, turn in Schedule(plan.part(worker, workers)).take_rest():
        row = unsent(
            turn,
            worker=worker,
            intended=due,
            expected=Expected(),
            request_id=f"{run_id}-{turn.index}",
        )
        yield msgspec.structs.replace(
            row, error="lost", error_message=f"load worker {worker} was lost"
        )
