"""The metrics of kvbench's own: `kvbench_*`, each named here and nowhere else.

A tuple per component, so that a component can make exactly its own. Labels have bounded values:
pods and policies that the operator named, and words of closed sets; never a client's words.
"""

from __future__ import annotations

from kvbench.metrics.metric import Metric

_FAST = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_TTFT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

ROUTER_REQUESTS = Metric(
    "kvbench_router_requests_total",
    "counter",
    "Requests ended, by the pod that answered ('' if none did) and how: the class of the status, "
    "'cut' if the pod broke off, 'gone' if the client left.",
    ("pod", "status"),
)
ROUTER_DECISIONS = Metric(
    "kvbench_router_decisions_total",
    "counter",
    "Pods chosen, by policy and by the reason that decided.",
    ("policy", "reason"),
)
ROUTER_PROMPT_TOKENS = Metric(
    "kvbench_router_prompt_tokens_total",
    "counter",
    "Prompt tokens of answers that said how many were cached, as the pod counted them.",
    ("pod",),
)
ROUTER_PREDICTED_TOKENS = Metric(
    "kvbench_router_predicted_cached_tokens_total",
    "counter",
    "Of the prompt tokens, those that the policy expected cached, for the same answers.",
    ("pod",),
)
ROUTER_CACHED_TOKENS = Metric(
    "kvbench_router_cached_tokens_total",
    "counter",
    "Of the prompt tokens, those that the pod had cached.",
    ("pod",),
)
ROUTER_IN_FLIGHT = Metric(
    "kvbench_router_in_flight",
    "gauge",
    "Requests sent to a pod and not yet ended.",
    ("pod",),
)
ROUTER_POD_UP = Metric(
    "kvbench_router_pod_up",
    "gauge",
    "Whether a pod is offered to policies: 1 or 0.",
    ("pod",),
)
ROUTER_RETRIES = Metric(
    "kvbench_router_retries_total",
    "counter",
    "Attempts that failed before the first byte of an answer and were made again, by the pod that "
    "failed.",
    ("pod",),
)
ROUTER_ERRORS = Metric(
    "kvbench_router_errors_total",
    "counter",
    "Attempts that failed, by pod and kind.",
    ("pod", "kind"),
)
ROUTER_REFUSALS = Metric(
    "kvbench_router_refusals_total",
    "counter",
    "Requests that the router answered itself, by HTTP status.",
    ("status",),
)
ROUTER_ADDED_LATENCY = Metric(
    "kvbench_router_added_latency_seconds",
    "histogram",
    "From the complete request to its being handed to a pod: keys, decision, connection, retries.",
    (),
    _FAST,
)
ROUTER_TTFT = Metric(
    "kvbench_router_time_to_first_token_seconds",
    "histogram",
    "From handing a streaming request to a pod to the first byte of its answer's body.",
    ("pod",),
    _TTFT,
)

ROUTER: tuple[Metric, ...] = (
    ROUTER_REQUESTS,
    ROUTER_DECISIONS,
    ROUTER_PROMPT_TOKENS,
    ROUTER_PREDICTED_TOKENS,
    ROUTER_CACHED_TOKENS,
    ROUTER_IN_FLIGHT,
    ROUTER_POD_UP,
    ROUTER_RETRIES,
    ROUTER_ERRORS,
    ROUTER_REFUSALS,
    ROUTER_ADDED_LATENCY,
    ROUTER_TTFT,
)
"""What the router exports."""

CATALOGUE: tuple[Metric, ...] = ROUTER
"""All of them."""
