"""Which turn is due when: pure, without a clock of its own.

All times are seconds from the run's start. A turn with `at` is due then, whatever became of the
turns before it; every other turn is due `think` seconds after its predecessor has ended, well or
badly (a turn without a predecessor: `think` seconds after the start). Nothing else moves a turn: a
slow answer makes its own session wait and no other.
"""

from __future__ import annotations

import heapq
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.workload.plan import Plan, PlannedTurn


class Schedule:
    """The turns of a plan that have not been taken yet."""

    def __init__(self, plan: Plan) -> None:
        self._turns = {turn.index: turn for turn in plan.turns}
        self._followers = dict(_chains(plan))
        waiting = set(self._followers.values())
        self._due = [
            (turn.think if turn.at is None else turn.at, turn.index)
            for turn in plan.turns
            if turn.index not in waiting
        ]
        heapq.heapify(self._due)

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn: PlannedTurn) -> bool:
        return turn.index in self._turns

    @property
    def next_due(self) -> float | None:
        """When the next turn is due, as far as is known now."""
        return self._due[0][0] if self._due else None

    def timed(self) -> list[tuple[float, PlannedTurn]]:
        """Return the turns whose due time is known, soonest first, with that time."""
        return [(due, self._turns[index]) for due, index in sorted(self._due)]

    def take(self, now: float) -> list[tuple[float, PlannedTurn]]:
        """Remove and return the turns that are due at `now`, in order, each with its due time."""
        taken = []
        while self._due and self._due[0][0] <= now:
            due, index = heapq.heappop(self._due)
            taken.append((due, self._turns.pop(index)))
        return taken

    def follower(self, turn: PlannedTurn) -> PlannedTurn | None:
        """Return the turn that waits for the end of `turn`, unless it has been taken."""
        return self._turns.get(self._followers.get(turn.index, -1))

    def end(self, turn: PlannedTurn, at: float) -> None:
        """Learn that `turn` has ended, well or badly, at `at`; what waited for it gets its time."""
        follower = self.follower(turn)
        if follower is not None:
            heapq.heappush(self._due, (at + follower.think, follower.index))

    def take_rest(self) -> Iterator[tuple[float, PlannedTurn]]:
        """Remove and return all that are left, each with the earliest time it can have been due.

        For a turn that waits for another, that is as if all before it were answered at once.
        """
        while self._due:
            due, index = heapq.heappop(self._due)
            turn = self._turns.pop(index)
            yield due, turn
            self.end(turn, due)


def _chains(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield the indices of each two turns of which the second waits for the end of the first."""
    in_order = sorted(plan.turns, key=lambda turn: (turn.session, turn.turn))
    for _, session in groupby(in_order, key=lambda turn: turn.session):
        for turn, follower in pairwise(session):
            if follower.at is None:
                yield turn.index, follower.index
