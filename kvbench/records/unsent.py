"""The row of a turn that was not sent, and what is known of a turn before it is.

Every planned turn leaves one row. One whose time had not come when the run ended is `not_sent`,
which says nothing of the target; a run that has such rows is not valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.records.schema import TurnRecord

if TYPE_CHECKING:
    from kvbench.workload.plan import PlannedTurn


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
