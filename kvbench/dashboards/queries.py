"""What several boards ask, so that the same question has the same answer everywhere."""

from __future__ import annotations

from kvbench.dashboards.panel import BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Panel, Query
from kvbench.metrics import engines, exporter
from kvbench.metrics.promql import gauge, mean, quantile, rate, ratio, total

ENGINE = 'job=~"$job",model_name=~"$model",instance=~"$pod"'
"""Matchers of what pods tell themselves."""

OURS = 'pod=~"$pod"'
"""Matchers of what exporter, router and load generator tell about pods."""

RUN = 'job=~".+"'
"""Matchers of what has no pod."""

WINDOW = "$__rate_interval"
"""Window of every rate on a panel: Grafana makes it fit the scrape interval and the zoom."""

ALERTS = 'ALERTS{alertname=~"KVBench.+",alertstate="firing"}'

QUANTILES = ((0.5, BLUE), (0.95, YELLOW), (0.99, RED))
"""Those that latencies are shown at, and their colours."""

GOOD_HITS = ((None, RED), (0.3, YELLOW), (0.6, GREEN))
GOOD_SHARE = ((None, RED), (0.7, YELLOW), (0.9, GREEN))


def queried(by: str = "") -> str:
    """Return prompt tokens per second looked up in prefix caches."""
    return total(rate(engines.QUERIES, WINDOW, ENGINE), by)


def hits(by: str = "") -> str:
    """Return prompt tokens per second found there."""
    return total(rate(engines.HITS, WINDOW, ENGINE), by)


def hit_rate(by: str = "") -> str:
    """Return the token-weighted hit rate."""
    return ratio(hits(by), queried(by))


def uncached(by: str = "") -> str:
    """Return prompt tokens per second that had to be computed."""
    return f"{queried(by)} - {hits(by)}"


def attainable_rate() -> str:
    """Return the hit rate of one endless cache for all pods."""
    return ratio(
        total(rate(exporter.ATTAINABLE_TOKENS, WINDOW, OURS)),
        total(rate(exporter.QUERIED_TOKENS, WINDOW, OURS)),
    )


def attained() -> str:
    """Return the share of the attainable hits that were had."""
    return ratio(
        total(rate(exporter.HIT_TOKENS, WINDOW, OURS)),
        total(rate(exporter.ATTAINABLE_TOKENS, WINDOW, OURS)),
    )


def requests(by: str = "") -> str:
    """Return requests per second that got a first token."""
    return total(rate(engines.TTFT, WINDOW, ENGINE, "count"), by)


def percentiles(quantity: engines.Quantity) -> tuple[Query, ...]:
    """Return the percentiles of a latency, of all chosen pods together, and its mean."""
    curves = [
        Query(quantile(share, quantity, WINDOW, ENGINE), f"p{share * 100:g}", colour)
        for share, colour in QUANTILES
    ]
    return (*curves, Query(mean(quantity, WINDOW, ENGINE), "mean", GREY, dashed=True))


def hit_rate_and_ceiling() -> Panel:
    """Return the panel that the whole of kvbench is about."""
    return Panel(
        "Hit rate and its ceiling",
        "Share of prompt tokens found in a prefix cache, by tokens, and what one endless cache for "
        "all pods would have found (with `kvbench exporter`). Only the gap between the two is "
        "yours to close; a ceiling that falls means that prompts have changed.",
        "percentunit",
        (
            Query(hit_rate(), "found", GREEN),
            Query(attainable_rate(), "attainable", GREY, dashed=True),
        ),
        width=12,
        most=1,
    )


def by_pod(
    title: str, description: str, unit: str, expression: str, most: float | None = None
) -> Panel:
    """Return curves of an expression by pod."""
    return Panel(title, description, unit, (Query(expression, "{{instance}}"),), most=most)


def usage() -> Panel:
    """Return how much of the cache requests reference."""
    return Panel(
        "KV cache in use",
        "Share of a pod's KV blocks that running requests reference. Prefixes that nobody uses at "
        "the moment do not count, so a low value does not mean an empty cache. Near 100 % "
        "requests wait or preempt each other.",
        "percentunit",
        (Query(f"max by (instance) ({gauge(engines.USAGE, ENGINE)})", "{{instance}}"),),
        most=1,
        idle="no pods",
    )


def headroom() -> Panel:
    """Return how many tokens further requests may take."""
    return Panel(
        "Headroom",
        "Tokens that further requests can take on each pod before one waits.",
        "short",
        (Query(total(gauge(exporter.HEADROOM_TOKENS, OURS), "pod"), "{{pod}}"),),
        needs="exporter",
        idle="no exporter",
    )


CAUSES = (
    ("cold", BLUE),
    ("elsewhere", YELLOW),
    ("evicted", RED),
    ("reset", PURPLE),
)
"""Why tokens were computed, each with its colour; in the catalogue's order."""
