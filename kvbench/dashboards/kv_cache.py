"""The KV cache: what is found, why the rest was not, what the pools hold, what is held twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.dashboards import queries
from kvbench.dashboards.panel import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    YELLOW,
    Board,
    Panel,
    Query,
    Row,
    number,
)
from kvbench.dashboards.queries import OURS, RUN, WINDOW, by_pod
from kvbench.metrics import exporter
from kvbench.metrics.promql import gauge, increase, quantile, rate, ratio, total

if TYPE_CHECKING:
    from kvbench.metrics.metric import Metric


def board() -> Board:
    """Return the board."""
    return Board(
        "KV cache",
        "What do prefix caches find, why not the rest, and what do they hold?",
        (
            Row("", _numbers()),
            Row("What is found", (queries.hit_rate_and_ceiling(), _causes())),
            Row("Pod by pod", (_by_pod(), _attained(), _cold_starts())),
            Row("What the pools hold", (_pool(), _evictions(), _lives())),
            Row("The fleet as one cache", (_duplicates(), _holders(), _trust(), _events())),
        ),
    )


def _numbers() -> tuple[Panel, ...]:
    """Return where the cache stands."""
    unique, twice = gauge(exporter.UNIQUE_TOKENS, RUN), gauge(exporter.DUPLICATE_TOKENS, RUN)
    capacity = total(gauge(exporter.CAPACITY_TOKENS, OURS))
    return (
        number(
            "Hit rate",
            "Share of prompt tokens found in a prefix cache.",
            "percentunit",
            queries.hit_rate(),
            steps=queries.GOOD_HITS,
        ),
        number(
            "Of what was attainable",
            "Share of the hits of one endless cache for all pods that this fleet had.",
            "percentunit",
            queries.attained(),
            needs="exporter",
            steps=queries.GOOD_SHARE,
        ),
        number(
            "Capacity",
            "Tokens that all pods together can hold.",
            "short",
            capacity,
            needs="exporter",
            idle="no exporter",
        ),
        number(
            "Holding prefixes",
            "Share of that which holds a prefix that can be hit, in use or not. A warm cache is "
            "full: this is no alarm.",
            "percentunit",
            ratio(total(gauge(exporter.RESIDENT_TOKENS, OURS)), capacity),
            needs="exporter",
            idle="no events",
        ),
        number(
            "Held twice",
            "Share of what the fleet holds that another pod holds as well: room that one copy "
            "would save. Some is good: a popular prefix needs more than one pod.",
            "percentunit",
            ratio(f"sum({twice})", f"sum({twice}) + sum({unique})"),
            needs="exporter",
            idle="no events",
            steps=((None, GREEN), (0.3, YELLOW), (0.5, RED)),
        ),
        number(
            "Evicted per second",
            "Tokens given up to make room for others.",
            "short",
            total(rate(exporter.EVICTED_TOKENS, WINDOW, OURS)),
            needs="exporter",
            idle="no events",
        ),
    )


def _causes() -> Panel:
    return Panel(
        "Why tokens were computed",
        "Tokens computed and stored, by why they were not there: seen nowhere before (cold), held "
        "by another pod (elsewhere), given up for want of room (evicted), lost with a cache "
        "(reset). All but the first could have been hits.",
        "short",
        tuple(
            Query(
                total(rate(exporter.STORED_TOKENS, WINDOW, f'{OURS},cause="{cause}"')),
                cause,
                colour,
            )
            for cause, colour in queries.CAUSES
        ),
        kind="stack",
        width=12,
        needs="exporter",
    )


def _by_pod() -> Panel:
    return by_pod(
        "Hit rate by pod",
        "Share of prompt tokens found, by pod. A pod that has just started begins at the bottom.",
        "percentunit",
        queries.hit_rate("instance"),
        most=1,
    )


def _attained() -> Panel:
    expression = ratio(
        total(rate(exporter.HIT_TOKENS, WINDOW, OURS), "pod"),
        total(rate(exporter.ATTAINABLE_TOKENS, WINDOW, OURS), "pod"),
    )
    return Panel(
        "Attained by pod",
        "Share of the attainable hits that each pod had, of the prompts that were sent to it. Low "
        "on one pod: its traffic belongs elsewhere, or its cache is too small for it.",
        "percentunit",
        (Query(expression, "{{pod}}"),),
        needs="exporter",
        most=1,
    )


def _cold_starts() -> Panel:
    starts = increase(exporter.COLD_START, WINDOW, OURS)
    return Panel(
        "Cold starts",
        "Times that a pod's cache began anew, empty: its process restarted, or it was reset.",
        "short",
        (Query(f"{total(starts, 'pod, reason')} > 0", "{{pod}} {{reason}}"),),
        kind="stack",
        needs="exporter",
        idle="none",
        quiet=True,
    )


def _pool() -> Panel:
    parts = (
        (exporter.REFERENCED_TOKENS, "in use", YELLOW),
        (exporter.EVICTABLE_TOKENS, "kept, free to evict", GREEN),
        (exporter.EMPTY_TOKENS, "empty", GREY),
    )
    return Panel(
        "What the pools hold",
        "All pods' blocks in tokens: used by running requests; holding a prefix that nobody uses "
        "at the moment; empty. A healthy cache is mostly green. Engines report only the yellow.",
        "short",
        tuple(Query(total(gauge(m, OURS)), legend, colour) for m, legend, colour in parts),
        kind="stack",
        needs="exporter",
        idle="no events",
    )


def _evictions() -> Panel:
    return Panel(
        "Evictions",
        "Tokens per second that each pod gives up to make room for others.",
        "short",
        (Query(total(rate(exporter.EVICTED_TOKENS, WINDOW, OURS), "pod"), "{{pod}}"),),
        needs="exporter",
        idle="no events",
    )


def _lives() -> Panel:
    def at(share: float, metric: Metric) -> str:
        return quantile(share, metric, WINDOW, OURS)

    return Panel(
        "Block lifetime and reuse gap",
        "How long blocks live until they are evicted, and how long it takes until a block is used "
        "again. Where the lifetime (p50) falls under the gap, the cache thrashes: it keeps what "
        "nobody will find. Without evictions there is no lifetime to draw.",
        "s",
        (
            Query(at(0.5, exporter.BLOCK_LIFETIME), "lifetime p50", RED),
            Query(at(0.5, exporter.REUSE_GAP), "gap p50", BLUE),
            Query(at(0.9, exporter.REUSE_GAP), "gap p90", BLUE, dashed=True),
        ),
        needs="exporter",
        idle="no evictions",
        least=None,
        log=True,
    )


def _duplicates() -> Panel:
    return Panel(
        "Different and duplicate tokens",
        "What the fleet holds: different blocks once each, and further copies of them.",
        "short",
        (
            Query(f"sum({gauge(exporter.UNIQUE_TOKENS, RUN)})", "different", GREEN),
            Query(f"sum({gauge(exporter.DUPLICATE_TOKENS, RUN)})", "further copies", PURPLE),
        ),
        kind="stack",
        width=6,
        needs="exporter",
        idle="no events",
    )


def _holders() -> Panel:
    return Panel(
        "The same prefix on several pods",
        "Tokens of different blocks, by how many pods hold them. A shared system prompt belongs on "
        "several; a conversation does not.",
        "short",
        (Query(f"sum by (pods) ({gauge(exporter.HELD_TOKENS, RUN)})", "on {{pods}}"),),
        kind="bars",
        width=6,
        needs="exporter",
        idle="no events",
    )


def _trust() -> Panel:
    levels = (("exact", GREEN), ("cold", BLUE), ("degraded", RED), ("off", GREY))
    return Panel(
        "Trust in events",
        "Pods by how much is known of their caches: all events came (exact), none yet (cold), some "
        "are lost (degraded), not asked for (off). What is drawn from events holds where it is "
        "exact.",
        "short",
        tuple(
            Query(total(gauge(exporter.EVENTS_TRUST, f'{OURS},level="{level}"')), level, colour)
            for level, colour in levels
        ),
        kind="stack",
        width=6,
        needs="exporter",
        idle="no exporter",
    )


def _events() -> Panel:
    lost = total(increase(exporter.EVENTS_LOST, WINDOW, OURS))
    gaps = total(increase(exporter.EVENTS_GAPS, WINDOW, OURS))
    return Panel(
        "Events",
        "Batches of KV events: applied per second, and gaps and losses as they happen. A gap that "
        "a replay fills is harmless, a loss is not.",
        "short",
        (
            Query(total(rate(exporter.EVENTS_BATCHES, WINDOW, OURS)), "applied per second", BLUE),
            Query(f"{gaps} > 0", "gaps", YELLOW),
            Query(f"{lost} > 0", "lost for good", RED),
        ),
        width=6,
        needs="exporter",
        idle="no events",
    )
