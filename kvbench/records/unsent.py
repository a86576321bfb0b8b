"""Rows of turns of which nothing came back: never sent, or lost with the load worker that had them.

Every planned turn leaves one row, whatever happens to those that are to send it. A turn whose time
had not come when the run ended is `not_sent`. A turn whose load worker died before it had filed a
row is `lost`: whether it was sent, and what was answered, nobody knows any more. Neither says
anything of the target, and a run that has them is not valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvbench.records.reader import read_rows
from kvbench.records.schema import TurnRecord
from kvbench.records.writer import RowWriter
from kvbench.workload.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.records.run import RunFolder
    from kvbench.workload.plan import Plan, PlannedTurn


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a turn before it is sent.

    Attributes:
        prompt_tokens: Of its whole prompt.
        cached_tokens: Of these, what an endless cache would hold.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def unsent(
    turn: PlannedTurn, *, worker: int, intended: float, expected: Expected, request_id: str
) -> TurnRecord:
    """Return the row of a turn whose time had not come when the run was stopped."""
    return TurnRecord(
        index=turn.index,
        session=turn.session,
        turn=turn.turn,
        group=turn.group,
        worker=worker,
        intended_s=round(intended, 7),
        error="not_sent",
        error_message="the run ended before its turn came",
        planned_prompt_tokens=expected.prompt_tokens,
        dropped_tokens=turn.dropped_tokens,
        ceiling_tokens=expected.cached_tokens,
        max_tokens=turn.max_tokens,
        request_id=request_id,
    )


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
