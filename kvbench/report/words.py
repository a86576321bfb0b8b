"""What the runs show, in sentences: the same numbers as in the charts, with their units.

A sentence names numbers and never praises. Where arms are compared, the comparison is of numbers
that the table or the chart shows too. Where a number is unknown there is no sentence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.units import format_number, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.records.stats import Hits
    from kvbench.records.validity import Limits
    from kvbench.report.view import RunView

    Arms = Mapping[str, RunView]


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence, about one arm or (arm is None) about several."""

    text: str
    arm: str | None = None

    def __str__(self) -> str:
        return self.text if self.arm is None else f"{self.arm}: {self.text}"


def checked(arms: Arms, limits: Limits) -> str:
    """Say what stands behind the word "valid": only what could be checked."""
    summaries = [view.summary for view in arms.values()]
    said = [f"turns were sent on time (p99 within {format_seconds(limits.lateness_p99_s)})"]
    if all(summary.planned is not None for summary in summaries):
        said.append("every planned turn left its row")
    if all(summary.hits.ceiling is not None for summary in summaries):
        said.append("no more was cached than a cold start explains")
    text = ", ".join(said)
    return text[0].upper() + text[1:] + "."


def headline(arms: Arms) -> list[Said]:
    """Say first what is most worth knowing: of one run its hit rate, of several the difference."""
    if len(arms) > 1:
        return _slower(arms) + _more_computed(arms)
    said = []
    for view in arms.values():
        hits = view.summary.hits
        if hits.rate is not None:
            bound = "" if hits.ceiling is None else f"; {format_share(hits.ceiling)} were possible"
            said.append(Said(f"{format_share(hits.rate)} of the prompt tokens were cached{bound}."))
        if math.isfinite(view.summary.ttft.p50):
            within = format_seconds(view.summary.ttft.p50)
            said.append(Said(f"Half of the turns had their first token within {within}."))
    return said


def ttft(arms: Arms) -> list[Said]:
    """Say the quantiles of each arm, and where turns failed."""
    said = []
    for name, view in arms.items():
        times, turns = view.summary.ttft, format_number(view.summary.turns)
        levels = [(50, times.p50), (95, times.p95), (99, times.p99)]
        known = [f"{n} % within {format_seconds(t)}" for n, t in levels if math.isfinite(t)]
        if known:
            said.append(Said(f"{', '.join(known)}.", name))
        if failures := view.summary.failures:
            text = f"{format_number(failures)} of {turns} turns failed and count as never answered"
            said.append(Said(f"{text}.", name))
    return said + _slower(arms)


def ttft_by_turn(arms: Arms) -> list[Said]:
    """Say how the median went from the first turn to the last shown."""
    return [
        Said(
            f"median {format_seconds(mid[0])} at turn {at[0]:.0f}, "
            f"{format_seconds(mid[-1])} at turn {at[-1]:.0f}.",
            name,
        )
        for name, view in arms.items()
        if len(at := view.by_turn.at) > 1 and len(mid := view.by_turn.ttft_mid)
    ]


def hit_rate(arms: Arms) -> list[Said]:
    """Say each arm's hit rate beside its ceiling, early and late, and what is unknown."""
    said = []
    for name, view in arms.items():
        hits, rates = view.summary.hits, view.by_time.hit_rate
        known = rates[np.isfinite(rates)]
        if hits.rate is not None:
            change = ""
            if len(known) > 1:
                start, end = format_share(known[0]), format_share(known[-1])
                change = f"; {start} at the start of the run, {end} at its end"
            said.append(Said(f"{_rate(hits)}{change}.", name))
        if abs(hits.counted_off) >= 0.01:
            more = "more" if hits.counted_off > 0 else "fewer"
            off = f"the pods counted {format_share(abs(hits.counted_off))} {more} prompt tokens"
            said.append(Said(f"{off} than the plan: the ceiling is approximate.", name))
        if hits.unknown:
            of = f"{format_number(hits.unknown)} of {format_number(view.summary.turns)}"
            said.append(Said(f"for {of} turns it is unknown what was cached.", name))
    return said


def hit_rate_by_turn(arms: Arms) -> list[Said]:
    """Say the hit rate of the first turn and of the last shown, beside the ceiling."""
    said = []
    for name, view in arms.items():
        at, rates, ceilings = view.by_turn.at, view.by_turn.hit_rate, view.by_turn.ceiling
        known = np.flatnonzero(np.isfinite(rates))
        if len(known) < 2:
            continue
        parts = []
        for i in (known[0], known[-1]):
            bound = f" of {format_share(ceilings[i])}" if math.isfinite(ceilings[i]) else ""
            parts.append(f"{format_share(rates[i])}{bound} at turn {at[i]:.0f}")
        said.append(Said(f"{', '.join(parts)}.", name))
    return said


def traffic(arms: Arms) -> list[Said]:
    """Say how much the busiest pod had, beside an even share."""
    said = []
    for name, view in arms.items():
        summary = view.summary
        if len(summary.pods) == 1:
            said.append(Said(f"there is one pod, {summary.pods[0].pod}.", name))
        elif summary.turn_balance.busiest is not None:
            uncached = summary.uncached_balance.busiest
            computed = f" and {format_share(uncached)} of the uncached tokens" if uncached else ""
            said.append(
                Said(
                    f"the busiest of {len(summary.pods)} pods had "
                    f"{format_share(summary.turn_balance.busiest)} of the turns{computed}; "
                    f"even would be {format_share(1 / len(summary.pods))}.",
                    name,
                )
            )
    return said


def uncached(arms: Arms) -> list[Said]:
    """Say the median TTFT of the twentieths of turns with least and with most to compute."""
    said = []
    for name, view in arms.items():
        tokens, seconds = view.uncached, view.uncached_ttft_s
        if len(tokens) < 8:
            continue
        low, high = np.quantile(tokens, [0.05, 0.95], method="inverted_cdf").tolist()
        if low == high:
            continue
        few = format_seconds(float(np.median(seconds[tokens <= low])))
        many = format_seconds(float(np.median(seconds[tokens >= high])))
        said.append(
            Said(
                f"median {few} with at most {format_number(low)} uncached tokens, "
                f"{many} with at least {format_number(high)}.",
                name,
            )
        )
    return said


def ttft_by_hit_share(arms: Arms) -> list[Said]:
    """Say the median TTFT of the turns with least and with most of their prompt cached."""
    return [
        Said(
            f"median {format_seconds(mid[0])} with {_tenth(at[0])} of the prompt cached, "
            f"{format_seconds(mid[-1])} with {_tenth(at[-1])}.",
            name,
        )
        for name, view in arms.items()
        if len(at := view.by_hit_share.at) > 1 and len(mid := view.by_hit_share.ttft_mid)
    ]


def _tenth(middle: float) -> str:
    return f"{100 * middle - 5:.0f} to {100 * middle + 5:.0f} %"


def kv_usage(arms: Arms) -> list[Said]:
    """Say how full the fullest pod was."""
    return [
        Said(f"the fullest pod had {format_share(float(np.max(known)))} in use at most.", name)
        for name, view in arms.items()
        if len(known := view.memory.fullest[np.isfinite(view.memory.fullest)])
    ]


def evictions(arms: Arms) -> list[Said]:
    """Say how many blocks were given up, and since when."""
    said = []
    for name, view in arms.items():
        rates, at = view.memory.evictions, view.memory.evictions_at
        if not len(rates):
            continue
        some = np.flatnonzero(rates > 0)
        if not len(some):
            said.append(Said("nothing was evicted.", name))
            continue
        first = format_seconds(max(float(at[some[0]]), 0.0))
        most = format_number(float(rates.max()))
        said.append(Said(f"the first after {first}; at most {most} blocks per second.", name))
    return said


def lateness(arms: Arms, limit_s: float) -> list[Said]:
    """Say how late the generator was beside the limit, and which TTFTs are upper bounds."""
    said = []
    for name, view in arms.items():
        late = view.summary.lateness
        if late.count:
            numbers = f"late by {_late(late.p99)} at p99 and {_late(late.max)} at most"
            said.append(Said(f"{numbers}; {format_seconds(limit_s)} is allowed at p99.", name))
        if reads := view.summary.late_reads:
            text = f"in {format_number(reads)} turns the first token was read together with later"
            said.append(Said(f"{text} ones: their TTFT is an upper bound.", name))
    return said


def _rate(hits: Hits) -> str:
    bound = "" if hits.ceiling is None else f" of {format_share(hits.ceiling)} possible"
    return f"{format_share(hits.rate)}{bound}"


def _late(seconds: float) -> str:
    return format_seconds(max(seconds, 0.0))  # a timer may fire a hair early


def _slower(arms: Arms) -> list[Said]:
    """Compare the fastest arm's median TTFT with the slowest arm's."""
    medians = {name: view.summary.ttft.p50 for name, view in arms.items()}
    finite = {name: p50 for name, p50 in medians.items() if math.isfinite(p50) and p50 > 0}
    if len(finite) < 2:
        return []
    fast, slow = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    times = f"{finite[slow] / finite[fast]:.3g} times as long"
    both = [f"{name} {format_seconds(finite[name])}" for name in (fast, slow)]
    return [Said(f"Median TTFT: {both[0]}, {both[1]} ({times}).")]


def _more_computed(arms: Arms) -> list[Said]:
    """Compare the arm that computed the smallest part of its prompt tokens with the largest."""
    rates = {n: rate for n, v in arms.items() if (rate := v.summary.hits.rate) is not None}
    parts = {name: 1 - rate for name, rate in rates.items() if rate < 1}
    if len(parts) < 2:
        return []
    least, most = min(parts, key=parts.__getitem__), max(parts, key=parts.__getitem__)
    times = f"{parts[most] / parts[least]:.3g} times as much"
    both = [f"{name} {format_share(parts[name])}" for name in (least, most)]
    return [Said(f"Prompt tokens that had to be computed: {both[0]}, {both[1]} ({times}).")]
