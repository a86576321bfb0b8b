"""The generator's testimony against itself: how late it was, and how hard it worked.

Lateness of sends, delay of the event loop and CPU time decide whether a run may be believed, so
they are kept whatever happens, in bounded memory (`kvbench.load.distribution`).
"""

from __future__ import annotations

import time

from kvbench.load.distribution import Distribution
from kvbench.records.manifest import Testimony


class Witness:
    """Watches one load worker.

    Attributes:
        in_flight: Turns open now.
        recent_delay: Latest that a timer fired since somebody set this back to 0.
        due: Turns whose time has come.
        begun: Of these, turns that were sent.
    """

    def __init__(self) -> None:
        self._lateness = Distribution()
        self._delay = Distribution()
        self._turns = 0
        self._held_back = 0
        self._built_late = 0
        self._max_in_flight = 0
        self.in_flight = 0
        self.recent_delay = 0.0
        self.due = self.begun = 0
        self._cpu = time.process_time()
        self._wall = time.monotonic()

    def sent(self, lateness: float) -> None:
        """Learn that a turn was sent `lateness` seconds after it should have been."""
        self._turns += 1
        self._lateness.add(lateness)

    def ticked(self, delay: float) -> None:
        """Learn that a timer fired `delay` seconds late."""
        self._delay.add(delay)
        self.recent_delay = max(self.recent_delay, delay)

    def opened(self, in_flight: int) -> None:
        """Learn how many turns are open."""
        self.in_flight = in_flight
        self._max_in_flight = max(self._max_in_flight, in_flight)

    def held_back(self) -> None:
        """Learn that a turn was due and found no room."""
        self._held_back += 1

    def built_late(self) -> None:
        """Learn that a request was not ready when it was due."""
        self._built_late += 1

    def testify(self, worker: int, *, kernel_stamps: bool | None = None) -> Testimony:
        """Return what is to be said; the CPU share is that of the whole process so far."""
        wall = time.monotonic() - self._wall
        return Testimony(
            worker=worker,
            turns=self._turns,
            lateness_p50_s=self._lateness.percentile(0.5),
            lateness_p99_s=self._lateness.percentile(0.99),
            lateness_max_s=self._lateness.largest,
            cpu_share=(time.process_time() - self._cpu) / wall if wall > 0 else None,
            loop_delay_p50_s=self._delay.percentile(0.5),
            loop_delay_p99_s=self._delay.percentile(0.99),
            loop_delay_max_s=self._delay.largest,
            max_in_flight=self._max_in_flight,
            kernel_stamps=kernel_stamps,
            held_back=self._held_back,
            built_late=self._built_late,
        )
