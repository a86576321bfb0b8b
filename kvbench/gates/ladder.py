"""The ladder: rates, arms and seeds, and the highest rate at which an objective is met.

For every arm and rate there is one value a seed. Their mean has Student's interval over seeds, or,
of a single seed, the interval of its sessions. Along the rates the value of a loaded system only
gets worse, and where noise says otherwise it is smoothed to do so (the largest, or smallest, value
so far). The *knee* is where the line crosses the limit, on straight lines between rates; it lies
between where the worse ends of the intervals cross and where the better ends do.

An arm that misses the objective already at the lowest rate has no knee: it is below it. One that
meets it at the highest rate has one beyond it. Neither is extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InputError
from kvbench.gates.compare import t_reach
from kvbench.gates.gate import Absolute
from kvbench.records.intervals import CONFIDENCE, Interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvbench.gates.gate import Gate
    from kvbench.gates.measure import Measurement

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """One rate of one arm.

    Attributes:
        rate: Sessions per second.
        value: Mean over seeds.
        interval: Of that mean.
        seeds: How many.
        reason: Why one of its runs may not be judged; the first such.
    """

    rate: float
    value: float
    interval: Interval
    seeds: int
    reason: str | None = None

    @classmethod
    def of(
        cls, rate: float, found: Sequence[Measurement], reason: str | None = None,
        confidence: float = CONFIDENCE,
    ) -> Step:  # fmt: skip
        """Return the step that some seeds make."""
        values = np.array([one.value for one in found])
        mean = float(values.mean())
        if len(values) == 1 or not np.isfinite(values).all():
            interval = found[0].interval or Interval(mean, mean)
            low = float(min(values.min(), interval.low))
            return cls(rate, mean, Interval(low, max(interval.high, mean)), len(values), reason)
        reach = t_reach(values, confidence)
        return cls(rate, mean, Interval(mean - reach, mean + reach), len(values), reason)


@dataclass(frozen=True, slots=True)
class Knee:
    """The highest rate that meets the objective; -inf: below the lowest, +inf: beyond the highest.

    Attributes:
        rate: Where the value crosses the limit.
        interval: Where the ends of the steps' intervals do.
    """

    rate: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Ladder:
    """All steps of all arms, by arm, from the lowest rate to the highest."""

    objective: Gate
    limit: float
    arms: Mapping[str, tuple[Step, ...]]

    def knees(self) -> dict[str, Knee]:
        """Return each arm's knee."""
        return {
            arm: knee(steps, self.limit, up=not self.objective.measure.subject.higher_is_better)
            for arm, steps in self.arms.items()
        }


def check_objective(gate: Gate) -> float:
    """Return the limit of an objective.

    Raises:
        InputError: It is relative.
    """
    if not isinstance(gate.bound, Absolute):
        raise InputError(
            f"expected an objective with a number, got a relative one\n    {gate.text}",
            where=gate.where,
            hint="for example: --objective 'ttft p95 < 500ms'",
        )
    return gate.bound.value


def knee(steps: Sequence[Step], limit: float, *, up: bool) -> Knee:
    """Return where the value of at least one step crosses the limit.

    Args:
        steps: By rising rate.
        limit: Of the objective.
        up: Whether the value grows with load: a latency does, a hit rate does not.
    """
    rates = np.array([step.rate for step in steps])
    sign = 1.0 if up else -1.0
    lines = [
        np.maximum.accumulate(sign * np.array(values, dtype=np.float64))
        for values in (
            [step.value for step in steps],
            [step.interval.high if up else step.interval.low for step in steps],
            [step.interval.low if up else step.interval.high for step in steps],
        )
    ]
    middle, worse, better = (_crossing(rates, line, sign * limit) for line in lines)
    return Knee(middle, Interval(worse, better))


def _crossing(rates: Floats, values: Floats, limit: float) -> float:
    """Return where a rising line reaches the limit."""
    above = np.flatnonzero(values > limit)
    if not len(above):
        return math.inf
    first = int(above[0])
    if first == 0:
        return -math.inf
    low, high = float(values[first - 1]), float(values[first])
    if not math.isfinite(high) or not math.isfinite(low):
        return float(rates[first - 1])
    share = (limit - low) / (high - low)
    return float(rates[first - 1] + share * (rates[first] - rates[first - 1]))
