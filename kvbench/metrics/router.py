"""What the router tells about itself and its pods.

Labels have bounded values: pods and policies that the operator named, and words of closed sets;
never a client's words.
"""

from __future__ import annotations

from kvbench.metrics.metric import Metric

_FAST = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_TTFT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

REQUESTS = Metric(
    "kvbench_router_requests_total",
    "counter",
    "Requests ended, by the pod that answered ('' if none did) and how: the class of the status, "
    "'cut' if the pod broke off, 'gone' if the client left.",
    ("pod", "status"),
)
DECISIONS = Metric(
    "kvbench_router_decisions_total",
    "counter",
    "Pods chosen, by policy and by the reason that decided.",
    ("policy", "reason"),
)
PROMPT_TOKENS = Metric(
    "kvbench_router_prompt_tokens_total",
    "counter",
    "Prompt tokens of answers that said how many were cached, as the pod counted them.",
    ("pod",),
)
PREDICTED_TOKENS = Metric(
    "kvbench_router_predicted_cached_tokens_total",
    "counter",
    "Of the prompt tokens, those that the policy expected cached, for the same answers.",
    ("pod",),
)
CACHED_TOKENS = Metric(
    "kvbench_router_cached_tokens_total",
    "counter",
    "Of the prompt tokens, those that the pod had cached.",
    ("pod",),
)
IN_FLIGHT = Metric(
    "kvbench_router_in_flight",
    "gauge",
    "Requests sent to a pod and not yet ended.",
    ("pod",),
)
POD_UP = Metric(
    "kvbench_router_pod_up",
    "gauge",
    "Whether a pod is offered to policies: 1 or 0.",
    ("pod",),
)
RETRIES = Metric(
    "kvbench_router_retries_total",
    "counter",
    "Attempts that failed before the first byte of an answer and were made again, by the pod that "
    "failed.",
    ("pod",),
)
ERRORS = Metric(
    "kvbench_router_errors_total",
    "counter",
    "Attempts that failed, by pod and kind.",
    ("pod", "kind"),
)
REFUSALS = Metric(
    "kvbench_router_refusals_total",
    "counter",
    "Requests that the router answered itself, by HTTP status.",
    ("status",),
)
ADDED_LATENCY = Metric(
    "kvbench_router_added_latency_seconds",
    "histogram",
    "From the complete request to its being handed to a pod: keys, decision, connection, retries.",
    (),
    _FAST,
)
TTFT = Metric(
    "kvbench_router_time_to_first_token_seconds",
    "histogram",
    "From handing a streaming request to a pod to the first byte of its answer's body.",
    ("pod",),
    _TTFT,
)

METRICS = (
    REQUESTS,
    DECISIONS,
    PROMPT_TOKENS,
    PREDICTED_TOKENS,
    CACHED_TOKENS,
    IN_FLIGHT,
    POD_UP,
    RETRIES,
    ERRORS,
    REFUSALS,
    ADDED_LATENCY,
    TTFT,
)
