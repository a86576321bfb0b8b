"""Routing: which pod gets a request and why, and what came of it."""

from __future__ import annotations

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
from kvbench.dashboards.queries import OURS, RUN, WINDOW
from kvbench.metrics import router
from kvbench.metrics.promql import gauge, mean, quantile, rate, ratio, total


def board() -> Board:
    """Return the board."""
    return Board(
        "Routing",
        "Do requests go where their prefix is, does the router know what it does, and what does "
        "it cost?",
        (
            Row("", _numbers()),
            Row("Decisions", (_reasons(), _predicted(), _error())),
            Row("What was missed", (_causes(), _regret(), _shadow_hits(), _shadow_ttft())),
            Row("Balance", (_share(), _in_flight(), _ttft())),
            Row("What it knows", (_trust(), _index(), _mismatch())),
            Row("The router itself", (_offered(), _errors(), _cost(), _stages())),
        ),
    )


def _numbers() -> tuple[Panel, ...]:
    """Return whether it routes well, and at what price."""
    failed = total(rate(router.ERRORS, WINDOW, OURS))
    asked = total(rate(router.REQUESTS, WINDOW, RUN))
    cached = total(rate(router.CACHED_TOKENS, WINDOW, OURS))
    up = gauge(router.POD_UP, OURS)
    return (
        number(
            "Requests per second",
            "Requests that ended, whatever became of them.",
            "reqps",
            asked,
            needs="router",
        ),
        number(
            "Delivered of predicted",
            "Cached tokens that pods delivered over those that the policy expected. Under 100 %: "
            "it sends requests where less is cached than it believes.",
            "percentunit",
            ratio(cached, total(rate(router.PREDICTED_TOKENS, WINDOW, OURS))),
            needs="router",
            steps=((None, RED), (0.8, YELLOW), (0.95, GREEN)),
        ),
        number(
            "Hit rate",
            "Share of prompt tokens cached, of answers that said so.",
            "percentunit",
            ratio(cached, total(rate(router.PROMPT_TOKENS, WINDOW, OURS))),
            needs="router",
        ),
        number(
            "Pods not offered",
            "Pods that get no request because probes or requests failed.",
            "short",
            f"count({up} == 0) or count({up}) * 0",
            needs="router",
            idle="no router",
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Attempts that failed",
            "Of all requests; most are made again on another pod before anybody notices.",
            "percentunit",
            ratio(f"({failed} or {asked} * 0)", asked),
            needs="router",
            steps=((None, GREEN), (0.001, YELLOW), (0.01, RED)),
        ),
        number(
            "Added latency p99",
            "From the complete request to its being handed to a pod.",
            "s",
            quantile(0.99, router.ADDED_LATENCY, WINDOW, RUN),
            needs="router",
            steps=((None, GREEN), (0.005, YELLOW), (0.02, RED)),
        ),
    )


def _reasons() -> Panel:
    return Panel(
        "Decisions by reason",
        "Per second, by policy and by what decided. Affinity that always wins starves pods; load "
        "that always wins loses hits.",
        "reqps",
        (
            Query(
                total(rate(router.DECISIONS, WINDOW, RUN), "policy, reason") + " > 0",
                "{{policy}}: {{reason}}",
            ),
        ),
        kind="stack",
        needs="router",
    )


def _predicted() -> Panel:
    return Panel(
        "Predicted against delivered",
        "Tokens per second: of all prompts, those that the policy expected to be cached, and those "
        "that were.",
        "short",
        (
            Query(total(rate(router.PROMPT_TOKENS, WINDOW, OURS)), "prompt", GREY, dashed=True),
            Query(total(rate(router.PREDICTED_TOKENS, WINDOW, OURS)), "predicted", YELLOW),
            Query(total(rate(router.CACHED_TOKENS, WINDOW, OURS)), "delivered", GREEN),
        ),
        needs="router",
    )


def _error() -> Panel:
    predicted = total(rate(router.PREDICTED_TOKENS, WINDOW, OURS), "pod")
    delivered = total(rate(router.CACHED_TOKENS, WINDOW, OURS), "pod")
    prompt = total(rate(router.PROMPT_TOKENS, WINDOW, OURS), "pod")
    return Panel(
        "Error of the prediction by pod",
        "Predicted less delivered, as a share of the prompt tokens. Over 0: the pod has less than "
        "the router believes (evicted, restarted, lost events). Under 0: more.",
        "percentunit",
        (Query(ratio(f"({predicted} - {delivered})", prompt), "{{pod}}"),),
        needs="router",
        least=None,
    )


def _causes() -> Panel:
    return Panel(
        "Why predictions were wrong",
        "Tokens per second by which pods delivered more or less than predicted, by why: evicted "
        "since, an event that came late, another router's traffic, a template that differs.",
        "short",
        (
            Query(
                total(rate(router.PREDICTION_ERROR, WINDOW, RUN), "cause, direction") + " > 0",
                "{{cause}}, {{direction}}",
            ),
        ),
        kind="stack",
        width=6,
        needs="router",
        idle="none were",
        quiet=True,
    )


def _regret() -> Panel:
    return Panel(
        "Regret",
        "Expected time to first token at the chosen pod, less that at the best one, by what the "
        "pods really held. 0 is a perfect choice. Needs KV events of all pods.",
        "s",
        (
            Query(mean(router.REGRET, WINDOW, RUN, "policy"), "mean, {{policy}}"),
            Query(
                quantile(0.95, router.REGRET, WINDOW, RUN, "policy"), "p95, {{policy}}", dashed=True
            ),
        ),
        width=6,
        needs="router",
        idle="no events",
        quiet=True,
    )


def _shadow_hits() -> Panel:
    return Panel(
        "Hit rate of shadow policies",
        "What other policies (`--shadow`) would have got on virtual pods, beside the serving one "
        "on the same. If one stays above, try it.",
        "percentunit",
        (
            Query(
                ratio(
                    total(rate(router.SHADOW_CACHED_TOKENS, WINDOW, RUN), "policy, role"),
                    total(rate(router.SHADOW_PROMPT_TOKENS, WINDOW, RUN), "policy, role"),
                ),
                "{{policy}} ({{role}})",
            ),
        ),
        width=6,
        needs="router",
        idle="no --shadow",
        quiet=True,
        most=1,
    )


def _shadow_ttft() -> Panel:
    return Panel(
        "Expected TTFT of shadow policies",
        "Mean time to first token expected on the virtual pods, by policy.",
        "s",
        (Query(mean(router.SHADOW_TTFT, WINDOW, RUN, "policy, role"), "{{policy}} ({{role}})"),),
        width=6,
        needs="router",
        idle="no --shadow",
        quiet=True,
    )


def _trust() -> Panel:
    levels = (("exact", GREEN), ("cold", BLUE), ("degraded", RED))
    return Panel(
        "Trust in pods' events",
        "Pods by how far the router believes what it knows of their caches. Without KV events it "
        "estimates from what it sent.",
        "short",
        tuple(
            Query(total(gauge(router.EVENTS_TRUST, f'{OURS},level="{level}"')), level, colour)
            for level, colour in levels
        ),
        kind="stack",
        needs="router",
        idle="no events",
        quiet=True,
    )


def _index() -> Panel:
    return Panel(
        "Blocks in the index",
        "Blocks that each pod holds by its events, as far as the router knows.",
        "short",
        (Query(total(gauge(router.INDEX_BLOCKS, OURS), "pod"), "{{pod}}"),),
        needs="router",
        idle="no events",
        quiet=True,
    )


def _mismatch() -> Panel:
    wrong = total(rate(router.MISCOUNTED, WINDOW, RUN))
    compared = total(rate(router.PREDICTIONS, WINDOW, RUN))
    return Panel(
        "Prompts counted otherwise",
        "Share of answers whose prompt the pod counted otherwise than the router: another "
        "tokenizer or chat template. Exact routing is given up for such a model.",
        "percentunit",
        (Query(ratio(f"({wrong} or {compared} * 0)", compared), "counted otherwise", RED),),
        needs="router",
        idle="nothing compared",
        quiet=True,
    )


def _stages() -> Panel:
    return Panel(
        "Added latency by stage",
        "Mean of each part: parse, template, tokenise, hash, look up, score.",
        "s",
        (Query(mean(router.STAGES, WINDOW, RUN, "stage"), "{{stage}}"),),
        kind="stack",
        width=6,
        needs="router",
        quiet=True,
    )


def _share() -> Panel:
    answered = total(rate(router.REQUESTS, WINDOW, f'{OURS},pod!=""'), "pod")
    return Panel(
        "Requests by pod",
        "Per second, by the pod that answered.",
        "reqps",
        (Query(answered, "{{pod}}"),),
        kind="stack",
        needs="router",
    )


def _in_flight() -> Panel:
    return Panel(
        "In flight by pod",
        "Requests sent to a pod and not yet ended.",
        "short",
        (Query(total(gauge(router.IN_FLIGHT, OURS), "pod"), "{{pod}}"),),
        needs="router",
        idle="no router",
    )


def _ttft() -> Panel:
    return Panel(
        "TTFT p95 by pod",
        "From handing a streaming request to a pod to the first byte of its answer.",
        "s",
        (Query(quantile(0.95, router.TTFT, WINDOW, OURS, "pod"), "{{pod}}"),),
        needs="router",
    )


def _offered() -> Panel:
    return Panel(
        "Pods offered",
        "1 while a pod may be chosen, 0 while its probes fail or its breaker is open.",
        "short",
        (Query(f"min by (pod) ({gauge(router.POD_UP, OURS)})", "{{pod}}"),),
        width=6,
        needs="router",
        idle="no router",
        most=1,
    )


def _errors() -> Panel:
    return Panel(
        "Errors, retries and refusals",
        "Per second: attempts that failed by kind, attempts made again, and requests that the "
        "router answered itself.",
        "reqps",
        (
            Query(total(rate(router.ERRORS, WINDOW, OURS), "kind") + " > 0", "{{kind}}"),
            Query(total(rate(router.RETRIES, WINDOW, OURS)) + " > 0", "tried again", YELLOW),
            Query(
                total(rate(router.REFUSALS, WINDOW, RUN), "status") + " > 0", "refused, {{status}}"
            ),
        ),
        width=6,
        needs="router",
        idle="none",
        quiet=True,
    )


def _cost() -> Panel:
    return Panel(
        "Added latency",
        "From the complete request to its being handed to a pod: keys, decision, connection, "
        "retries.",
        "s",
        tuple(
            Query(quantile(share, router.ADDED_LATENCY, WINDOW, RUN), f"p{share * 100:g}", colour)
            for share, colour in ((0.5, BLUE), (0.99, RED))
        ),
        width=6,
        needs="router",
        least=None,
        log=True,
    )
