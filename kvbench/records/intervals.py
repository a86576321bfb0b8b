"""How far a number may be trusted: intervals in which sessions, not turns, are the units.

Turns of a session are not independent: they share a prompt, a pod and a moment. So the spread of a
number is taken from how sessions differ.

**Sums and ratios** (hit rate, errors): sessions are drawn whole, as many as there are and with
replacement, a thousand times; the number is computed anew each time, and the middle 95 of 100
results are its interval (the percentile bootstrap, B. Efron 1979). Few sessions would make it too
narrow, so its levels are widened as a t interval is wider than a normal one (T. Hesterberg, "What
Teachers Should Know About the Bootstrap", 2015). More than `BUNDLES` sessions are drawn in so many
bundles, which leaves the spread as it is.

**Quantiles**: how many turns lie below the true quantile is a sum over sessions with a known
spread; the interval ends at the values of the ranks that lie so far below and above (R. Woodruff
1952; with one turn a session it is the textbook interval of order statistics). The bootstrap would
miss the true p95 of 250 turns from above in 6 to 10 of 100 cases instead of 2.5, since it cannot
draw a value that was not measured; here an upper rank beyond the last turn says +∞: the p99 of 100
turns may be anything.

The same seed gives the same intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from kvbench.records.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Sessions = NDArray[np.int64]
    Fold = Callable[[Floats], Floats]

CONFIDENCE = 0.95
REPLICATES = 1000
BUNDLES = 4000
_CELLS = 2_000_000  # draws held at a time: 16 MB
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a number is believed to lie; the ends may be infinite."""

    low: float
    high: float


EVERYWHERE = Interval(-math.inf, math.inf)
"""Nothing is known."""


def quantile_interval(
    values: Floats, excess: Callable[[float], Floats], q: float, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the q-quantile.

    Args:
        values: All values, +inf for failed turns; no NaN.
        excess: For a value, by how many more of each session's values do not exceed it than the
            share q of them; one number a session that has values.
        q: Which quantile, 0 < q < 1.
        confidence: Share of cases in which the interval holds the true quantile.
    """
    count = len(values)
    apart = excess(quantile(values, q)) if count else np.empty(0)
    units = len(apart)
    if units < 2:
        return EVERYWHERE
    # Never narrower than independent values would be: few sessions may agree by accident.
    variance = max(float(np.square(apart).sum()) * units / (units - 1), q * (1 - q) * count)
    reach = t_quantile(1 - (1 - confidence) / 2, units - 1) * math.sqrt(variance)
    low, high = math.floor(q * count - reach), math.ceil(q * count + reach) + 1
    ends = [rank - 1 for rank in (low, high) if 1 <= rank <= count]
    ordered = np.partition(values, ends) if ends else values
    return Interval(
        float(ordered[low - 1]) if low >= 1 else -math.inf,
        float(ordered[high - 1]) if high <= count else math.inf,
    )


def excess_by_session(values: Floats, sessions: Sessions, q: float) -> Callable[[float], Floats]:
    """Return the `excess` of `quantile_interval` where each value belongs to one session."""
    turns = np.bincount(sessions)
    present = turns > 0

    def excess(at: float) -> Floats:
        below = np.bincount(sessions[values <= at], minlength=len(turns))
        return np.asarray((below - q * turns)[present], dtype=np.float64)

    return excess


def turns_to_bound(q: float, confidence: float = CONFIDENCE) -> int:
    """Return from how many independent turns on a quantile has an upper end."""
    z = _NORMAL.inv_cdf(1 - (1 - confidence) / 2)
    return math.ceil(q * z * z / (1 - q)) + 2


def sum_interval(
    columns: Floats, sessions: Sessions, fold: Fold, seed: int, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of a function of sums over turns.

    Args:
        columns: What is summed, one row a turn, n × k.
        sessions: Session of each turn, from 0.
        fold: From sums (m × k) to numbers (m); NaN where undefined.
        seed: Of the draws.
        confidence: Share of cases in which the interval holds the true number.
    """
    present, unit_of = np.unique(sessions, return_inverse=True)
    units = min(len(present), BUNDLES)
    if units < 2:
        return EVERYWHERE
    unit_of %= units
    sums = np.stack(
        [np.bincount(unit_of, weights=column, minlength=units) for column in columns.T], axis=1
    )
    generator = np.random.default_rng(seed)
    rows = max(1, _CELLS // units)
    results = []
    for start in range(0, REPLICATES, rows):
        part = min(rows, REPLICATES - start)
        drawn = generator.integers(0, units, (part, units)) + np.arange(part)[:, None] * units
        draws = np.bincount(drawn.ravel(), minlength=part * units).reshape(part, units)
        with np.errstate(divide="ignore", invalid="ignore"):
            results.append(fold(draws.astype(np.float64) @ sums))
    known = np.sort(np.concatenate(results))
    known = known[~np.isnan(known)]
    if not len(known):
        return EVERYWHERE
    tail = _tail(units, confidence)
    low, high = np.quantile(known, [tail, 1 - tail], method="inverted_cdf").tolist()
    return Interval(low, high)


def share_interval(part: int, whole: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of a share of independent turns (E. B. Wilson, 1927)."""
    if not whole:
        return EVERYWHERE
    z = _NORMAL.inv_cdf(1 - (1 - confidence) / 2)
    share, spread = part / whole, z * z / whole
    middle = (share + spread / 2) / (1 + spread)
    reach = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return Interval(max(middle - reach, 0.0), min(middle + reach, 1.0))


def _tail(units: int, confidence: float) -> float:
    """Return what is cut off on either side: the expanded percentile level."""
    t = t_quantile(1 - (1 - confidence) / 2, units - 1)
    return max(_NORMAL.cdf(-math.sqrt(units / (units - 1)) * t), 1e-9)


def t_quantile(p: float, freedom: int) -> float:
    """Return the quantile of Student's t: exact for 1 and 2 degrees, else to about 0.1 %.

    G. W. Hill's expansion (Algorithm 396, 1970) around the normal quantile.
    """
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        a = 2 * p - 1
        return a * math.sqrt(2 / (1 - a * a))
    z, n = _NORMAL.inv_cdf(p), float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n ** (power + 1) for power, term in enumerate(terms))
