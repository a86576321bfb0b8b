"""Alerts about kvbench's own parts: the router, and the runs of the load generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts.rule import Alert, Group
from kvbench.alerts.settings import duration
from kvbench.metrics import load, router
from kvbench.metrics.promql import gauge, rate, ratio, total, within

if TYPE_CHECKING:
    from kvbench.alerts.settings import Settings

LATE_S = 0.1
"""How late the 99th of 100 turns may be sent (`kvbench.records.validity`); a bucket's bound."""


def alerts(settings: Settings) -> Group:
    """Return the group."""
    return Group(
        "kvbench-parts",
        (
            _not_offered(settings),
            _router_degraded(settings),
            _template_mismatch(settings),
            _degenerate(settings),
            _run_invalid(settings),
        ),
    )


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
        expression=(
            f"max by (job, pod) ({gauge(router.POD_UP)}) == 0\n"
            f"unless on (job, pod) max by (job, pod) ({gauge(router.DRAINING)}) == 1"
        ),
        for_s=settings.windows.quick_s,
        board="Routing",
        panel="Pods offered",
        needs="router",
    )


def _router_degraded(settings: Settings) -> Alert:
    """Route by estimates, because events were lost."""
    level = gauge(router.EVENTS_TRUST, 'level="degraded"')
    return Alert(
        name="KVBenchRouterDegraded",
        severity="warning",
        summary="The router has lost track of what a pod holds.",
        description=(
            "KV events of {{ $labels.pod }} were lost, and the router routes to it by estimates. "
            "It sends requests where less is cached than it believes, or more."
        ),
        # a pod that is not offered has an alert of its own
        expression=(
            f"max by (job, pod) ({level}) == 1\n"
            f"and on (job, pod) max by (job, pod) ({gauge(router.POD_UP)}) == 1"
        ),
        for_s=settings.windows.quick_s,
        board="Routing",
        panel="Trust in pods' events",
        needs="router",
    )


def _template_mismatch(settings: Settings) -> Alert:
    """Count a prompt's tokens otherwise than the pod, so that no block has the right hash."""
    now, limits = duration(settings.windows.now_s), settings.limits
    wrong = total(rate(router.MISCOUNTED, now), "job")
    compared = total(rate(router.PREDICTIONS, now), "job")
    given_up = f"count by (job) ({gauge(router.TOKENS_KNOWN)} == 0)"
    return Alert(
        name="KVBenchTemplateMismatch",
        severity="warning",
        summary="The router makes other tokens of a prompt than the pods do.",
        description=(
            "The router of {{ $labels.job }} counts prompts otherwise than the pods: its tokenizer "
            "or chat template is not theirs. It has given up exact routing for that model, or will."
        ),
        expression=f"{ratio(wrong, compared)} > {limits.mismatched:g}\nor {given_up}",
        for_s=0,
        board="Routing",
        panel="Prompts counted otherwise",
        needs="router",
    )


def _degenerate(settings: Settings) -> Alert:
    """Answer in loops, salad, echoes or nothing."""
    now, limits = duration(settings.windows.now_s), settings.limits
    judged = total(rate(load.JUDGED, now), "job, instance")
    # an answer that the window cut is no nonsense: KVBenchContextNearWindow sees it coming
    bad = total(rate(load.DEGENERATE, now, 'kind!="overflow"'), "job, instance")
    return Alert(
        name="KVBenchOutputDegenerate",
        severity="warning",
        summary="Answers repeat themselves, echo their prompt, or say nothing.",
        description=(
            "{{ $value | humanizePercentage }} of the answers that the generator at "
            "{{ $labels.instance }} gets are loops, salad, echoes or empty."
        ),
        expression=f"{ratio(bad, judged)} > {limits.degenerate:g}",
        for_s=settings.windows.quick_s,
        board="Load run",
        panel="Degenerate answers",
        needs="load",
    )


def _run_invalid(settings: Settings) -> Alert:
    """Send turns later than planned, or not at all: the limits are those of a run's verdict."""
    now = duration(settings.windows.now_s)
    punctual = within(LATE_S, load.LATENESS, now, by="job, instance")
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
        expression=f"1 - {punctual} > 0.01\nor {total(lost, 'job, instance')} > 0",
        for_s=0,
        board="Load run",
        panel="Lateness",
        needs="load",
    )
