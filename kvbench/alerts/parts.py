"""Alerts about kvbench's own parts: the router, and the runs of the load generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts.rule import Alert, Group
from kvbench.alerts.settings import duration
from kvbench.metrics import load, router
from kvbench.metrics.promql import bound, gauge, rate, ratio, total

if TYPE_CHECKING:
    from kvbench.alerts.settings import Settings

LATE_S = 0.1
"""How late the 99th of 100 turns may be sent (`kvbench.records.validity`); a bucket's bound."""


def alerts(settings: Settings) -> Group:
    """Return the group."""
    return Group("kvbench-parts", (_not_offered(settings), _run_invalid(settings)))


def _not_offered(settings: Settings) -> Alert:
    """Keep a pod from getting requests."""
    return Alert(
        name="KVBenchPodNotOffered",
        severity="warning",
        summary="The router offers a pod to no request.",
        description=(
            "{{ $labels.pod }} is not offered: its probes fail, or too many requests failed on it. "
            "What it has cached serves nobody, and the others compute it anew."
        ),
        expression=f"max by (job, pod) ({gauge(router.POD_UP)}) == 0",
        for_s=settings.windows.quick_s,
        board="Routing",
        panel="Pods offered",
        needs="router",
    )


def _run_invalid(settings: Settings) -> Alert:
    """Send turns later than planned, or not at all: the limits are those of a run's verdict."""
    now = duration(settings.windows.now_s)
    punctual = total(rate(load.LATENESS, now, bound(LATE_S), "bucket"), "job, instance")
    sent = total(rate(load.LATENESS, now, part="count"), "job, instance")
    lost = rate(load.FILED_TURNS, now, 'outcome=~"not_sent|lost"')
    return Alert(
        name="KVBenchRunInvalid",
        severity="warning",
        summary="A load run will not be valid: the generator is late, or loses turns.",
        description=(
            "The generator at {{ $labels.instance }} sends more than one turn of a hundred over "
            f"{LATE_S:g} s late, or loses turns. It measures itself: the run ends with exit code "
            "4, and its figures must not be used."
        ),
        expression=(f"1 - {ratio(punctual, sent)} > 0.01\nor {total(lost, 'job, instance')} > 0"),
        for_s=0,
        board="Load run",
        panel="Lateness",
        needs="load",
    )
