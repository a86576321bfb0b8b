"""How many requests are under way at once, and who waits meanwhile. Pure; time is an argument.

Rules:

- At most so many visits are inside; so many more wait, in the order in which they came, and are
  let in as soon as one ends. Beyond that a visit is turned away at once, with 429 and a time after
  which it may come again: when the queue as it stands should be through.
- Who has waited too long is turned away with 503. Who leaves while waiting takes nobody's place.
- A request is placed when it is let in and not when it came: only then is it known where its
  prefix is.
- The limits of a key come first, and its visits count for it while they wait, too.
- A visit may be ended more than once; it counts once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.router.access import Holder

_LONGEST_RETRY_S = 60
_WEIGHT = 0.05  # of a new visit in the mean length of visits


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a visit is turned away.

    Attributes:
        limit: Which limit it met; "queue" is its length, "patience" the time in it.
        status: HTTP status.
        sentence: For the client.
        retry_after_s: Seconds after which it may come again.
    """

    limit: Literal["in_flight", "per_minute", "queue", "patience"]
    status: HTTPStatus
    sentence: str
    retry_after_s: int


class Visit:
    """A request on its way past the limits.

    Args:
        begin: Called when it is let in.
        turn_away: Called when it is not.
        holder: Of its key, if it has one.
        room: Where it may have to wait, if there is such a room.
    """

    __slots__ = ("_account", "_room", "begin", "place", "since", "turn_away")

    def __init__(
        self,
        begin: Callable[[], None],
        turn_away: Callable[[Refusal], None],
        holder: Holder | None = None,
        room: WaitingRoom | None = None,
    ) -> None:
        self._account = holder
        self._room = room
        self.begin = begin
        self.turn_away = turn_away
        self.place: Literal["outside", "waiting", "inside"] = "outside"
        self.since = 0.0

    def arrive(self, now: float) -> None:
        """Go in, wait, or be turned away."""
        if self._account is not None and (met := self._account.enter(now)) is not None:
            limit, wait_s = met
            words = "at once" if limit == "in_flight" else "a minute"
            sentence = f"The key {self._account.name} has reached its limit of requests {words}."
            self._account = None
            self.turn_away(Refusal(limit, HTTPStatus.TOO_MANY_REQUESTS, sentence, wait_s))
        elif self._room is None:
            self.begin()
        else:
            self._room.enter(self, now)

    def end(self, now: float) -> None:
        """Leave, from wherever it is."""
        holder, self._account = self._account, None
        if holder is not None:
            holder.leave()
        if self._room is not None:
            self._room.leave(self, now)


class WaitingRoom:
    """Lets visits in.

    Args:
        most_inside: How many at once.
        most_waiting: How many may wait.
        patience_s: Seconds that one may wait.
        waited: Told, in seconds, how long each that is let in has waited.

    Attributes:
        inside: How many are.
    """

    def __init__(
        self,
        most_inside: int,
        most_waiting: int,
        patience_s: float,
        waited: Callable[[float], None],
    ) -> None:
        self._most_inside = most_inside
        self._most_waiting = most_waiting
        self._patience_s = patience_s
        self._waited = waited
        self._waiting: dict[Visit, None] = {}
        self._letting_in = False
        self._mean_s = 1.0
        self.inside = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def enter(self, visit: Visit, now: float) -> None:
        """Take a visit in, or on, or turn it away."""
        visit.since = now
        if self.inside >= self._most_inside and self.waiting >= self._most_waiting:
            sentence = f"{self.inside} requests are under way and {self.waiting} wait."
            visit.turn_away(
                Refusal("queue", HTTPStatus.TOO_MANY_REQUESTS, sentence, self._retry_after_s())
            )
            return
        visit.place = "waiting"
        self._waiting[visit] = None
        self._let_in(now)

    def leave(self, visit: Visit, now: float) -> None:
        """Take note that a visit has ended, wherever it was."""
        place, visit.place = visit.place, "outside"
        if place == "waiting":
            del self._waiting[visit]
        elif place == "inside":
            self.inside -= 1
            self._mean_s += _WEIGHT * (now - visit.since - self._mean_s)
            self._let_in(now)

    def sweep(self, now: float) -> None:
        """Turn away those who have waited too long."""
        for visit in [v for v in self._waiting if now - v.since >= self._patience_s]:
            if visit.place == "waiting":
                self.leave(visit, now)
                sentence = f"No place became free within {self._patience_s:g} s."
                again_s = self._retry_after_s()
                visit.turn_away(
                    Refusal("patience", HTTPStatus.SERVICE_UNAVAILABLE, sentence, again_s)
                )

    def _let_in(self, now: float) -> None:
        """Let in who can be. A visit that ends as it begins lets in the next here, not in there."""
        if self._letting_in:
            return
        self._letting_in = True
        try:
            while self._waiting and self.inside < self._most_inside:
                visit = next(iter(self._waiting))
                del self._waiting[visit]
                visit.place = "inside"
                self.inside += 1
                self._waited(now - visit.since)
                visit.since = now
                visit.begin()
        finally:
            self._letting_in = False

    def _retry_after_s(self) -> int:
        """Return after how many seconds the queue as it stands should be through."""
        expected_s = (self.waiting + 1) * self._mean_s / self._most_inside
        return min(max(math.ceil(expected_s), 1), _LONGEST_RETRY_S)
