"""What a simulation leaves behind: a row for each request, and their summary.

A row says what a request should have got; times are virtual seconds. The summary is a fold over
rows and the engines' counters. Hit rates are token-weighted and stand beside their ceiling and the
balance: max ÷ mean over the pods (1 is even), and Jain's index (Σx)² ÷ (n Σx²), which is 1 where
all pods have the same and 1/n where one has everything.

Quantiles are values that occurred: element ⌈q·n⌉ of the sorted ones, as in `kvbench.records.stats`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvbench.metrics import vllm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.engine.scheduler import Engine
    from kvbench.policies.decision import Reason


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request, as played.

    Attributes:
        index: Position in the plan, or number in the log.
        session: Conversation.
        turn: Which turn of it, from 1.
        group: Prefix group.
        pod: Where it was sent.
        reason: Why there.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Of them, found in the pod's cache.
        predicted_tokens: What the policy believed to be cached there.
        ceiling_tokens: What an endless cache would have had.
        completion_tokens: Tokens generated.
        arrival_s: When it arrived.
        ttft_s: Seconds from then to its first token.
        e2e_s: Seconds from then to its last token.
    """

    index: int
    session: str
    turn: int
    group: str
    pod: str
    reason: Reason
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    ceiling_tokens: int
    completion_tokens: int
    arrival_s: float
    ttft_s: float
    e2e_s: float


class Latency(msgspec.Struct, frozen=True):
    """Quantiles of a duration, seconds."""

    p50: float
    p95: float
    p99: float
    max: float


class Balance(msgspec.Struct, frozen=True):
    """How evenly a quantity lies on the pods.

    Attributes:
        max_over_mean: The busiest pod's part ÷ the mean; 1 is even.
        jain: Jain's fairness index: 1 is even, 1/n is all on one of n.
    """

    max_over_mean: float
    jain: float


class PodSummary(msgspec.Struct, kw_only=True):
    """What became of one pod; tokens are prompt tokens."""

    pod: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that it had to compute."""
        return self.prompt_tokens - self.cached_tokens


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A whole simulation.

    Attributes:
        name: Of what was played.
        policy: Who chose.
        requests: Rows.
        prompt_tokens: Of all prompts.
        cached_tokens: Of them, found in a cache.
        hit_rate: Cached ÷ prompt tokens.
        ceiling: The hit rate of an endless cache.
        completion_tokens: Generated.
        evictions: Blocks that lost their content to make room.
        preemptions: Times that a running request lost its blocks.
        resets: Times that all caches were reset.
        resets_refused: Resets that a pod refused, because a block was in use.
        ttft_s: Time to first token.
        e2e_s: Time to last token.
        duration_s: From 0 to the last token.
        request_balance: Of requests over pods.
        uncached_balance: Of uncached prompt tokens over pods.
        pods: One by one.
        metrics: The engines' counters, added up, as vLLM names them.
    """

    name: str
    policy: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    ceiling: float
    completion_tokens: int
    evictions: int
    preemptions: int
    resets: int
    resets_refused: int
    ttft_s: Latency
    e2e_s: Latency
    duration_s: float
    request_balance: Balance
    uncached_balance: Balance
    pods: list[PodSummary]
    metrics: dict[str, int]


def balance_of(parts: Sequence[int]) -> Balance:
    """Return the balance of the pods' parts; where there is nothing, it is even."""
    whole = sum(parts)
    if not whole:
        return Balance(1.0, 1.0)
    squares = sum(part * part for part in parts)
    return Balance(max(parts) * len(parts) / whole, whole * whole / (len(parts) * squares))


def latency_of(seconds: array[float]) -> Latency:
    """Return the quantiles of at least one value."""
    found = np.quantile(np.asarray(seconds), (0.5, 0.95, 0.99, 1.0), method="inverted_cdf")
    return Latency(*map(float, found))


class Tally:
    """Adds rows up."""

    def __init__(self, name: str, policy: str, pods: Sequence[str]) -> None:
        self._name = name
        self._policy = policy
        self._pods = {pod: PodSummary(pod=pod) for pod in pods}
        self._ttft, self._e2e = array("d"), array("d")
        self._ceiling = 0
        self._duration = 0.0
        self.resets = 0
        self.resets_refused = 0

    def add(self, row: Row) -> None:
        """Add a row."""
        pod = self._pods[row.pod]
        pod.requests += 1
        pod.prompt_tokens += row.prompt_tokens
        pod.cached_tokens += row.cached_tokens
        self._ceiling += row.ceiling_tokens
        self._ttft.append(row.ttft_s)
        self._e2e.append(row.e2e_s)
        self._duration = max(self._duration, row.arrival_s + row.e2e_s)

    def summary(self, engines: Sequence[Engine]) -> Summary:
        """Return the summary of at least one row; `engines` in the order of the pods."""
        pods = list(self._pods.values())
        for pod, engine in zip(pods, engines, strict=True):
            pod.evictions = engine.counters.evictions
            pod.preemptions = engine.counters.num_preemptions
        prompt = sum(pod.prompt_tokens for pod in pods)
        cached = sum(pod.cached_tokens for pod in pods)
        metrics = metrics_of(engines)
        return Summary(
            name=self._name,
            policy=self._policy,
            requests=len(self._ttft),
            prompt_tokens=prompt,
            cached_tokens=cached,
            hit_rate=cached / prompt,
            ceiling=self._ceiling / prompt,
            completion_tokens=sum(engine.counters.generation_tokens for engine in engines),
            evictions=sum(pod.evictions for pod in pods),
            preemptions=sum(pod.preemptions for pod in pods),
            resets=self.resets,
            resets_refused=self.resets_refused,
            ttft_s=latency_of(self._ttft),
            e2e_s=latency_of(self._e2e),
            duration_s=self._duration,
            request_balance=balance_of([pod.requests for pod in pods]),
            uncached_balance=balance_of([pod.uncached_tokens for pod in pods]),
            pods=pods,
            metrics=metrics,
        )


def metrics_of(engines: Sequence[Engine]) -> dict[str, int]:
    """Return the engines' counters, added up, by vLLM's names (without `_total`)."""
    counters = [engine.counters for engine in engines]
    parts = {
        vllm.PREFIX_CACHE_QUERIES: [one.prefix_cache_queries for one in counters],
        vllm.PREFIX_CACHE_HITS: [one.prefix_cache_hits for one in counters],
        vllm.PREEMPTIONS: [one.num_preemptions for one in counters],
        vllm.PROMPT_TOKENS: [one.prompt_tokens for one in counters],
        vllm.GENERATION_TOKENS: [one.generation_tokens for one in counters],
    }
    return {metric.name.removesuffix("_total"): sum(values) for metric, values in parts.items()}
