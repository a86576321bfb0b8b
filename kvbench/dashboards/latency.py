"""Latency: what users wait for, where it goes, and whether client and server agree."""

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
from kvbench.dashboards.queries import ENGINE, RUN, WINDOW, by_pod
from kvbench.metrics import engines, load, router, vllm
from kvbench.metrics.promql import mean, quantile, rate, total, within

if TYPE_CHECKING:
    from kvbench.alerts.settings import Objective, Settings


def board(settings: Settings) -> Board:
    """Return the board."""
    return Board(
        "Latency",
        "How long do users wait, where does the time go, and do client and server agree?",
        (
            Row("", _numbers(settings)),
            Row("First token", (_ttft(), _heat("First tokens over time", engines.TTFT))),
            Row("Next tokens", (_itl(), _heat("Gaps between tokens over time", engines.ITL))),
            Row("Where the time goes", (_where(), _by_pod(), _whole())),
            Row("What the client sees", (_three(), _turns())),
        ),
    )


def _numbers(settings: Settings) -> tuple[Panel, ...]:
    """Return percentiles, and the share within each objective."""

    def percentile(title: str, share: float, quantity: engines.Quantity, limit: float) -> Panel:
        return number(
            title,
            f"{share:.0%} of all observations were faster, over all chosen pods together.",
            "s",
            quantile(share, quantity, WINDOW, ENGINE),
            steps=((None, GREEN), (limit, YELLOW), (3 * limit, RED)),
        )

    def in_time(title: str, quantity: engines.Quantity, objective: Objective) -> Panel:
        share = objective.share
        return Panel(
            title,
            f"Share of observations within {objective.seconds:g} s, counted at a bucket's bound. "
            f"The objective is {share:.4g}.",
            "percentunit",
            (Query(within(objective.seconds, quantity, WINDOW, ENGINE), "within"),),
            kind="stat",
            width=4,
            height=4,
            steps=((None, RED), (1 - 2 * (1 - share), YELLOW), (share, GREEN)),
        )

    ttft, itl = settings.ttft, settings.itl
    return (
        percentile("TTFT p50", 0.5, engines.TTFT, ttft.seconds),
        percentile("TTFT p99", 0.99, engines.TTFT, ttft.seconds),
        in_time("First tokens in time", engines.TTFT, ttft),
        percentile("ITL p95", 0.95, engines.ITL, itl.seconds),
        in_time("Next tokens in time", engines.ITL, itl),
        percentile("Whole answer p95", 0.95, engines.E2E, 60),
    )


def _ttft() -> Panel:
    return Panel(
        "Time to first token",
        "From a request's arrival at the pod to its first token, all pods together. Between the "
        "buckets' bounds a percentile is an estimate.",
        "s",
        queries.percentiles(engines.TTFT),
        width=12,
    )


def _itl() -> Panel:
    return Panel(
        "Time between tokens",
        "Gaps between a request's successive outputs. High p99 over a low p50: prefills of others "
        "interrupt decoding.",
        "s",
        queries.percentiles(engines.ITL),
        width=12,
    )


def _heat(title: str, quantity: engines.Quantity) -> Panel:
    buckets = total(rate(quantity, WINDOW, ENGINE, "bucket"), "le")
    return Panel(
        title,
        "How many observations fell into each bucket: two bands are hits and misses, which no "
        "percentile shows.",
        "s",
        (Query(buckets, "{{le}}"),),
        kind="heat",
        width=12,
        least=None,
    )


def _where() -> Panel:
    parts = ((vllm.QUEUE_TIME, "queue", RED), (vllm.PREFILL_TIME, "prefill", BLUE),
             (vllm.DECODE_TIME, "decode", GREEN))  # fmt: skip
    return Panel(
        "Where the time goes",
        "Mean seconds of a request in the queue, computing its prompt and generating (vLLM). "
        "Queue: capacity or routing. Prefill: hits. Decode: batch size and answer length.",
        "s",
        tuple(Query(mean(metric, WINDOW, ENGINE), name, colour) for metric, name, colour in parts),
        kind="stack",
    )


def _by_pod() -> Panel:
    return by_pod(
        "TTFT p95 by pod",
        "One slow pod among fast ones: routing, a neighbour on its machine, or a cold cache.",
        "s",
        quantile(0.95, engines.TTFT, WINDOW, ENGINE, "instance"),
    )


def _whole() -> Panel:
    return Panel(
        "Whole answer",
        "From arrival to the last token. It grows with the answer's length: compare it with "
        "itself.",
        "s",
        queries.percentiles(engines.E2E),
    )


def _three() -> Panel:
    return Panel(
        "Client beside server",
        "TTFT p95 as the load generator, the router and the pods see it. What lies between them is "
        "network, connection and queue in front of the engine; it should be next to nothing. The "
        "router's curve needs `kvbench router`.",
        "s",
        (
            Query(quantile(0.95, load.TTFT, WINDOW, RUN), "client", RED),
            Query(quantile(0.95, router.TTFT, WINDOW, queries.OURS), "router", PURPLE),
            Query(quantile(0.95, engines.TTFT, WINDOW, ENGINE), "pods", GREY),
        ),
        width=12,
        needs="load",
    )


def _turns() -> Panel:
    return Panel(
        "First turns against later turns",
        "TTFT of conversations' first turns, which can hit only what others share with them, and "
        "of later ones, which can hit their own history. If later turns are no faster, hits are "
        "lost.",
        "s",
        tuple(
            Query(
                quantile(share, load.TTFT, WINDOW, f'turn="{turn}"'),
                f"{turn} p{share * 100:g}",
                colour,
                dashed=share > 0.5,
            )
            for turn, colour in zip(load.TURNS, (YELLOW, BLUE), strict=True)
            for share in (0.5, 0.95)
        ),
        width=12,
        needs="load",
    )
