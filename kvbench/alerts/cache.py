"""Alerts about the KV cache: hits that stopped, hits that were to be had, thrash, room, context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts.recording import MODEL, USAGE, YOUNG, YOUNG_SHARE, Names
from kvbench.alerts.rule import Alert, Group
from kvbench.alerts.settings import duration
from kvbench.metrics import exporter
from kvbench.metrics.promql import increase, quantile, rate, ratio, total, within

if TYPE_CHECKING:
    from kvbench.alerts.settings import Settings

BOARD = "KV cache"
FLEET_POD = "job, pod"


def alerts(settings: Settings) -> Group:
    """Return the group."""
    return Group(
        "kvbench-cache",
        (
            _collapse(settings),
            _below_attainable(settings),
            _thrash(settings),
            _cold(settings),
            _headroom(settings),
            _near_window(settings),
            _event_loss(settings),
        ),
    )


def _collapse(settings: Settings) -> Alert:
    """Fall against its own past, unless pods that have just started explain it."""
    limits, names = settings.limits, Names(settings)
    now, past = names.hits("model"), names.hits_past
    traffic = names.model("prompt_tokens")
    return Alert(
        name="KVBenchHitRateCollapse",
        severity="warning",
        summary="The prefix cache hit rate has collapsed against its own past.",
        description=(
            "{{ $labels.model_name }} ({{ $labels.job }}) finds {{ $value | humanizePercentage }} "
            f"of its prompt tokens cached, less than {limits.collapse:.0%} of what it found over "
            f"the last {duration(settings.windows.past_s)}. Traffic goes on and no pod has just "
            "started: prompts or routing have changed."
        ),
        expression=(
            f"{now} < {limits.collapse:g} * {past}\n"
            f"and {past} > {limits.past_hits:g}\n"
            f"and {traffic} > 0.2 * {names.model_past('prompt_tokens')}\n"
            f"and {traffic} > {limits.guard_tokens:g}\n"
            # below this share of pods, a restart cannot have cost that many hits
            f"unless {YOUNG_SHARE} > 0.2"
        ),
        for_s=settings.windows.quick_s,
        board=BOARD,
        panel="Hit rate and its ceiling",
    )


def _below_attainable(settings: Settings) -> Alert:
    """Get less than what one endless cache for all pods would have given."""
    limits, now = settings.limits, duration(settings.windows.now_s)
    hits, attainable, queried = (
        total(rate(metric, now), "job")
        for metric in (
            exporter.HIT_TOKENS,
            exporter.ATTAINABLE_TOKENS,
            exporter.QUERIED_TOKENS,
        )
    )
    return Alert(
        name="KVBenchHitRateBelowAttainable",
        severity="warning",
        summary="The fleet finds far fewer cached tokens than it could.",
        description=(
            "{{ $labels.job }} gets {{ $value | humanizePercentage }} of the hits that one endless "
            "cache would have given. The tokens are on another pod, were evicted, or were lost "
            "with a pod's cache: the panel shows which."
        ),
        expression=(
            f"{ratio(hits, attainable)} < {limits.attained:g}\n"
            f"and {ratio(attainable, queried)} > {limits.attainable:g}\n"
            f"and {queried} > {limits.guard_tokens:g}"
        ),
        for_s=settings.windows.slow_s,
        board=BOARD,
        panel="Why tokens were computed",
        needs="exporter",
    )


def _thrash(settings: Settings) -> Alert:
    """Lose blocks before they are used again, and compute them anew."""
    now = duration(settings.windows.now_s)
    lifetime = quantile(0.5, exporter.BLOCK_LIFETIME, now, by=FLEET_POD)
    gap = quantile(0.5, exporter.REUSE_GAP, now, by=FLEET_POD)
    again = total(rate(exporter.STORED_TOKENS, now, 'cause="evicted"'), FLEET_POD)
    queried = total(rate(exporter.QUERIED_TOKENS, now), FLEET_POD)
    return Alert(
        name="KVBenchCacheThrash",
        severity="warning",
        summary="A pod's cache evicts blocks before they are used again.",
        description=(
            "{{ $labels.pod }} computes {{ $value | humanizePercentage }} of its prompt tokens "
            "anew after having evicted them: blocks live shorter than the gap between their uses. "
            "The working set does not fit."
        ),
        expression=(
            f"{ratio(again, queried)} > 0.1\n"
            f"and on ({FLEET_POD}) ({lifetime}) < ({gap})\n"
            f"and on ({FLEET_POD}) {queried} > {settings.limits.guard_tokens:g}"
        ),
        for_s=settings.windows.quick_s,
        board=BOARD,
        panel="Block lifetime and reuse gap",
        needs="exporter",
    )


def _cold(settings: Settings) -> Alert:
    """Serve traffic from a cache that began empty a moment ago."""
    limits, names = settings.limits, Names(settings)
    fleet = names.hits("model")
    return Alert(
        name="KVBenchPodCold",
        severity="info",
        summary="A pod that has just started serves traffic from an empty cache.",
        description=(
            "{{ $labels.instance }} started less than "
            f"{duration(settings.windows.young_s)} ago and finds "
            "{{ $value | humanizePercentage }} of its prompt tokens cached, less than "
            f"{limits.cold:.0%} of the fleet's rate. Its first tokens are slow until it is warm."
        ),
        expression=(
            f"{names.hits('pod')} < on ({MODEL}) group_left () ({limits.cold:g} * {fleet})\n"
            f"and on ({MODEL}) {fleet} > {limits.past_hits:g}\n"
            f"and {names.pod('prompt_tokens')} > {limits.guard_tokens:g}\n"
            f"and {YOUNG} == 1\n"
            # a fleet that is new as a whole is cold as a whole
            f"and on ({MODEL}) {YOUNG_SHARE} < 1"
        ),
        for_s=0,
        board=BOARD,
        panel="Hit rate by pod",
    )


def _headroom(settings: Settings) -> Alert:
    """Have hardly any block that a further request could take."""
    window = duration(settings.windows.now_s)
    return Alert(
        name="KVBenchHeadroomLow",
        severity="warning",
        summary="Running requests reference nearly all of a pod's KV cache.",
        description=(
            "Requests use {{ $value | humanizePercentage }} of the KV cache of "
            "{{ $labels.instance }}. Further ones will wait or preempt each other, and hardly "
            "anything can stay cached between turns."
        ),
        expression=f"avg_over_time({USAGE}[{window}]) > {settings.limits.usage:g}",
        for_s=settings.windows.slow_s,
        board="Memory and context",
        panel="KV cache in use",
    )


def _near_window(settings: Settings) -> Alert:
    """Run into the end of the context window."""
    limits, now = settings.limits, duration(settings.windows.now_s)
    ended = total(rate(exporter.CONTEXT_RATIO, now, part="count"), FLEET_POD)
    inside = within(limits.near, exporter.CONTEXT_RATIO, now, by=FLEET_POD)
    return Alert(
        name="KVBenchContextNearWindow",
        severity="warning",
        summary="Many requests nearly fill the model's context window.",
        description=(
            "{{ $value | humanizePercentage }} of the requests of {{ $labels.pod }} use more than "
            f"{limits.near:.0%} of its window, prompt and answer together. The next turn of such a "
            "conversation is refused or cut, and quality suffers before that."
        ),
        expression=(
            f"1 - {inside} > {limits.near_share:g}\n"
            f"and on ({FLEET_POD}) {ended} > {limits.guard_requests:g}"
        ),
        for_s=settings.windows.slow_s,
        board="Memory and context",
        panel="Requests near the window",
        needs="exporter",
    )


def _event_loss(settings: Settings) -> Alert:
    """Know less than exactly what a pod holds."""
    now = duration(settings.windows.now_s)
    return Alert(
        name="KVBenchEventLoss",
        severity="warning",
        summary="KV events of a pod were lost for good.",
        description=(
            "{{ $labels.pod }} lost {{ $value | humanize }} batches of KV events that no replay "
            "could bring. What is known of its cache is a guess until it is reset: routing by it "
            "misses, and pool and duplication are wrong."
        ),
        expression=f"{total(increase(exporter.EVENTS_LOST, now), FLEET_POD)} > 0",
        for_s=0,
        board=BOARD,
        panel="Trust in events",
        needs="exporter",
    )
