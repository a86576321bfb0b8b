"""vLLM's metric families, as its release 0.32.0 serves them: names, kinds, labels, buckets.

These are somebody else's names. Only the simulated pod serves them, to be scraped as vLLM is, and
whatever reads a pod (real or not) takes the names from here. Two labels are everywhere but in
`CACHE_CONFIG`: `model_name`, and `engine`, the index of the data-parallel engine as a text.

What the numbers mean, where the name does not say it:

- `KV_CACHE_USAGE` counts *referenced* blocks. Blocks that hold a prefix which nobody uses at the
  moment count as free, so a full cache of an idle pod shows 0.
- `PREFIX_CACHE_QUERIES` and `PREFIX_CACHE_HITS` count tokens, once per request, when it first
  leaves the queue.
- Requests that a client abandons are in no histogram and in no `REQUEST_SUCCESS`.
- Buckets of lengths follow `--max-model-len`: see `length_buckets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvbench.metrics.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE_LABELS = ("model_name", "engine")
"""What nearly every family is labelled with."""

LABEL_VALUES: dict[str, tuple[str, ...]] = {
    "vllm:num_requests_waiting_by_reason": ("capacity", "deferred"),
    "vllm:engine_sleep_state": ("awake", "weights_offloaded", "discard_all"),
    "vllm:prompt_tokens_by_source_total": (
        "local_compute",
        "local_cache_hit",
        "external_kv_transfer",
    ),
    "vllm:prompt_tokens_cached_by_source_total": (
        "device",
        "host",
        "p2p",
        "disk",
        "external_unspecified",
    ),
    "vllm:request_success_total": ("stop", "length", "abort", "error", "repetition"),
    "vllm:admission_rejections_total": ("max_num_queued_reqs", "max_num_queued_tokens"),
}
"""Values of a family's third label; all of them are served, from the first scrape on."""

_TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_ITERATION_BUCKETS = (1.0, *(float(2**power) for power in range(3, 15)))


def length_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, … up to `max_model_len`."""
    buckets: list[float] = []
    decade = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * decade > max_model_len:
                return tuple(buckets)
            buckets.append(float(mantissa * decade))
        decade *= 10


def _family(
    kind: Literal["counter", "gauge", "histogram"],
    name: str,
    text: str,
    *labels: str,
    buckets: tuple[float, ...] = (),
) -> Metric:
    """Return a family of an engine."""
    return Metric(f"vllm:{name}", kind, text, (*ENGINE_LABELS, *labels), buckets)


REQUESTS_RUNNING = _family("gauge", "num_requests_running", "Requests in the batch.")
REQUESTS_WAITING = _family("gauge", "num_requests_waiting", "Requests in the queue.")
WAITING_BY_REASON = _family(
    "gauge",
    "num_requests_waiting_by_reason",
    "Requests in the queue, by what they wait for: capacity, or something passing (deferred).",
    "reason",
)
SLEEP_STATE = _family(
    "gauge", "engine_sleep_state", "1 for the state the engine is in.", "sleep_state"
)
KV_CACHE_USAGE = _family(
    "gauge", "kv_cache_usage_perc", "Share of the KV blocks that requests reference, 0 to 1."
)
PREFIX_CACHE_QUERIES = _family(
    "counter", "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."
)
PREFIX_CACHE_HITS = _family(
    "counter", "prefix_cache_hits_total", "Prompt tokens found in the prefix cache."
)
PREEMPTIONS = _family(
    "counter", "num_preemptions_total", "Times that a running request lost its blocks."
)
PROMPT_TOKENS = _family("counter", "prompt_tokens_total", "Prompt tokens, cached ones included.")
PROMPT_TOKENS_BY_SOURCE = _family(
    "counter", "prompt_tokens_by_source_total", "Prompt tokens by where they came from.", "source"
)
PROMPT_TOKENS_CACHED = _family(
    "counter", "prompt_tokens_cached_total", "Prompt tokens that were not computed."
)
PROMPT_TOKENS_CACHED_BY_SOURCE = _family(
    "counter",
    "prompt_tokens_cached_by_source_total",
    "Prompt tokens that were not computed, by the tier that had them.",
    "source",
)
GENERATION_TOKENS = _family("counter", "generation_tokens_total", "Tokens generated.")
REQUEST_SUCCESS = _family(
    "counter", "request_success_total", "Requests that ended, by why.", "finished_reason"
)
ADMISSION_REJECTIONS = Metric(
    "vllm:admission_rejections_total",
    "counter",
    "Requests refused because the queue was full, by which limit.",
    ("model_name", "reason"),
)
ITERATION_TOKENS = _family(
    "histogram",
    "iteration_tokens_total",
    "Tokens that one step computed and generated.",
    buckets=_ITERATION_BUCKETS,
)
REQUEST_N = _family(
    "histogram",
    "request_params_n",
    "Answers asked for per request.",
    buckets=(1.0, 2.0, 5.0, 10.0, 20.0),
)
TTFT = _family(
    "histogram",
    "time_to_first_token_seconds",
    "Seconds from arrival to the first token.",
    buckets=_TTFT_BUCKETS,
)
ITL = _family(
    "histogram",
    "inter_token_latency_seconds",
    "Seconds between a request's successive outputs.",
    buckets=_ITL_BUCKETS,
)
TPOT = _family(
    "histogram",
    "request_time_per_output_token_seconds",
    "Mean seconds per token after the first, per request.",
    buckets=_ITL_BUCKETS,
)
E2E = _family(
    "histogram",
    "e2e_request_latency_seconds",
    "Seconds from arrival to the last token.",
    buckets=_REQUEST_BUCKETS,
)
QUEUE_TIME = _family(
    "histogram",
    "request_queue_time_seconds",
    "Seconds in the queue.",
    buckets=_REQUEST_BUCKETS,
)
INFERENCE_TIME = _family(
    "histogram",
    "request_inference_time_seconds",
    "Seconds from leaving the queue to the last token.",
    buckets=_REQUEST_BUCKETS,
)
PREFILL_TIME = _family(
    "histogram",
    "request_prefill_time_seconds",
    "Seconds from leaving the queue to the first token.",
    buckets=_REQUEST_BUCKETS,
)
DECODE_TIME = _family(
    "histogram",
    "request_decode_time_seconds",
    "Seconds from the first token to the last.",
    buckets=_REQUEST_BUCKETS,
)
REQUEST_PREEMPTIONS = _family(
    "histogram",
    "request_num_preemptions",
    "Times that a request was preempted.",
    buckets=(1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
)

# Lengths; their buckets depend on the pod (`families`).
REQUEST_PROMPT_TOKENS = _family("histogram", "request_prompt_tokens", "Prompt tokens per request.")
REQUEST_GENERATION_TOKENS = _family(
    "histogram", "request_generation_tokens", "Tokens generated per request."
)
REQUEST_MAX_GENERATION_TOKENS = _family(
    "histogram",
    "request_max_num_generation_tokens",
    "Tokens generated by the longest of a request's answers.",
)
REQUEST_MAX_TOKENS = _family(
    "histogram", "request_params_max_tokens", "Tokens asked for per request."
)
REQUEST_COMPUTED_TOKENS = _family(
    "histogram",
    "request_prefill_kv_computed_tokens",
    "Prompt tokens computed per request, cached ones excluded.",
)

CACHE_CONFIG = Metric(
    "vllm:cache_config_info",
    "gauge",
    "The cache's settings, as labels; always 1.",
    (
        "_block_size_resolved", "block_size", "cache_dtype", "cache_hit_alignment_tokens",
        "effective_attention_block_size", "enable_mamba_shared_prefix_checkpoint",
        "enable_prefix_caching", "engine", "gpu_memory_utilization", "hash_block_size",
        "is_attention_free", "kv_cache_dtype_skip_layers", "kv_cache_layout",
        "kv_cache_max_concurrency", "kv_cache_memory_bytes", "kv_cache_size_tokens",
        "kv_offloading_backend", "kv_offloading_size", "kv_sharing_fast_prefill",
        "mamba_block_size", "mamba_cache_dtype", "mamba_cache_mode", "mamba_page_size_padded",
        "mamba_ssm_cache_dtype", "num_cpu_blocks", "num_gpu_blocks", "num_gpu_blocks_override",
        "prefix_cache_retention_interval", "prefix_caching_hash_algo", "prefix_match_unit",
        "replayssm_buffer_len", "skip_page_size_padded", "sliding_window", "swa_bounded_replay",
        "use_kda_recoverssm", "use_replayssm", "user_specified_block_size",
    ),
)  # fmt: skip

_IDLE = tuple(
    _family("counter", f"{name}_total", text)
    for name, text in (
        ("estimated_flops_per_gpu", "Floating point operations; 0 unless the engine estimates."),
        ("estimated_read_bytes_per_gpu", "Bytes read; 0 unless the engine estimates."),
        ("estimated_write_bytes_per_gpu", "Bytes written; 0 unless the engine estimates."),
        ("external_prefix_cache_queries", "Prompt tokens looked up in other engines' caches."),
        ("external_prefix_cache_hits", "Prompt tokens found in other engines' caches."),
        ("mm_cache_queries", "Multimodal items looked up."),
        ("mm_cache_hits", "Multimodal items found."),
    )
)
"""Families that stay at 0 on a pod without the feature they count."""

_LENGTHS = (
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    REQUEST_MAX_GENERATION_TOKENS,
    REQUEST_MAX_TOKENS,
    REQUEST_COMPUTED_TOKENS,
)

_OTHERS = (
    REQUESTS_RUNNING, REQUESTS_WAITING, WAITING_BY_REASON, SLEEP_STATE, KV_CACHE_USAGE,
    PREFIX_CACHE_QUERIES, PREFIX_CACHE_HITS, PREEMPTIONS, PROMPT_TOKENS, PROMPT_TOKENS_BY_SOURCE,
    PROMPT_TOKENS_CACHED, PROMPT_TOKENS_CACHED_BY_SOURCE, GENERATION_TOKENS, REQUEST_SUCCESS,
    ADMISSION_REJECTIONS, ITERATION_TOKENS, REQUEST_N, TTFT, ITL, TPOT, E2E, QUEUE_TIME,
    INFERENCE_TIME, PREFILL_TIME, DECODE_TIME, REQUEST_PREEMPTIONS, CACHE_CONFIG,
)  # fmt: skip


def families(max_model_len: int) -> Iterator[Metric]:
    """Yield every family, those of lengths with the buckets of a pod of that `max_model_len`."""
    yield from _IDLE
    yield from _OTHERS
    buckets = length_buckets(max_model_len)
    for metric in _LENGTHS:
        yield Metric(metric.name, metric.kind, metric.help, metric.labels, buckets)
