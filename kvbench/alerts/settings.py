"""What an operator may set about the alert pack: objectives, limits, windows, and where links lead.

Windows have one default set, and `Windows.scaled` makes the same rules run in seconds: a test fires
them for real. An objective must lie on a bucket's bound, or nobody could count what is within it:
others are refused with the bounds there are. Where it is a bound of one engine alone, its alerts
cannot watch pods of the other: `Settings.cautions` says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.metrics import engines
from kvbench.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.metrics.engines import Quantity

RUNBOOKS = "https://github.com/kvbench/kvbench/blob/main/docs/runbooks"
"""Where the runbook pages are."""

GRAFANA = "http://127.0.0.1:3000"
"""Where Grafana answers in the compose stack."""


def duration(seconds: float) -> str:
    """Return seconds as Prometheus writes them: "5m", "1h", "3d", "15s"."""
    whole = round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


@dataclass(frozen=True, slots=True)
class Burn:
    """One pair of windows over which an error budget is watched.

    The factors are those of Google's SRE workbook, "Alerting on SLOs", table 5-8: a page when 2 %
    of a month's budget goes in an hour or 5 % in six, a ticket when 10 % goes in three days.
    """

    short_s: float
    long_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Windows:
    """Spans of time, in seconds.

    Attributes:
        now_s: Over which the present is judged.
        past_s: Over which the past is, that the present is compared with.
        young_s: How long after its start a pod is given to warm up.
        quick_s: `for` of what needs a person now.
        slow_s: `for` of what can wait.
        fast_burns: Pairs that page.
        slow_burns: Pairs that open a ticket.
    """

    now_s: float = 300
    past_s: float = 3600
    young_s: float = 900
    quick_s: float = 120
    slow_s: float = 600
    fast_burns: tuple[Burn, ...] = (Burn(300, 3600, 14.4), Burn(1800, 21600, 6))
    slow_burns: tuple[Burn, ...] = (Burn(21600, 259200, 1),)

    @property
    def burns_s(self) -> list[float]:
        """Every window of a burn rate, once."""
        pairs = [*self.fast_burns, *self.slow_burns]
        return sorted({s for burn in pairs for s in (burn.short_s, burn.long_s)})

    def scaled(self, factor: float) -> Windows:
        """Return the same shape in `factor` of the time, in whole seconds: a rate needs two."""

        def scale(seconds: float) -> float:
            return max(2.0, float(round(seconds * factor)))

        def burns(pairs: tuple[Burn, ...]) -> tuple[Burn, ...]:
            return tuple(Burn(scale(b.short_s), scale(b.long_s), b.factor) for b in pairs)

        return Windows(
            now_s=scale(self.now_s),
            past_s=scale(self.past_s),
            young_s=scale(self.young_s),
            quick_s=scale(self.quick_s),
            slow_s=scale(self.slow_s),
            fast_burns=burns(self.fast_burns),
            slow_burns=burns(self.slow_burns),
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """A latency objective: `share` of observations are within `seconds`, a bucket's bound."""

    seconds: float
    share: float

    def check(self, flag: str, quantity: Quantity) -> None:
        """Refuse an objective that falls between buckets, or that nothing can miss.

        Raises:
            InputError: Named by `flag`, with the bounds there are.
        """
        if not 0 < self.share < 1:
            raise InputError(
                f"{flag}: expected a share between 0 % and 100 %, got {100 * self.share:.9g} %"
            )
        bounds = _bounds(quantity)
        if not any(self.seconds in known for known in bounds.values()):
            near = ", ".join(f"{_near(self.seconds, bounds[e])} ({e})" for e in sorted(bounds))
            raise InputError(
                f"{flag}: expected a bound of an engine's buckets, got {self.seconds:g} s; "
                f"nearest: {near}",
                hint="vLLM takes other buckets with --custom-histogram-buckets",
            )

    def caution(self, flag: str, quantity: Quantity) -> str | None:
        """Return a sentence where only one engine has the bound; None where all have it."""
        bounds = _bounds(quantity)
        lacking = [engine for engine in sorted(bounds) if self.seconds not in bounds[engine]]
        if not lacking:
            return None
        without = " and ".join(lacking)
        shared = sorted(set.intersection(*map(set, bounds.values())))
        return (
            f"{flag}: {without} has no bucket that ends at {self.seconds:g} s: alerts on this "
            f"objective cannot watch {without} pods; all engines have "
            f"{_near(self.seconds, shared)} s"
        )


def _bounds(quantity: Quantity) -> dict[str, tuple[float, ...]]:
    """Return the bounds of each engine's buckets."""
    return {
        engines.engine_of(metric.name): metric.buckets
        for metric in reversed(quantity.metrics)  # the newest name of each engine counts
        if metric.buckets
    }


def _near(seconds: float, bounds: Sequence[float]) -> str:
    """Return the bounds on both sides."""
    below = max((b for b in bounds if b < seconds), default=bounds[0])
    above = min((b for b in bounds if b > seconds), default=bounds[-1])
    return f"{below:g} or {above:g}"


_OBJECTIVE = re.compile(r"([^%<]+)%\s*<(.+)")


def parse_objective(flag: str, text: str) -> Objective:
    """Return the objective that "95%<1s" stands for.

    Raises:
        InputError: It is none; named by `flag`.
    """
    match = _OBJECTIVE.fullmatch(text)
    try:
        if match is not None:
            return Objective(parse_seconds(match[2]), round(float(match[1]) / 100, 9))
    except ValueError:
        pass
    raise InputError(
        f'{flag}: expected an objective such as "95%<1s", got {text!r}',
        hint="the share is in per cent, with its sign",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Where an alert begins. All of them are shares or ratios, but the guards.

    Attributes:
        collapse: Of its own past that a hit rate may fall to.
        past_hits: Hit rate below which the past is nothing to compare with.
        attained: Of the attainable hits that a fleet must get.
        attainable: Attainable hit rate below which nothing is worth asking.
        usage: Of the KV cache that requests may reference.
        near: Of the window that counts as near its end; a bucket's bound of the catalogue.
        near_share: Of requests that may come near the window.
        hot: Of the mean pod's uncached work that a pod may have, while it queues.
        starved: Of the mean pod's requests that a pod must get.
        cold: Of the fleet's hit rate that a young pod should have.
        preempted: Preemptions per request.
        degenerate: Of answers that may be degenerate.
        mismatched: Of answers whose prompt the router counted otherwise than the pod.
        guard_tokens: Prompt tokens per second and pod below which rates are noise.
        guard_requests: Requests per second of a fleet below which shares are noise.
    """

    collapse: float = 0.7
    past_hits: float = 0.1
    attained: float = 0.7
    attainable: float = 0.2
    usage: float = 0.9
    near: float = 0.9
    near_share: float = 0.05
    hot: float = 1.5
    starved: float = 0.2
    cold: float = 0.5
    preempted: float = 0.05
    degenerate: float = 0.02
    mismatched: float = 0.01
    guard_tokens: float = 10
    guard_requests: float = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it.

    Attributes:
        windows: Spans of time.
        ttft: Objective for the time to the first token.
        itl: Objective for the time between tokens.
        limits: Where alerts begin.
        runbooks: URL of the folder of runbook pages.
        grafana: URL of Grafana, for links from alerts to panels.
    """

    windows: Windows = field(default_factory=Windows)
    ttft: Objective = Objective(1.0, 0.95)
    itl: Objective = Objective(0.1, 0.99)
    limits: Limits = Limits()
    runbooks: str = RUNBOOKS
    grafana: str = GRAFANA

    def check(self) -> None:
        """Refuse what cannot be counted.

        Raises:
            InputError: An objective between buckets.
        """
        self.ttft.check("--ttft", engines.TTFT)
        self.itl.check("--itl", engines.ITL)

    def cautions(self) -> list[str]:
        """Return a sentence for each objective that not every engine can be held to."""
        said = (
            self.ttft.caution("--ttft", engines.TTFT),
            self.itl.caution("--itl", engines.ITL),
        )
        return [one for one in said if one is not None]
