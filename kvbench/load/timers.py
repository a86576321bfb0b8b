"""Timers of an event loop, on the clock that the run is measured with.

uvloop's timers count whole milliseconds and round to the nearest, so they may fire half a
millisecond early. Whoever asked looks at the clock, finds that it is not time yet and asks again;
what is left rounds to nothing then, and the loop comes round, reading and writing in between,
until it is time. So a send is punctual to a few microseconds for half a millisecond of a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kvbench.clock import Clock


class LoopTimers:
    """`kvbench.load.dispatch.Timers` on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.Handle:
        """Call back at `when` on the clock, give or take half a millisecond."""
        return self._loop.call_later(max(0.0, when - self._clock.now()), callback)
