"""When sessions begin: a rate that may change, and how evenly they come.

Every open-loop arrival is a *rate*, pieces of time in which it is constant or changes linearly, and
a *spacing*: gaps of mean 1 that are all alike, exponential (Poisson) or gamma. With Λ(t) the
integral of the rate, the k-th session begins at Λ⁻¹(g1 + … + gk), so a changing rate keeps the
character of its spacing (time rescaling of a renewal process). The first session begins at 0.

Bursts and replayed times stand for themselves. A fixed number of users is no arrival process:
there a session begins when another has ended (`kvbench.workload.build`).
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from kvbench.workload.spec import (
    Arrival,
    BurstArrival,
    ConstantArrival,
    GammaArrival,
    LadderArrival,
    PoissonArrival,
    RampArrival,
    ReplayArrival,
    UsersArrival,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

_Piece = tuple[float, float, float]  # seconds, rate at the beginning, rate at the end


def arrivals(arrival: Arrival, rng: Random) -> Iterator[float]:
    """Yield the seconds at which sessions begin; the first begins at 0.

    Without end for constant, Poisson, gamma and burst; to the end of a ramp, a ladder and a list of
    times. Of users, only the first session of each.
    """
    if isinstance(arrival, BurstArrival):
        for burst in itertools.count():
            yield from itertools.repeat(burst * arrival.every, arrival.size)
    elif isinstance(arrival, ReplayArrival):
        times = sorted(arrival.times)
        yield from ((time - times[0]) / arrival.speed for time in times)
    elif isinstance(arrival, UsersArrival):
        yield from (user * arrival.stagger for user in range(arrival.count))
    elif isinstance(arrival, ConstantArrival):
        for i in itertools.count():  # a product, where a sum would collect rounding errors
            yield i / arrival.rate
    elif isinstance(arrival, PoissonArrival | GammaArrival):
        now = 0.0
        while True:
            yield now
            now += _gap(arrival, rng)
    else:
        yield from _rescaled(pieces(arrival), arrival.spacing == "constant", rng)


def _gap(arrival: PoissonArrival | GammaArrival, rng: Random) -> float:
    """Return the seconds between two sessions."""
    if isinstance(arrival, GammaArrival):
        return rng.gammavariate(arrival.shape, 1 / (arrival.rate * arrival.shape))
    return rng.expovariate(arrival.rate)


def pieces(arrival: RampArrival | LadderArrival) -> Sequence[_Piece]:
    """Return the rate over time, piece by piece."""
    if isinstance(arrival, RampArrival):
        return [(arrival.over, arrival.start, arrival.end)]
    return [(step.duration, step.rate, step.rate) for step in arrival.steps]


def _rescaled(rate: Sequence[_Piece], even: bool, rng: Random) -> Iterator[float]:
    """Yield the times at which the integral of a rate reaches the sums of gaps of mean 1."""
    wanted, before, begun = 0.0, 0.0, 0.0
    for seconds, low, high in rate:
        area = (low + high) / 2 * seconds
        while wanted < before + area:
            yield begun + _reached(wanted - before, seconds, low, high)
            wanted += 1.0 if even else rng.expovariate(1.0)
        before += area
        begun += seconds


def _reached(area: float, seconds: float, low: float, high: float) -> float:
    """Return when the integral of a rate that goes from `low` to `high` has reached `area`."""
    if area <= 0:
        return 0.0
    slope = (high - low) / seconds
    return 2 * area / (low + math.sqrt(low * low + 2 * slope * area))
