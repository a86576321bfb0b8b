"""What the router tells about itself and its pods.

Labels have bounded values: pods and policies that the operator named, and words of closed sets;
never a client's words.
"""

from __future__ import annotations

from kvbench.metrics.metric import Metric

_FAST = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_STAGE = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5)
_REGRET = (0.0, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TTFT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

REQUESTS = Metric(
    "kvbench_router_requests_total",
    "counter",
    "Requests ended, by the pod that answered ('' if none did) and how: the class of the status, "
    "'cut' if the pod broke off, 'gone' if the client left, 'stopped' if the router was and cut "
    "it.",
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
OTHERS_IN_FLIGHT = Metric(
    "kvbench_router_others_in_flight",
    "gauge",
    "Requests that a pod has by its own account beyond those sent to it, as far as policies count "
    "them.",
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
    "Attempts that were made again on another pod before the first byte of an answer, by the pod "
    "that failed, or refused what another was then asked to judge.",
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
    "Requests that the router refused itself, by HTTP status; not /health, nor what only the admin "
    "port has.",
    ("status",),
)
ADDED_LATENCY = Metric(
    "kvbench_router_added_latency_seconds",
    "histogram",
    "From the complete request to its being handed to a pod: what it says, its tokens, the "
    "decision, the connection, retries; not the time in the queue.",
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
STAGES = Metric(
    "kvbench_router_stage_seconds",
    "histogram",
    "Parts of the added latency: parse, template, tokenise, hash, look_up (match the index), score "
    "(the rest of the decision).",
    ("stage",),
    _STAGE,
)
INDEX_BLOCKS = Metric(
    "kvbench_router_index_blocks",
    "gauge",
    "Blocks that a pod holds by its KV events.",
    ("pod",),
)
INDEX_ORPHANS = Metric(
    "kvbench_router_index_orphans",
    "gauge",
    "Blocks that a pod has told of whose parent is unknown, and which therefore do not count.",
    ("pod",),
)
EVENTS_TRUST = Metric(
    "kvbench_router_events_trust",
    "gauge",
    "How far a pod's part of the index is believed: 1 for its level (exact, degraded, cold), "
    "0 for the others.",
    ("pod", "level"),
)
EVENTS_BATCHES = Metric(
    "kvbench_router_events_batches_total",
    "counter",
    "Batches of KV events applied.",
    ("pod",),
)
EVENTS_LAG = Metric(
    "kvbench_router_events_lag_seconds",
    "gauge",
    "Age of the latest batch of KV events when it was applied, by the two machines' calendars.",
    ("pod",),
)
EVENTS_GAPS = Metric(
    "kvbench_router_events_gaps_total",
    "counter",
    "Times that a number was missing in a pod's KV events, and was asked for again.",
    ("pod",),
)
EVENTS_LOST = Metric(
    "kvbench_router_events_lost_total",
    "counter",
    "Batches of KV events that no replay could bring, or that could not be read.",
    ("pod",),
)
EVENTS_RESTARTS = Metric(
    "kvbench_router_events_restarts_total",
    "counter",
    "Times that a pod's KV events began anew, or its connection broke, and it was forgotten.",
    ("pod",),
)
PREDICTIONS = Metric(
    "kvbench_router_predictions_total",
    "counter",
    "Answers whose cached tokens were compared with the prediction, by why they differ: none, "
    "estimate, template, last_block, evicted, duplicate, late, other.",
    ("cause",),
)
PREDICTION_ERROR = Metric(
    "kvbench_router_prediction_error_tokens_total",
    "counter",
    "Cached tokens delivered more or less than predicted, by cause.",
    ("cause", "direction"),
)
REGRET = Metric(
    "kvbench_router_regret_seconds",
    "histogram",
    "Expected time to first token at the chosen pod, less that at the best one offered, by what "
    "the pods really held; only where all of them are exact.",
    ("policy",),
    _REGRET,
)
MISCOUNTED = Metric(
    "kvbench_router_miscounted_requests_total",
    "counter",
    "Requests whose prompt tokens the pod counted otherwise than the router.",
    ("model",),
)
TOKENS_KNOWN = Metric(
    "kvbench_router_tokens_known",
    "gauge",
    "Whether the router makes a model's tokens itself (1), or has given that up (0).",
    ("model",),
)
SHADOW_PROMPT_TOKENS = Metric(
    "kvbench_router_shadow_prompt_tokens_total",
    "counter",
    "Prompt tokens of requests that were served, played on virtual pods: by a shadow policy's "
    "choices, and by the serving one's.",
    ("policy", "role"),
)
SHADOW_CACHED_TOKENS = Metric(
    "kvbench_router_shadow_cached_tokens_total",
    "counter",
    "Of these, those found cached on the virtual pods.",
    ("policy", "role"),
)
SHADOW_TTFT = Metric(
    "kvbench_router_shadow_time_to_first_token_seconds",
    "histogram",
    "Time to first token expected of the same requests on the virtual pods.",
    ("policy", "role"),
    _TTFT,
)

BREAKER = Metric(
    "kvbench_router_breaker",
    "gauge",
    "State of a pod's circuit breaker: 0 closed, 1 open, 2 open and ready for a trial.",
    ("pod",),
)
DRAINING = Metric(
    "kvbench_router_pod_draining",
    "gauge",
    "Whether a pod is sent no more requests, by an operator's wish: 1 or 0.",
    ("pod",),
)
MODEL_PODS = Metric(
    "kvbench_router_model_pods",
    "gauge",
    "Pods that say they serve a model.",
    ("model",),
)
SOURCE_OK = Metric(
    "kvbench_router_source_ok",
    "gauge",
    "Whether a file or DNS name that names pods, or the file of keys, could last be used: 1 or 0.",
    ("source",),
)
QUEUE = Metric(
    "kvbench_router_queue",
    "gauge",
    "Requests that wait for others to end.",
)
QUEUE_SECONDS = Metric(
    "kvbench_router_queue_seconds",
    "histogram",
    "How long requests that were let in had waited for others to end.",
    (),
    _TTFT,
)
LIMITED = Metric(
    "kvbench_router_limited_total",
    "counter",
    "Requests turned away by a limit, by the name of their key ('' without one): its 'in_flight' "
    "or 'per_minute', the length of the 'queue', or the time in it, 'patience'.",
    ("key", "limit"),
)
KEY_REQUESTS = Metric(
    "kvbench_router_key_requests_total",
    "counter",
    "Requests that came with a key, by its name.",
    ("key",),
)
KEY_IN_FLIGHT = Metric(
    "kvbench_router_key_in_flight",
    "gauge",
    "Requests of a key that are under way or wait.",
    ("key",),
)

METRICS = (
    REQUESTS,
    DECISIONS,
    PROMPT_TOKENS,
    PREDICTED_TOKENS,
    CACHED_TOKENS,
    IN_FLIGHT,
    OTHERS_IN_FLIGHT,
    POD_UP,
    RETRIES,
    ERRORS,
    REFUSALS,
    ADDED_LATENCY,
    TTFT,
    STAGES,
    INDEX_BLOCKS,
    INDEX_ORPHANS,
    EVENTS_TRUST,
    EVENTS_BATCHES,
    EVENTS_LAG,
    EVENTS_GAPS,
    EVENTS_LOST,
    EVENTS_RESTARTS,
    PREDICTIONS,
    PREDICTION_ERROR,
    REGRET,
    MISCOUNTED,
    TOKENS_KNOWN,
    SHADOW_PROMPT_TOKENS,
    SHADOW_CACHED_TOKENS,
    SHADOW_TTFT,
    BREAKER,
    DRAINING,
    MODEL_PODS,
    SOURCE_OK,
    QUEUE,
    QUEUE_SECONDS,
    LIMITED,
    KEY_REQUESTS,
    KEY_IN_FLIGHT,
)
