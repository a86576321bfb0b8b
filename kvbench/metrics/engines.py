"""What kvbench reads off an engine, whichever engine it is: each quantity once, with its names.

vLLM's current names are in `kvbench.metrics.vllm`; here they stand beside what earlier releases
called the same thing, and beside SGLang's. A quantity that an engine does not have has no name
there. On the wire a colon may have become an underscore: `spellings` gives both.

What is the same by name and not by meaning is left out on purpose: SGLang's `cache_hit_rate` is of
its latest batch alone, and vLLM's `gpu_prefix_cache_hit_rate` of a thousand requests or so.

SGLang's schedulers may all report (`tp_rank`); only rank 0 is read, for they say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvbench.metrics import vllm
from kvbench.metrics.metric import Metric

ENGINES = ("vllm", "sglang")
"""Those that are known; a name's part before the colon says which one it is of."""

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "info"]

_SGLANG = ("model_name", "tp_rank")
_SGLANG_SECONDS = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0,
    200.0, 400.0,
)  # fmt: skip
_SGLANG_GAPS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1,
    0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that engines tell.

    Attributes:
        word: What kvbench calls it.
        help: What it is.
        metrics: The families that hold it, all of one kind: vLLM's, the newest first, then
            SGLang's.
    """

    word: str
    help: str
    metrics: tuple[Metric, ...]

    @property
    def kind(self) -> Kind:
        """The Prometheus type."""
        return self.metrics[0].kind

    @property
    def names(self) -> tuple[str, ...]:
        """Its names everywhere, vLLM's current one first."""
        return tuple(metric.name for metric in self.metrics)

    def of(self, engine: str) -> tuple[str, ...]:
        """Return what one engine calls it; names without a colon are everybody's."""
        return tuple(name for name in self.names if engine_of(name) in {engine, ""})


def engine_of(name: str) -> str:
    """Return which engine's a name is, "" if anybody's."""
    prefix, colon, _ = name.partition(":")
    return prefix if colon else ""


def spellings(name: str) -> tuple[str, ...]:
    """Return a name as it may be on the wire: with its colon, and with an underscore instead."""
    return (name, name.replace(":", "_")) if ":" in name else (name,)


def _of(
    word: str,
    metric: Metric,
    *older: str,
    sglang: str = "",
    sglang_buckets: tuple[float, ...] = (),
) -> Quantity:
    """Return a quantity that vLLM has today, with its older names and SGLang's."""
    names = [f"vllm:{name}" for name in older]
    metrics = [
        metric,
        *(Metric(name, metric.kind, metric.help, metric.labels, metric.buckets) for name in names),
    ]
    if sglang:
        metrics.append(
            Metric(f"sglang:{sglang}", metric.kind, metric.help, _SGLANG, sglang_buckets)
        )
    return Quantity(word, metric.help, tuple(metrics))


def _only(word: str, name: str, kind: Kind, text: str, *labels: str) -> Quantity:
    """Return a quantity that has one name."""
    return Quantity(word, text, (Metric(name, kind, text, labels),))


RUNNING = _of("running", vllm.REQUESTS_RUNNING, sglang="num_running_reqs")
WAITING = _of("waiting", vllm.REQUESTS_WAITING, sglang="num_queue_reqs")
USAGE = _of("usage", vllm.KV_CACHE_USAGE, "gpu_cache_usage_perc", sglang="token_usage")
QUERIES = _of(
    "queries",
    vllm.PREFIX_CACHE_QUERIES,
    "gpu_prefix_cache_queries_total",
    sglang="prompt_tokens_total",
)
HITS = _of(
    "hits", vllm.PREFIX_CACHE_HITS, "gpu_prefix_cache_hits_total", sglang="cached_tokens_total"
)
PROMPT_TOKENS = _of("prompt_tokens", vllm.PROMPT_TOKENS, sglang="prompt_tokens_total")
GENERATION_TOKENS = _of(
    "generation_tokens", vllm.GENERATION_TOKENS, sglang="generation_tokens_total"
)
PREEMPTIONS = _of("preemptions", vllm.PREEMPTIONS, sglang="num_retracted_requests_total")
REQUESTS = _of("requests", vllm.REQUEST_SUCCESS, sglang="num_requests_total")
CACHE_CONFIG = _of("cache_config", vllm.CACHE_CONFIG)
PROMPT_LENGTHS = _of("prompt_lengths", vllm.REQUEST_PROMPT_TOKENS, sglang="prompt_tokens_histogram")
ANSWER_LENGTHS = _of(
    "answer_lengths", vllm.REQUEST_GENERATION_TOKENS, sglang="generation_tokens_histogram"
)
TTFT = _of("ttft", vllm.TTFT, sglang="time_to_first_token_seconds", sglang_buckets=_SGLANG_SECONDS)
ITL = _of(
    "itl",
    vllm.ITL,
    "time_per_output_token_seconds",
    sglang="inter_token_latency_seconds",
    sglang_buckets=_SGLANG_GAPS,
)
E2E = _of(
    "e2e",
    vllm.E2E,
    sglang="e2e_request_latency_seconds",
    sglang_buckets=(*_SGLANG_SECONDS, 600.0, 1200.0, 1800.0, 2400.0),
)
QUEUE_TIME = _of("queue_time", vllm.QUEUE_TIME, sglang="queue_time_seconds")
CAPACITY = _only(
    "capacity", "sglang:max_total_num_tokens", "gauge", "Tokens that the cache holds.", *_SGLANG
)
PAGE_SIZE = _only("page_size", "sglang:page_size", "gauge", "Tokens per block.", *_SGLANG)
WINDOW = _only("window", "sglang:context_len", "gauge", "Tokens of the longest request.", *_SGLANG)
USED_TOKENS = _only(
    "used_tokens", "sglang:kv_used_tokens", "gauge", "Tokens that requests use.", *_SGLANG
)
EVICTABLE_TOKENS = _only(
    "evictable_tokens",
    "sglang:kv_evictable_tokens",
    "gauge",
    "Cached tokens that nobody uses.",
    *_SGLANG,
)
EVICTED_TOKENS = _only(
    "evicted_tokens", "sglang:evicted_tokens_total", "counter", "Tokens evicted.", *_SGLANG
)
BLOCK_LIFETIME = _only(
    "block_lifetime",
    "vllm:kv_block_lifetime_seconds",
    "histogram",
    "Life of sampled blocks; only with --kv-cache-metrics.",
    *vllm.ENGINE_LABELS,
)
BLOCK_REUSE_GAP = _only(
    "block_reuse_gap",
    "vllm:kv_block_reuse_gap_seconds",
    "histogram",
    "Seconds between uses of sampled blocks; only with --kv-cache-metrics.",
    *vllm.ENGINE_LABELS,
)
STARTED = _only("started", "process_start_time_seconds", "gauge", "When the process began.")
PROCESS_BYTES = _only("process_bytes", "process_resident_memory_bytes", "gauge", "Resident memory.")

QUANTITIES = (
    RUNNING, WAITING, USAGE, QUERIES, HITS, PROMPT_TOKENS, GENERATION_TOKENS, PREEMPTIONS, REQUESTS,
    CACHE_CONFIG, PROMPT_LENGTHS, ANSWER_LENGTHS, TTFT, ITL, E2E, QUEUE_TIME,
    CAPACITY, PAGE_SIZE, WINDOW, USED_TOKENS, EVICTABLE_TOKENS, EVICTED_TOKENS,
    BLOCK_LIFETIME, BLOCK_REUSE_GAP, STARTED, PROCESS_BYTES,
)  # fmt: skip
"""All of them."""
