"""The generator's testimony against itself: how late it was, and how hard it worked.

Lateness of sends, delay of the event loop and CPU time decide whether a run may be believed, so
they are kept whatever happens, in bounded memory: samples fall into buckets 2 % wide, and a
percentile is the upper edge of its bucket, so it is never flattered. The maximum is exact.
"""

from __future__ import annotations

import math
import time

from kvbench.records.manifest import Testimony

_FLOOR = 1e-6  # a microsecond; less is none
_WIDTH = math.log(1.02)


class Distribution:
    """Non-negative samples, in buckets."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._largest = 0.0

    def add(self, value: float) -> None:
        """Take a sample; below zero counts as zero."""
        bucket = math.ceil(math.log(value / _FLOOR) / _WIDTH) if value > _FLOOR else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._largest = max(self._largest, value)

    @property
    def largest(self) -> float | None:
        """The largest sample, exactly."""
        return self._largest if self._count else None

    def percentile(self, share: float) -> float | None:
        """Return a bound that at least `share` (0 to 1) of the samples do not exceed."""
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= share * self._count:
                return min(_FLOOR * math.exp(bucket * _WIDTH), self._largest)
        return None


class Witness:
    """Watches one load worker."""

    def __init__(self) -> None:
        self._lateness = Distribution()
        self._delay = Distribution()
        self._turns = 0
        self._max_in_flight = 0
        self._cpu = time.process_time()
        self._wall = time.monotonic()

    def sent(self, lateness: float) -> None:
        """Learn that a turn was sent `lateness` seconds after it should have been."""
        self._turns += 1
        self._lateness.add(lateness)

    def ticked(self, delay: float) -> None:
        """Learn that a timer fired `delay` seconds late."""
        self._delay.add(delay)

    def opened(self, in_flight: int) -> None:
        """Learn how many turns are open."""
        self._max_in_flight = max(self._max_in_flight, in_flight)

    def testify(self, worker: int) -> Testimony:
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
        )
