"""Time as an argument.

A `Clock` answers what time it is, in seconds. Code below the rim takes one; tests and simulations
pass a `VirtualClock`, processes pass `WallClock`. Only differences of `now()` mean anything; the
calendar is asked for separately, by `utc()` and `utc_seconds()`, and never used to measure.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic seconds."""

    def now(self) -> float:
        """Return seconds since some fixed moment; never runs backwards."""
        ...


class WallClock:
    """The machine's monotonic clock: `now` is `time.monotonic` itself, for it is asked often."""

    now = staticmethod(time.monotonic)


class VirtualClock:
    """A clock that moves when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    def advance_to(self, moment: float) -> None:
        """Move forward to `moment` (seconds); moving backwards is a bug and raises ValueError."""
        if moment < self._now:
            raise ValueError(f"time cannot run backwards: {moment} < {self._now}")
        self._now = moment


def utc() -> datetime:
    """Return the calendar time, for names and manifests."""
    return datetime.now(UTC)


utc_seconds = time.time  # noqa: TID251 - here is where the clock is
"""The same in seconds since 1970: `time.time` itself, for it is asked with every decision."""
