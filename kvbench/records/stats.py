"""Statistics that cannot be fooled: exact, token-weighted, with failures in the denominator.

**Quantiles.** The q-quantile of n values is the smallest value that at least q·n of them do not
exceed: element ⌈q·n⌉ of the sorted values (numpy's `inverted_cdf`). It is always a value that was
measured, and never interpolates, so it stays right when some values are infinite. A failed turn
counts as +inf: with 3 % failures the p95 is finite and the p99 is not.

**Hit rate.** Cached prompt tokens ÷ prompt tokens, as vLLM counts, over the turns for which the
server reported both. Turns for which it did not are counted as unknown and enter neither side.
The ceiling (what an endless cache would have given) is taken over the same turns, as a share of the
prompt tokens that the plan counted: where the pods' tokenizer counts others, cached tokens of one
kind must not be divided by prompt tokens of another.

**Balance.** The busiest pod's share, by turns and by uncached prompt tokens (what prefill had to
compute), and how far above the mean of all pods it is (max ÷ mean; 1 is even).

All sums are of integers, so they do not depend on the order of rows or on how many workers wrote
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.records.table import chunk_gaps

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from numpy.typing import NDArray


def quantile(values: NDArray[np.float64], q: float) -> float:
    """Return the q-quantile (0 < q ≤ 1) of `values` (no NaN); NaN where there are none."""
    return quantiles(values, [q])[0]


def quantiles(values: NDArray[np.float64], qs: Iterable[float]) -> list[float]:
    """Return several quantiles of `values` at once, as `quantile` defines them."""
    count = len(values)
    # A product such as 0.07 × 100 may come out a hair above its integer: not a rank higher.
    ranks = [min(max(math.ceil(q * count - 1e-9), 1), count) - 1 for q in qs]
    if not count or not ranks:
        return [math.nan] * len(ranks)
    ordered = np.partition(values, sorted(set(ranks)))
    return [float(ordered[rank]) for rank in ranks]


def latencies(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a latency of every turn, seconds: +inf for a failed one.

    Args:
        frame: As `to_frame` returns it.
        column: "ttft_s", "ttft_intended_s", "tpot_s" or "e2e_s".

    Returns:
        One value per turn; a turn that was answered and has no such latency (TPOT of one token) is
        left out.
    """
    values: NDArray[np.float64] = frame[column].to_numpy(dtype=np.float64, copy=True)
    values[~frame["ok"].to_numpy(dtype=bool)] = np.inf
    return values[~np.isnan(values)]


def gaps(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return all gaps between content chunks, seconds, and one +inf for every failed turn."""
    failed = int((~frame["ok"]).sum())
    return np.concatenate([chunk_gaps(frame), np.full(failed, np.inf)])


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution in four numbers, seconds; NaN where nothing was measured.

    Attributes:
        p50: Half of the values are no greater.
        p95: 95 of 100 are no greater.
        p99: 99 of 100 are no greater.
        max: The greatest.
        count: How many values there are.
    """

    p50: float
    p95: float
    p99: float
    max: float
    count: int

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Latency:
        """Return the four numbers of `values` (no NaN)."""
        p50, p95, p99, most = quantiles(values, [0.5, 0.95, 0.99, 1.0])
        return cls(p50, p95, p99, most, len(values))


@dataclass(frozen=True, slots=True)
class Hits:
    """What was cached, beside what could have been.

    Attributes:
        turns: Turns whose cached tokens are known.
        unknown: Turns whose cached tokens are not.
        prompt_tokens: Of the known turns.
        cached_tokens: Of the known turns.
        bounded_turns: Of the known turns, those whose ceiling is known as well.
        bounded_prompt_tokens: Their prompt tokens, as the pods counted them.
        planned_prompt_tokens: The same, as the plan counted them.
        bounded_cached_tokens: Their cached tokens.
        ceiling_tokens: What an endless cache would have had for them.
    """

    turns: int
    unknown: int
    prompt_tokens: int
    cached_tokens: int
    bounded_turns: int
    bounded_prompt_tokens: int
    planned_prompt_tokens: int
    bounded_cached_tokens: int
    ceiling_tokens: int

    @property
    def rate(self) -> float | None:
        """Share of prompt tokens that was cached, 0 to 1; None if unknown."""
        return _ratio(self.cached_tokens, self.prompt_tokens)

    @property
    def ceiling(self) -> float | None:
        """The rate that an endless cache would have had on the same turns; None if unknown."""
        return _ratio(self.ceiling_tokens, self.planned_prompt_tokens)

    @property
    def bounded_rate(self) -> float | None:
        """The hit rate of the turns that the ceiling is of; None if unknown."""
        return _ratio(self.bounded_cached_tokens, self.bounded_prompt_tokens)

    @property
    def attained(self) -> float | None:
        """Hit rate ÷ ceiling on the same turns; None if unknown."""
        rate, ceiling = self.bounded_rate, self.ceiling
        return rate / ceiling if rate is not None and ceiling else None

    @property
    def counted_off(self) -> float:
        """By which share the pods counted more prompt tokens than the plan (negative: fewer)."""
        return (_ratio(self.bounded_prompt_tokens, self.planned_prompt_tokens) or 1.0) - 1.0


def hits(frame: pd.DataFrame) -> Hits:
    """Return what was cached over the turns of `frame`."""
    known = frame["cached_tokens"].notna() & frame["prompt_tokens"].notna()
    bounded = known & frame["ceiling_tokens"].notna()
    planned = frame["planned_prompt_tokens"].fillna(frame["prompt_tokens"])
    return Hits(
        turns=int(known.sum()),
        unknown=int((~known).sum()),
        prompt_tokens=int(frame["prompt_tokens"][known].sum()),
        cached_tokens=int(frame["cached_tokens"][known].sum()),
        bounded_turns=int(bounded.sum()),
        bounded_prompt_tokens=int(frame["prompt_tokens"][bounded].sum()),
        planned_prompt_tokens=int(planned[bounded].sum()),
        bounded_cached_tokens=int(frame["cached_tokens"][bounded].sum()),
        ceiling_tokens=int(frame["ceiling_tokens"][bounded].sum()),
    )


@dataclass(frozen=True, slots=True)
class PodTraffic:
    """What one pod was given.

    Attributes:
        pod: Its name.
        turns: Turns that it answered, or failed.
        prompt_tokens: Of those turns whose cached tokens are known.
        uncached_tokens: Of them, what it had to compute.
    """

    pod: str
    turns: int
    prompt_tokens: int
    uncached_tokens: int


def traffic(frame: pd.DataFrame, pods: Iterable[str] = ()) -> tuple[PodTraffic, ...]:
    """Return the traffic of every pod, ordered by name.

    Args:
        frame: As `to_frame` returns it; turns whose pod is unknown belong to none.
        pods: Pods that are known to exist; they count also if nothing was sent to them.
    """
    known = frame["uncached_tokens"].notna()
    by_pod = frame["pod"].astype(object)
    turns = by_pod.value_counts()
    prompt = frame["prompt_tokens"].where(known, 0.0).groupby(by_pod).sum()
    uncached = frame["uncached_tokens"].where(known, 0.0).groupby(by_pod).sum()
    return tuple(
        PodTraffic(pod, int(turns.get(pod, 0)), int(prompt.get(pod, 0)), int(uncached.get(pod, 0)))
        for pod in sorted({*pods, *map(str, turns.index)})
    )


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly a quantity lies on the pods; None where there is none of it.

    Attributes:
        busiest: Share of the pod that has most, 0 to 1.
        max_over_mean: That pod's part ÷ the mean of all pods; 1 is even.
    """

    busiest: float | None
    max_over_mean: float | None

    @classmethod
    def of(cls, parts: Iterable[int]) -> Balance:
        """Return the balance of the pods' parts."""
        all_parts = list(parts)
        share = _ratio(max(all_parts, default=0), sum(all_parts))
        return cls(share, None if share is None else share * len(all_parts))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
