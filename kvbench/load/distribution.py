"""Samples in buckets 2 % wide: what many numbers come to, in bounded memory, mergeable.

A percentile is the upper edge of its bucket, so it is never flattered. The largest sample and the
sum are exact. Two distributions merge into what one would be that had seen both, so workers keep
their own and the master adds them up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_FLOOR = 1e-6  # a microsecond; less is none
_WIDTH = math.log(1.02)


def bucket_of(value: float) -> int:
    """Return the number of the bucket that a sample falls into; below zero counts as zero."""
    return math.ceil(math.log(value / _FLOOR) / _WIDTH) if value > _FLOOR else 0


class Distribution(msgspec.Struct, omit_defaults=True):
    """Non-negative samples, in buckets.

    Attributes:
        buckets: Samples by number of the bucket.
        count: All samples.
        total: Their sum.
        most: The largest, exactly.
    """

    buckets: dict[int, int] = msgspec.field(default_factory=dict)
    count: int = 0
    total: float = 0.0
    most: float = 0.0

    def add(self, value: float) -> None:
        """Take a sample; below zero counts as zero."""
        bucket = bucket_of(value)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        if value > 0:
            self.total += value
            self.most = max(self.most, value)

    def add_all(self, values: Iterable[float]) -> None:
        """Take samples."""
        for value in values:
            self.add(value)

    def merge(self, other: Distribution) -> None:
        """Take all samples of another."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)

    @property
    def largest(self) -> float | None:
        """The largest sample, exactly; None if there is none."""
        return self.most if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return a bound that at least `share` (0 to 1) of the samples do not exceed."""
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= share * self.count:
                return min(_FLOOR * math.exp(bucket * _WIDTH), self.most)
        return None

    def at_most(self, bounds: Iterable[float]) -> list[int]:
        """Return for each bound how many samples are certainly at most that."""
        last = [math.floor(math.log(bound / _FLOOR) / _WIDTH + 1e-9) for bound in bounds]
        return [sum(n for bucket, n in self.buckets.items() if bucket <= edge) for edge in last]
