"""The page for the wall: is anything wrong, do users feel it, why, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts.recording import RUNNING_OR_WAITING
from kvbench.dashboards import queries
from kvbench.dashboards.panel import (
    BLUE,
    GREEN,
    GREY,
    RED,
    YELLOW,
    Board,
    Panel,
    Query,
    Row,
    number,
)
from kvbench.dashboards.queries import ENGINE, OURS, WINDOW, by_pod
from kvbench.metrics import engines, exporter
from kvbench.metrics.promql import gauge, quantile, rate, total, within

if TYPE_CHECKING:
    from kvbench.alerts.settings import Settings


def board(settings: Settings) -> Board:
    """Return the board."""
    return Board(
        "Fleet",
        "Is anything wrong with the fleet, do users feel it, why, and on which pod?",
        (
            Row("", (*_health(), *_numbers(settings))),
            Row("What is wrong", (_alerts(settings.runbooks),)),
            Row("What users feel, and the usual reason", (_ttft(), queries.hit_rate_and_ceiling())),
            Row("Where", (_work(), _requests(), _queue())),
            Row("Traffic and room", (_tokens(), queries.usage(), queries.headroom())),
            Row("Pod by pod", (_pods(),)),
        ),
    )


def _known_pods() -> str:
    """Return `up` of all pods that answered within the last hour, those that are down included."""
    lately = f"last_over_time({gauge(engines.RUNNING, ENGINE)}[1h])"
    return f'(up{{job=~"$job",instance=~"$pod"}} and on (job, instance) {lately})'


def _health() -> tuple[Panel, ...]:
    """Return what a glance from the door must see."""
    firing = f'count({queries.ALERTS[:-1]},severity!="info"}})'
    return (
        number(
            "Alerts firing",
            "Alerts of this pack that fire, but for those that only inform. Without its rules "
            "loaded in Prometheus, this says so instead of 0.",
            "short",
            # 0 only where the recording rules are there to fire
            f"{firing} or count({RUNNING_OR_WAITING}) * 0",
            width=3,
            idle="no rules",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Pods down",
            "Pods that were scraped within the last hour and cannot be now. The table below says "
            "which.",
            "short",
            f"count({_known_pods()} == 0) or count({_known_pods()}) * 0",
            width=3,
            idle="no pods",
            steps=((None, GREEN), (1, RED)),
        ),
    )


def _numbers(settings: Settings) -> tuple[Panel, ...]:
    """Return the numbers that a fleet is judged by."""
    ttft_s, share = settings.ttft.seconds, settings.ttft.share
    work = queries.uncached("instance")
    return (
        number(
            "TTFT p95",
            "Time to first token of 95 of 100 requests, of all chosen pods together.",
            "s",
            quantile(0.95, engines.TTFT, WINDOW, ENGINE),
            width=3,
            steps=((None, GREEN), (ttft_s, YELLOW), (3 * ttft_s, RED)),
        ),
        number(
            "Within objective",
            f"Share of first tokens within {ttft_s:g} s, counted at a bucket's bound, so exactly. "
            f"The objective is {share:.4g}.",
            "percentunit",
            within(ttft_s, engines.TTFT, WINDOW, ENGINE),
            width=3,
            steps=((None, RED), (1 - 2 * (1 - share), YELLOW), (share, GREEN)),
        ),
        number(
            "Hit rate",
            "Share of prompt tokens found in a prefix cache. What is good depends on the traffic: "
            "see how much was attainable.",
            "percentunit",
            queries.hit_rate(),
            width=3,
            steps=queries.GOOD_HITS,
        ),
        number(
            "Of what was attainable",
            "Share of the hits of one endless cache for all pods that this fleet had. This one "
            "should be near 100 %, whatever the traffic.",
            "percentunit",
            queries.attained(),
            width=3,
            needs="exporter",
            steps=queries.GOOD_SHARE,
        ),
        number(
            "Busiest pod / mean",
            "Computed prompt tokens of the busiest pod over the mean pod's: 1 is even. A high hit "
            "rate on one pod, with the others idle, is no success.",
            "none",
            f"max({work}) / (avg({work}) > 1)",
            width=3,
            steps=((None, GREEN), (1.5, YELLOW), (2, RED)),
        ),
        number(
            "Fullest KV cache",
            "Highest share of KV blocks in use on a pod. Near 100 % requests wait.",
            "percentunit",
            f"max({gauge(engines.USAGE, ENGINE)})",
            width=3,
            idle="no pods",
            steps=((None, GREEN), (0.8, YELLOW), (0.9, RED)),
        ),
    )


def _alerts(runbooks: str) -> Panel:
    """Return what fires, each with the way to its runbook."""
    labels = "alertname, severity, instance, pod, model_name"
    return Panel(
        "Alerts",
        "What fires now. A click on an alert opens its runbook; the alert itself also carries the "
        "way to the panel that shows it.",
        "short",
        (Query(f"max by ({labels}) ({queries.ALERTS})", "Firing"),),
        kind="table",
        width=24,
        height=5,
        idle="nothing fires",
        quiet=True,
        labels=(
            ("alertname", "Alert"), ("severity", "Severity"), ("instance", "Instance"),
            ("pod", "Pod"), ("model_name", "Model"),
        ),
        link=f"{runbooks}/${{__value.text}}.md",
    )  # fmt: skip


def _ttft() -> Panel:
    return Panel(
        "Time to first token",
        "From a request's arrival at the pod to its first token. When it rises while the hit rate "
        "falls, the cache is the reason; when only the queue rises, load is.",
        "s",
        queries.percentiles(engines.TTFT),
        width=12,
    )


def _work() -> Panel:
    return by_pod(
        "Work by pod",
        "Prompt tokens per second that each pod had to compute: its real share of the work. "
        "Requests alone mislead, since a hit costs next to nothing.",
        "short",
        queries.uncached("instance"),
    )


def _requests() -> Panel:
    return by_pod(
        "Requests by pod",
        "Requests per second that got a first token, by pod.",
        "reqps",
        queries.requests("instance"),
    )


def _queue() -> Panel:
    return by_pod(
        "Queue by pod",
        "Requests that wait on each pod. One pod with a queue beside others without: routing. "
        "All with one: capacity.",
        "short",
        total(gauge(engines.WAITING, ENGINE), "instance"),
    )


def _tokens() -> Panel:
    return Panel(
        "Tokens per second",
        "Prompt tokens that were cached, those that were computed, and tokens generated.",
        "short",
        (
            Query(queries.hits(), "prompt, cached", GREEN),
            Query(queries.uncached(), "prompt, computed", BLUE),
            Query(total(rate(engines.GENERATION_TOKENS, WINDOW, ENGINE)), "generated", GREY),
        ),
        kind="stack",
    )


def _pods() -> Panel:
    """Return one line for each pod. The exporter's columns stay empty without it."""

    def told(expression: str) -> str:
        return f'label_replace({expression}, "instance", "$1", "pod", "(.+)")'

    of = "instance"
    age = f"max by (pod) ({gauge(exporter.AGE, OURS)})"
    room = f"max by (pod) ({gauge(exporter.HEADROOM_TOKENS, OURS)})"
    return Panel(
        "Pods",
        "Every pod now. A pod that runs requests and generates nothing does not serve, whatever "
        "its health check says. Age and headroom need `kvbench exporter`.",
        "short",
        (
            Query(f"max by ({of}) {_known_pods()}", "Up"),
            Query(queries.requests(of), "Requests", unit="reqps"),
            Query(queries.hit_rate(of), "Hit rate", unit="percentunit"),
            Query(quantile(0.95, engines.TTFT, WINDOW, ENGINE, of), "TTFT p95", unit="s"),
            Query(total(gauge(engines.RUNNING, ENGINE), of), "Running"),
            Query(total(gauge(engines.WAITING, ENGINE), of), "Waiting"),
            Query(total(rate(engines.GENERATION_TOKENS, WINDOW, ENGINE), of), "Tokens/s"),
            Query(
                f"max by ({of}) ({gauge(engines.USAGE, ENGINE)})", "KV in use", unit="percentunit"
            ),
            Query(f"max by ({of}) ({told(room)})", "Headroom"),
            Query(f"max by ({of}) ({told(age)})", "Age", unit="s"),
        ),
        kind="table",
        width=24,
        height=8,
        idle="no pods",
        labels=(("instance", "Pod"),),
    )
