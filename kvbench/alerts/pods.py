"""Alerts about pods: gone, up and idle over waiting requests, too much or too little work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts.recording import MODEL, RUNNING_OR_WAITING, WAITING, YOUNG, Names
from kvbench.alerts.rule import Alert, Group
from kvbench.alerts.settings import duration
from kvbench.metrics.promql import ratio

if TYPE_CHECKING:
    from kvbench.alerts.settings import Settings

BOARD = "Fleet"


def alerts(settings: Settings) -> Group:
    """Return the group."""
    return Group(
        "kvbench-pods",
        (
            _gone(settings),
            _down(settings),
            _not_serving(settings),
            _hot(settings),
            _starved(settings),
            _preemptions(settings),
        ),
    )


def _gone(settings: Settings) -> Alert:
    """Be served by nobody any more: down, or gone from service discovery."""
    before = duration(settings.windows.young_s)
    pods = f"count by ({MODEL}) ({RUNNING_OR_WAITING}"
    return Alert(
        name="KVBenchModelGone",
        severity="critical",
        summary="No pod serves a model that was served a moment ago.",
        description=(
            "{{ $value }} pods served {{ $labels.model_name }} ({{ $labels.job }}) "
            f"{before} ago, and none does now."
        ),
        expression=f"{pods} offset {before}) unless {pods})",
        for_s=settings.windows.quick_s,
        board=BOARD,
        panel="Pods",
    )


def _down(settings: Settings) -> Alert:
    """Not answer a scrape, having served lately."""
    past = duration(settings.windows.past_s)
    return Alert(
        name="KVBenchPodDown",
        severity="critical",
        summary="A pod does not answer.",
        description=(
            "{{ $labels.instance }} ({{ $labels.job }}) has not answered a scrape for "
            f"{duration(settings.windows.quick_s)}; it served within the last {past}."
        ),
        expression=f"up == 0 and on (job, instance) last_over_time({RUNNING_OR_WAITING}[{past}])",
        for_s=settings.windows.quick_s,
        board=BOARD,
        panel="Pods",
    )


def _not_serving(settings: Settings) -> Alert:
    """Answer scrapes and hold requests, and compute nothing."""
    now = duration(settings.windows.now_s)
    progress = Names(settings).pod("progress")
    return Alert(
        name="KVBenchPodNotServing",
        severity="critical",
        summary="A pod is up and does not serve.",
        description=(
            "{{ $labels.instance }} holds {{ $value }} requests and has not computed a token for "
            f"{now}. Health checks do not see this."
        ),
        expression=f"min_over_time({RUNNING_OR_WAITING}[{now}]) > 0 and {progress} == 0",
        for_s=settings.windows.quick_s,
        board=BOARD,
        panel="Pods",
    )


def _hot(settings: Settings) -> Alert:
    """Have a queue from too much work while another pod has none."""
    limits, names = settings.limits, Names(settings)
    now = duration(settings.windows.now_s)
    work = names.pod("prompt_tokens_uncached")
    queue = f"avg_over_time({WAITING}[{now}])"
    return Alert(
        name="KVBenchPodHot",
        severity="warning",
        summary="One pod has a queue while others have room.",
        description=(
            "{{ $labels.instance }} computes {{ $value | humanize }} times the prompt tokens of "
            "the mean pod, and requests wait there while another pod has no queue."
        ),
        expression=(
            f"{work} / on ({MODEL}) group_left () (avg by ({MODEL}) ({work}) > 0) "
            f"> {limits.hot:g}\n"
            f"and {queue} >= 1\n"
            f"and on ({MODEL}) min by ({MODEL}) ({queue}) < 0.5"
        ),
        for_s=settings.windows.slow_s,
        board=BOARD,
        panel="Work by pod",
    )


def _starved(settings: Settings) -> Alert:
    """Get hardly any request."""
    limits, names = settings.limits, Names(settings)
    requests = names.pod("first_tokens")
    return Alert(
        name="KVBenchPodStarved",
        severity="warning",
        summary="One pod gets hardly any request.",
        description=(
            "{{ $labels.instance }} gets {{ $value | humanizePercentage }} of the mean pod's "
            "requests. It is paid for and does nothing: the router does not offer it, or its "
            "policy holds on to the others."
        ),
        expression=(
            f"{requests} / on ({MODEL}) group_left () (avg by ({MODEL}) ({requests}) "
            f"> {limits.guard_requests:g}) < {limits.starved:g}\n"
            f"unless {YOUNG} == 1"
        ),
        for_s=settings.windows.slow_s,
        board=BOARD,
        panel="Requests by pod",
    )


def _preemptions(settings: Settings) -> Alert:
    """Take blocks from running requests."""
    names = Names(settings)
    return Alert(
        name="KVBenchPreemptions",
        severity="warning",
        summary="A pod takes the KV blocks of running requests for others.",
        description=(
            "{{ $labels.instance }} preempts {{ $value | humanize }} times per request: what it "
            "had computed is computed again. It admits more than its cache holds."
        ),
        expression=(
            f"{ratio(names.pod('preemptions'), names.pod('first_tokens'))} "
            f"> {settings.limits.preempted:g}"
        ),
        for_s=settings.windows.slow_s,
        board="Memory and context",
        panel="Preemptions",
    )
