"""What the pod tells at /metrics: vLLM's families, counted as vLLM counts them.

Times are those of the engine's own time line, so they are what the model of the hardware says, not
what this machine added. Counters move when a step's tokens are handed out. A request that a client
abandoned has its prompt and its tokens counted, and stands in no histogram.

The exposition is always the plain text format with the colons that the names have, whatever a
scraper would rather have: in OpenMetrics the client library writes `vllm_…`, and every query for
`vllm:…` would find nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client import Metric as Family
from prometheus_client.exposition import generate_latest

from kvbench.metrics import pod, vllm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvbench.engine.scheduler import Engine
    from kvbench.engine.values import StepResult
    from kvbench.metrics.metric import Metric
    from kvbench.pod.driver import Lateness

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` observations of `value`; a time under 0 is one of 0.

        An engine that runs behind the clock dates a token before the request that arrived
        meanwhile. A sum that falls would be a restart to whoever scrapes it, and any rate of it
        nonsense.
        """
        value = max(value, 0.0)
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield suffix, labels and value of each sample, as they are exposed."""
        bounds = [*map(str, self._bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield "_bucket", {"le": bound}, float(count)
        yield "_count", {}, float(sum(self._counts))
        yield "_sum", {}, self._sum


@dataclass(slots=True)
class RequestTimes:
    """One sequence on its way through the engine; moments on the engine's time line.

    Attributes:
        arrival: When the request came.
        prompt_tokens: Of its prompt.
        max_tokens: Asked for.
        scheduled: When it first left the queue; until then, when it came.
        first: When its first token was due.
        last: When its latest token was due.
        tokens: How many so far.
        cached: Prompt tokens found in the cache.
        preemptions: Times that it lost its blocks.
    """

    arrival: float
    prompt_tokens: int
    max_tokens: int
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    cached: int = 0
    preemptions: int = 0


class PodMetrics:
    """Counts, and is scraped.

    Args:
        engine: Whose gauges are read when scraped.
        lateness: Of its steps.
        model: Value of `model_name`.
        config: Labels of the cache's settings.
        created: Calendar seconds at which the counters began.
    """

    def __init__(
        self,
        engine: Engine,
        lateness: Lateness,
        model: str,
        *,
        config: Mapping[str, str],
        created: float,
    ) -> None:
        self._engine = engine
        self._lateness = lateness
        self._config = {name: config.get(name, "None") for name in vllm.CACHE_CONFIG.labels}
        self._labels = {"engine": "0", "model_name": model}
        self._created = created
        self._families = tuple(vllm.families(engine.config.max_model_len))
        self._counters: dict[tuple[str, str], float] = {}
        self._histograms = {
            metric.name: Histogram(metric.buckets)
            for metric in self._families
            if metric.kind == "histogram"
        }
        self._live: dict[str, RequestTimes] = {}
        self._queued: set[str] = set()
        self._gaps: dict[float, int] = {}
        self._generated = self._computed = 0

    def arrived(self, request_id: str, times: RequestTimes) -> None:
        """Take note of a sequence that was queued."""
        self._live[request_id] = times
        self._queued.add(request_id)

    def token(self, request_id: str, due: float, cached: int) -> None:
        """Count one token of a sequence."""
        times = self._live[request_id]
        times.tokens += 1
        self._generated += 1
        if times.tokens == 1:
            times.first, times.cached = due, cached
            self._prefilled(times)
        else:
            gap = due - times.last
            self._gaps[gap] = self._gaps.get(gap, 0) + 1
        times.last = due

    def finished(self, request_id: str, reason: str) -> None:
        """Count a sequence that ended by itself."""
        times = self._live.pop(request_id)
        self._count(vllm.REQUEST_SUCCESS, 1, reason)
        decode = times.last - times.first
        observe = self._observe
        observe(vllm.E2E, times.last - times.arrival)
        observe(vllm.QUEUE_TIME, times.scheduled - times.arrival)
        observe(vllm.PREFILL_TIME, times.first - times.scheduled)
        observe(vllm.INFERENCE_TIME, times.last - times.scheduled)
        observe(vllm.DECODE_TIME, decode)
        observe(vllm.TPOT, decode / (times.tokens - 1) if times.tokens > 1 else 0.0)
        observe(vllm.REQUEST_PREEMPTIONS, times.preemptions)
        observe(vllm.REQUEST_COMPUTED_TOKENS, times.prompt_tokens - times.cached)
        observe(vllm.REQUEST_PROMPT_TOKENS, times.prompt_tokens)
        observe(vllm.REQUEST_GENERATION_TOKENS, times.tokens)
        observe(vllm.REQUEST_MAX_TOKENS, times.max_tokens)

    def answered(self, n: int, longest: int) -> None:
        """Count a prompt that got all its answers: how many, and tokens of the longest."""
        self._observe(vllm.REQUEST_N, n)
        self._observe(vllm.REQUEST_MAX_GENERATION_TOKENS, longest)

    def abandoned(self, request_id: str) -> None:
        """Forget a sequence whose client has left."""
        self._live.pop(request_id, None)
        self._queued.discard(request_id)

    def step_began(self, result: StepResult) -> None:
        """Take note of who left the queue, and of who was sent back to it."""
        for request_id in self._queued.intersection(result.scheduled_tokens):
            times = self._live[request_id]
            times.scheduled = max(result.began, times.arrival)
            self._queued.discard(request_id)
        for request_id in result.preempted:
            if request_id in self._live:
                self._live[request_id].preemptions += 1

    def step_done(self, result: StepResult) -> None:  # noqa: ARG002 - all was told before
        """Count what the step did as a whole."""
        for gap, times in self._gaps.items():
            self._histograms[vllm.ITL.name].observe(gap, times)
        self._gaps.clear()
        self._count(vllm.GENERATION_TOKENS, self._generated)
        self._observe(vllm.ITERATION_TOKENS, self._computed + self._generated)
        self._generated = self._computed = 0
        counters = self._engine.counters
        self._counters[vllm.PREFIX_CACHE_QUERIES.name, ""] = counters.prefix_cache_queries
        self._counters[vllm.PREFIX_CACHE_HITS.name, ""] = counters.prefix_cache_hits
        self._counters[vllm.PREEMPTIONS.name, ""] = counters.num_preemptions

    def exposition(self) -> bytes:
        """Return the text of a scrape."""
        return bytes(generate_latest(self))

    def collect(self) -> Iterator[Family]:
        """Yield every family with its samples, as the client library wants them."""
        for collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR):
            yield from map(self._begun, collector.collect())
        for metric in self._families:
            yield self._histogram(metric) if metric.kind == "histogram" else self._plain(metric)
        yield from self._own()

    def _begun(self, family: Family) -> Family:
        """Let the process have begun with the counters: what is restarted in it looks restarted."""
        if family.name == "process_start_time_seconds":
            begun = Family(family.name, family.documentation, family.type)
            begun.add_sample(family.name, {}, max(self._created, family.samples[0].value))
            return begun
        return family

    def _own(self) -> Iterator[Family]:
        """Yield what the pod tells about itself."""
        late, pool = self._lateness, self._engine.pool
        values = {
            pod.STEPS: late.steps,
            pod.LATE_SECONDS: late.total_s,
            pod.WORST_LATE_SECONDS: late.worst_s,
            pod.TIMELINE_JUMPS: late.jumps,
            pod.EVICTIONS: pool.evictions,
            pod.CACHED_BLOCKS: pool.resident,
        }
        for metric, value in values.items():
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            family.add_sample(metric.name, {}, float(value))
            yield family

    def _prefilled(self, times: RequestTimes) -> None:
        """Count a prompt, now that it is computed."""
        computed = times.prompt_tokens - times.cached
        self._computed += computed
        self._count(vllm.PROMPT_TOKENS, times.prompt_tokens)
        self._count(vllm.PROMPT_TOKENS_BY_SOURCE, computed, "local_compute")
        self._count(vllm.PROMPT_TOKENS_BY_SOURCE, times.cached, "local_cache_hit")
        self._count(vllm.PROMPT_TOKENS_CACHED, times.cached)
        self._count(vllm.PROMPT_TOKENS_CACHED_BY_SOURCE, times.cached, "device")
        self._observe(vllm.TTFT, times.first - times.arrival)

    def _count(self, metric: Metric, amount: float, label: str = "") -> None:
        """Add to a counter."""
        key = metric.name, label
        self._counters[key] = self._counters.get(key, 0.0) + amount

    def _observe(self, metric: Metric, value: float) -> None:
        """Add to a histogram."""
        self._histograms[metric.name].observe(value)

    def _gauge(self, name: str, label: str) -> float:
        """Return a gauge's value now."""
        waiting = self._engine.waiting
        values = {
            (vllm.REQUESTS_RUNNING.name, ""): self._engine.running,
            (vllm.REQUESTS_WAITING.name, ""): waiting,
            (vllm.WAITING_BY_REASON.name, "capacity"): waiting,
            (vllm.SLEEP_STATE.name, "awake"): 1,
            (vllm.KV_CACHE_USAGE.name, ""): self._engine.kv_cache_usage,
            (vllm.CACHE_CONFIG.name, ""): 1,
        }
        return float(values.get((name, label), 0))

    def _histogram(self, metric: Metric) -> Family:
        """Return a histogram's family."""
        family = Family(metric.name, metric.help, "histogram")
        for suffix, labels, value in self._histograms[metric.name].samples():
            family.add_sample(metric.name + suffix, self._labels | labels, value)
        family.add_sample(metric.name + "_created", self._labels, self._created)
        return family

    def _plain(self, metric: Metric) -> Family:
        """Return the family of a counter or gauge."""
        base = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        family = Family(base, metric.help, metric.kind)
        for value in vllm.LABEL_VALUES.get(metric.name, ("",)):
            labels = self._labels_of(metric, value)
            if metric.kind == "gauge":
                family.add_sample(metric.name, labels, self._gauge(metric.name, value))
                continue
            family.add_sample(metric.name, labels, self._counters.get((metric.name, value), 0.0))
            family.add_sample(f"{base}_created", labels, self._created)
        return family

    def _labels_of(self, metric: Metric, value: str) -> dict[str, str]:
        """Return the labels of one sample."""
        if metric is vllm.CACHE_CONFIG:
            return self._config | {"engine": "0"}
        labels = self._labels | ({metric.labels[-1]: value} if value else {})
        return {name: labels[name] for name in metric.labels}
