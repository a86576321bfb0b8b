"""Which turn is due when: pure, without a clock of its own.

All times are seconds from the run's start. A turn with `at` is due then, whatever became of the
turns before it; every other turn is due `think` seconds after the last of its predecessors has
ended, well or badly: the turn before it in its session, and those that it names in `after` (a turn
without predecessors: `think` seconds after the start). Nothing else moves a turn: a slow answer
makes those wait that wait for it, and no other.
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
        self._followers: dict[int, list[int]] = {}
        self._waits: dict[int, int] = {}  # predecessors that have not ended
        self._ended: dict[int, float] = {}  # when the last one has, so far
        for before, turn in _waits(plan):
            self._followers.setdefault(before, []).append(turn)
            self._waits[turn] = self._waits.get(turn, 0) + 1
        self._due = [
            (turn.think if turn.at is None else turn.at, turn.index)
            for turn in plan.turns
            if turn.index not in self._waits
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

    def followers(self, turn: PlannedTurn) -> list[PlannedTurn]:
        """Return the turns that wait, or waited, for the end of `turn` and have not been taken."""
        return [self._turns[i] for i in self._followers.get(turn.index, ()) if i in self._turns]

    def waits(self, turn: PlannedTurn) -> bool:
        """Whether something that `turn` waits for has not ended yet."""
        return self._waits.get(turn.index, 0) > 0

    def end(self, turn: PlannedTurn, at: float) -> None:
        """Learn that `turn` has ended, well or badly, at `at`; what waited for it gets its time."""
        for index in self._followers.get(turn.index, ()):
            self._waits[index] -= 1
            self._ended[index] = max(at, self._ended.get(index, at))
            if not self._waits[index]:
                heapq.heappush(self._due, (self._ended[index] + self._turns[index].think, index))

    def take_rest(self) -> Iterator[tuple[float, PlannedTurn]]:
        """Remove and return all that are left, each with the earliest time it can have been due.

        For a turn that waits for another, that is as if all before it were answered at once.
        """
        while self._due:
            due, index = heapq.heappop(self._due)
            turn = self._turns.pop(index)
            yield due, turn
            self.end(turn, due)


def _waits(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield the indices of each two turns of which the second waits for the end of the first."""
    in_order = sorted(plan.turns, key=lambda turn: (turn.session, turn.turn))
    for _, session in groupby(in_order, key=lambda turn: turn.session):
        for turn, follower in pairwise(session):
            if follower.at is None:
                yield turn.index, follower.index
    for turn in plan.turns:
        if turn.at is None:
            yield from ((before, turn.index) for before in turn.after)
