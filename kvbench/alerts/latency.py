"""Alerts about latency objectives: how fast the error budget burns, over two windows at once.

A short and a long window together: the long one says that it matters, the short one that it still
goes on. What is within an objective is counted at a bucket's bound, exactly. Requests that never
get a first token are in no histogram: `KVBenchPodNotServing` and `KVBenchPodDown` see those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvbench.alerts.recording import Names, late
from kvbench.alerts.rule import Alert, Group

if TYPE_CHECKING:
    from kvbench.alerts.settings import Burn, Objective, Settings


def alerts(settings: Settings) -> Group:
    """Return the group."""
    first, between = "the first token", "the next token"
    return Group(
        "kvbench-latency",
        (
            *_pair("TTFT", first, settings.ttft, settings, "Time to first token"),
            *_pair("ITL", between, settings.itl, settings, "Time between tokens"),
        ),
    )


def _pair(
    short: str, what: str, objective: Objective, settings: Settings, panel: str
) -> tuple[Alert, Alert]:
    """Return the page and the ticket for one objective."""
    windows = settings.windows
    speeds: tuple[tuple[str, Literal["critical", "warning"], tuple[Burn, ...], float], ...] = (
        ("Fast", "critical", windows.fast_burns, 0),
        # a window of days that holds minutes of data yet is not to be believed at once
        ("Slow", "warning", windows.slow_burns, windows.past_s),
    )
    fast, slow = (
        Alert(
            name=f"KVBench{short}Burn{speed}",
            severity=severity,
            summary=f"Too many requests wait too long for {what}.",
            description=(
                "{{ $value | humanizePercentage }} of what {{ $labels.model_name }} "
                f"({{{{ $labels.job }}}}) gave came later than {objective.seconds:g} s; the "
                f"objective allows {(1 - objective.share) * 100:.3g} % of it. Its error budget "
                f"burns {speed.lower()}."
            ),
            expression=_burning(short.lower(), objective, burns, settings),
            for_s=for_s,
            board="Latency",
            panel=panel,
        )
        for speed, severity, burns, for_s in speeds
    )
    return fast, slow


def _burning(metric: str, objective: Objective, burns: tuple[Burn, ...], settings: Settings) -> str:
    """Return where any pair of windows is over its factor, and there is traffic."""
    pairs = []
    for burn in burns:
        most = burn.factor * (1 - objective.share)
        short, long = (late(metric, seconds) for seconds in (burn.short_s, burn.long_s))
        pairs.append(f"{short} > {most:.4g} and {long} > {most:.4g}")
    either = "\n  or ".join(pairs)
    traffic = Names(settings).model("first_tokens")
    return f"(\n  {either}\n)\nand {traffic} > {settings.limits.guard_requests:g}"
