"""What the exporter tells about pods that do not tell it themselves.

`pod` is a pod as the operator named it (`host:port`, the same word as the router's); all other
labels have closed sets of values. What is not known is absent, never 0. Tokens of a cache are
tokens of whole blocks.

Where a number comes from:

- *scrapes*: the pod's own `/metrics`, of any engine of `kvbench.metrics.engines`;
- *events*: its KV events. Where these are off, or lost (`EVENTS_TRUST`), the number is absent.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvbench.metrics.metric import Metric

_LIVES = (
    0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0,
)  # fmt: skip
_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)

TRUST_LEVELS = ("off", "cold", "exact", "degraded")
"""`level` of EVENTS_TRUST: no events are asked for; none came yet; all came; some are lost."""

STORED_CAUSES = ("cold", "elsewhere", "evicted", "reset")
"""`cause` of STORED_TOKENS, why they were computed: seen nowhere before; another pod holds them;
this fleet had them and gave them up; it lost them when a cache was reset or a pod restarted."""

HOLDERS = ("1", "2", "3-4", "5-8", "9+")
"""`pods` of HELD_TOKENS: how many pods hold the same block."""

COLD_STARTS = ("restart", "reset")
"""`reason` of COLD_START: the process is another one; its prefix cache was reset."""

Length: TypeAlias = Literal["mean", "p95", "window"]
LENGTHS: tuple[Length, ...] = ("mean", "p95", "window")
"""`length` of HEADROOM_SEQUENCES: of the requests that ended lately; or the whole window."""

WORK = ("requests", "uncached_tokens")
"""`work` of the balance metrics."""

FAILURES = ("refused", "timeout", "http", "too_long", "nonsense")
"""`why` of SCRAPE_FAILURES."""

LABELS = {
    "cause": STORED_CAUSES,
    "length": LENGTHS,
    "level": TRUST_LEVELS,
    "pods": HOLDERS,
    "reason": COLD_STARTS,
    "why": FAILURES,
    "work": WORK,
}
"""Values of the labels that have closed sets of them."""

# The pool: capacity = referenced + evictable + empty.
CAPACITY_TOKENS = Metric(
    "kvbench_cache_capacity_tokens", "gauge", "Tokens that a pod's KV cache can hold.", ("pod",)
)
CAPACITY_BYTES = Metric(
    "kvbench_cache_capacity_bytes",
    "gauge",
    "Bytes of a pod's KV cache, where it says so. They are taken from the start on, full or empty.",
    ("pod",),
)
BLOCK_TOKENS = Metric("kvbench_cache_block_tokens", "gauge", "Tokens per block.", ("pod",))
REFERENCED_TOKENS = Metric(
    "kvbench_cache_referenced_tokens",
    "gauge",
    "Tokens of blocks that running requests use: what the engine calls its KV usage.",
    ("pod",),
)
RESIDENT_TOKENS = Metric(
    "kvbench_cache_resident_tokens",
    "gauge",
    "Tokens of blocks that hold a prefix which can be hit, used at the moment or not (events).",
    ("pod",),
)
EVICTABLE_TOKENS = Metric(
    "kvbench_cache_evictable_tokens",
    "gauge",
    "Tokens of blocks that hold a prefix and that nobody uses at the moment: engines count them as "
    "free. From events, exact to a block for each running request.",
    ("pod",),
)
EMPTY_TOKENS = Metric(
    "kvbench_cache_empty_tokens",
    "gauge",
    "Tokens of blocks that hold nothing (events).",
    ("pod",),
)
HEADROOM_TOKENS = Metric(
    "kvbench_cache_headroom_tokens",
    "gauge",
    "Tokens that further requests can take before one waits: all but the referenced.",
    ("pod",),
)
HEADROOM_SEQUENCES = Metric(
    "kvbench_cache_headroom_sequences",
    "gauge",
    "Further requests that fit at once, if they share nothing: of mean or p95 length of those that "
    "ended lately (prompt and answer), or as long as the window.",
    ("pod", "length"),
)

# What happens in it.
STORED_TOKENS = Metric(
    "kvbench_cache_stored_tokens_total",
    "counter",
    "Tokens computed and stored in whole blocks, by why they were not there (events).",
    ("pod", "cause"),
)
EVICTED_TOKENS = Metric(
    "kvbench_cache_evicted_tokens_total",
    "counter",
    "Tokens given up to make room for others (events, or the engine's own count).",
    ("pod",),
)
BLOCK_LIFETIME = Metric(
    "kvbench_cache_block_lifetime_seconds",
    "histogram",
    "From a block's being stored to its being evicted (events).",
    ("pod",),
    _LIVES,
)
REUSE_GAP = Metric(
    "kvbench_cache_reuse_gap_seconds",
    "histogram",
    "From a block's last use to its next, whether it had been evicted meanwhile or not (events: a "
    "block is used when one is stored behind it, or when it is stored anew). A cache whose blocks "
    "live shorter than this thrashes.",
    ("pod",),
    _LIVES,
)
COLD_START = Metric(
    "kvbench_cache_cold_starts_total",
    "counter",
    "Times that a pod's cache began anew, empty, since the exporter knows the pod.",
    ("pod", "reason"),
)

# Hits.
QUERIED_TOKENS = Metric(
    "kvbench_cache_queried_tokens_total",
    "counter",
    "Prompt tokens looked up in the prefix cache, whatever the engine calls it.",
    ("pod",),
)
HIT_TOKENS = Metric(
    "kvbench_cache_hit_tokens_total", "counter", "Of these, the ones that were found.", ("pod",)
)
ATTAINABLE_TOKENS = Metric(
    "kvbench_cache_attainable_tokens_total",
    "counter",
    "Of these, the ones that one endless cache for all pods would have found: hits, and what was "
    "stored although the fleet had it or once had it (events). As far as the exporter remembers.",
    ("pod",),
)

# The fleet.
UNIQUE_TOKENS = Metric(
    "kvbench_fleet_unique_tokens",
    "gauge",
    "Tokens of different blocks that the fleet holds (events).",
)
DUPLICATE_TOKENS = Metric(
    "kvbench_fleet_duplicate_tokens",
    "gauge",
    "Tokens of blocks that another pod holds as well: what one copy would save (events).",
)
HELD_TOKENS = Metric(
    "kvbench_fleet_held_tokens",
    "gauge",
    "Tokens of different blocks, by how many pods hold the same (events).",
    ("pods",),
)
MAX_OVER_MEAN = Metric(
    "kvbench_fleet_work_max_over_mean",
    "gauge",
    "The busiest pod's work over the mean's, of the last minute; absent while there is none.",
    ("work",),
)
JAIN = Metric(
    "kvbench_fleet_work_jain_ratio",
    "gauge",
    "Jain's fairness of the pods' work, of the last minute: 1 is even, 1/pods is all on one; "
    "absent while there is none.",
    ("work",),
)

# Context.
WINDOW_TOKENS = Metric(
    "kvbench_context_window_tokens", "gauge", "Tokens of the longest request that a pod takes.",
    ("pod",),
)  # fmt: skip
CONTEXT_RATIO = Metric(
    "kvbench_context_window_ratio",
    "histogram",
    "Prompt and answer of a request that ended, over the window. Read off the engine's histograms "
    "between two scrapes: their sums are kept, single requests are exact to the engine's buckets.",
    ("pod",),
    _SHARES,
)

# The engine as a process.
UP = Metric(
    "kvbench_engine_up",
    "gauge",
    "Whether the pod's metrics can be read: 1 or 0.",
    ("pod",),
)
INFO = Metric(
    "kvbench_engine_info",
    "gauge",
    "Which engine and model a pod is; always 1.",
    ("pod", "engine", "model"),
)
AGE = Metric(
    "kvbench_engine_age_seconds", "gauge", "Since the pod's process began.", ("pod",)
)  # fmt: skip
STALLED = Metric(
    "kvbench_engine_stalled_seconds",
    "gauge",
    "For how long requests have been running or waiting in which no token was computed; 0 is well.",
    ("pod",),
)
REQUESTS = Metric(
    "kvbench_engine_requests_total", "counter", "Requests that a pod ended.", ("pod",)
)
PREEMPTIONS = Metric(
    "kvbench_engine_preemptions_total",
    "counter",
    "Times that a running request lost its blocks, whatever the engine calls it.",
    ("pod",),
)
PROCESS_BYTES = Metric(
    "kvbench_engine_process_memory_bytes",
    "gauge",
    "Resident memory of the pod's process. It says nothing about how full the cache is.",
    ("pod",),
)

# How far events may be believed.
EVENTS_TRUST = Metric(
    "kvbench_events_trust",
    "gauge",
    "Is 1 for the level of trust in what is known of a pod's cache, 0 for the others.",
    ("pod", "level"),
)
EVENTS_BATCHES = Metric(
    "kvbench_events_batches_total", "counter", "Batches of KV events applied.", ("pod",)
)
EVENTS_GAPS = Metric(
    "kvbench_events_gaps_total",
    "counter",
    "Times that a batch was missing; most are replayed.",
    ("pod",),
)
EVENTS_LOST = Metric(
    "kvbench_events_lost_total",
    "counter",
    "Batches that no replay could bring, or that could not be read.",
    ("pod",),
)
EVENTS_LAG = Metric(
    "kvbench_events_lag_seconds",
    "gauge",
    "From a batch's being published, by the pod's calendar, to its being applied: the latest.",
    ("pod",),
)

# GPUs of the exporter's own machine, by NVML; none without a driver.
GPU_USED_BYTES = Metric(
    "kvbench_gpu_memory_used_bytes",
    "gauge",
    "Memory taken on a GPU. Engines take the cache's share at their start: this is not how full "
    "the cache is.",
    ("gpu",),
)
GPU_TOTAL_BYTES = Metric("kvbench_gpu_memory_total_bytes", "gauge", "Memory of a GPU.", ("gpu",))
GPU_BUSY = Metric(
    "kvbench_gpu_utilization_ratio",
    "gauge",
    "Share of the last moment in which a GPU did anything at all.",
    ("gpu",),
)

# The exporter itself.
SCRAPE_SECONDS = Metric(
    "kvbench_exporter_scrape_seconds", "gauge", "How long the latest scrape of a pod took.",
    ("pod",),
)  # fmt: skip
SCRAPE_FAILURES = Metric(
    "kvbench_exporter_scrape_failures_total",
    "counter",
    "Scrapes of a pod that failed, by why.",
    ("pod", "why"),
)
REMEMBERED = Metric(
    "kvbench_exporter_remembered_blocks",
    "gauge",
    "Blocks that no pod holds any more and that the exporter remembers, to tell why they are "
    "computed again.",
)

METRICS = (
    CAPACITY_TOKENS, CAPACITY_BYTES, BLOCK_TOKENS, REFERENCED_TOKENS, RESIDENT_TOKENS,
    EVICTABLE_TOKENS, EMPTY_TOKENS, HEADROOM_TOKENS, HEADROOM_SEQUENCES,
    STORED_TOKENS, EVICTED_TOKENS, BLOCK_LIFETIME, REUSE_GAP, COLD_START,
    QUERIED_TOKENS, HIT_TOKENS, ATTAINABLE_TOKENS,
    UNIQUE_TOKENS, DUPLICATE_TOKENS, HELD_TOKENS, MAX_OVER_MEAN, JAIN,
    WINDOW_TOKENS, CONTEXT_RATIO,
    UP, INFO, AGE, STALLED, REQUESTS, PREEMPTIONS, PROCESS_BYTES,
    EVENTS_TRUST, EVENTS_BATCHES, EVENTS_GAPS, EVENTS_LOST, EVENTS_LAG,
    GPU_USED_BYTES, GPU_TOTAL_BYTES, GPU_BUSY,
    SCRAPE_SECONDS, SCRAPE_FAILURES, REMEMBERED,
)  # fmt: skip
