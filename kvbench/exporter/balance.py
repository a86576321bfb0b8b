"""How evenly work is spread over pods: over a sliding window, by two measures.

Two measures, since each hides something: *max over mean* sees the one pod that is too busy and not
how many idle; *Jain's index* (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984) sees both and names
neither. Pods without work count as 0. Where there was no work at all, there is no balance: None.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def max_over_mean(work: Collection[float]) -> float | None:
    """Return the largest share over the mean: 1 is even, the number of pods is all on one."""
    shares = _shares(work)
    return len(shares) / sum(shares) if shares else None


def jain(work: Collection[float]) -> float | None:
    """Return (Σx)² / (n Σx²): 1 is even, 1/n is all on one."""
    shares = _shares(work)
    return sum(shares) ** 2 / (len(shares) * sum(x * x for x in shares)) if shares else None


def _shares(work: Collection[float]) -> list[float]:
    """Return amounts as parts of the largest, whose squares are no larger than a number can be."""
    most = max(work, default=0.0)
    return [amount / most for amount in work] if 0 < most < math.inf else []


class Recent:
    """Sums of what was done lately, by name.

    Args:
        seconds: Length of the window.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._done: deque[tuple[float, str, float]] = deque()

    def add(self, now: float, name: str, amount: float) -> None:
        """Take note of work."""
        self._forget(now)
        if amount > 0:
            self._done.append((now, name, amount))

    def sums(self, now: float, names: Iterable[str]) -> list[float]:
        """Return what each of `names` has done within the window."""
        self._forget(now)
        sums = dict.fromkeys(names, 0.0)
        for _, name, amount in self._done:
            if name in sums:
                sums[name] += amount
        return list(sums.values())

    def _forget(self, now: float) -> None:
        """Forget what is too old."""
        while self._done and self._done[0][0] < now - self._seconds:
            self._done.popleft()
