"""What the router counts: its part of the metric catalogue, on a registry of its own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from kvbench.kvcache.feed import LEVELS
from kvbench.metrics import router
from kvbench.metrics.instruments import Buckets, Counts, Levels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvbench.kvcache.ledger import Ledger
    from kvbench.router.access import Holder
    from kvbench.router.membership import Membership
    from kvbench.router.models import Models
    from kvbench.router.tokens import PromptTokens


class Meters:
    """The router's instruments; each attribute is the catalogue entry of that name.

    Attributes:
        passed_before: Requests to pods that are gone, by how they ended.
    """

    def __init__(self) -> None:  # noqa: PLR0915 - one for each metric
        self.passed_before: Counter[str] = Counter()
        registry = self.registry = CollectorRegistry()
        self.requests = Counts(router.REQUESTS, registry)
        self.decisions = Counts(router.DECISIONS, registry)
        self.prompt_tokens = Counts(router.PROMPT_TOKENS, registry)
        self.predicted_tokens = Counts(router.PREDICTED_TOKENS, registry)
        self.cached_tokens = Counts(router.CACHED_TOKENS, registry)
        self.in_flight = Levels(router.IN_FLIGHT, registry)
        self.others_in_flight = Levels(router.OTHERS_IN_FLIGHT, registry)
        self.pod_up = Levels(router.POD_UP, registry)
        self.retries = Counts(router.RETRIES, registry)
        self.errors = Counts(router.ERRORS, registry)
        self.refusals = Counts(router.REFUSALS, registry)
        self.added_latency = Buckets(router.ADDED_LATENCY, registry)
        self.ttft = Buckets(router.TTFT, registry)
        self.stages = Buckets(router.STAGES, registry)
        self.index_blocks = Levels(router.INDEX_BLOCKS, registry)
        self.index_orphans = Levels(router.INDEX_ORPHANS, registry)
        self.events_trust = Levels(router.EVENTS_TRUST, registry)
        self.events_batches = Levels(router.EVENTS_BATCHES, registry)
        self.events_lag = Levels(router.EVENTS_LAG, registry)
        self.events_gaps = Levels(router.EVENTS_GAPS, registry)
        self.events_lost = Levels(router.EVENTS_LOST, registry)
        self.events_restarts = Levels(router.EVENTS_RESTARTS, registry)
        self.predictions = Counts(router.PREDICTIONS, registry)
        self.prediction_error = Counts(router.PREDICTION_ERROR, registry)
        self.regret = Buckets(router.REGRET, registry)
        self.miscounted = Counts(router.MISCOUNTED, registry)
        self.tokens_known = Levels(router.TOKENS_KNOWN, registry)
        self.shadow_prompt_tokens = Counts(router.SHADOW_PROMPT_TOKENS, registry)
        self.shadow_cached_tokens = Counts(router.SHADOW_CACHED_TOKENS, registry)
        self.shadow_ttft = Buckets(router.SHADOW_TTFT, registry)
        self.breaker = Levels(router.BREAKER, registry)
        self.draining = Levels(router.DRAINING, registry)
        self.model_pods = Levels(router.MODEL_PODS, registry)
        self.source_ok = Levels(router.SOURCE_OK, registry)
        self.queue = Levels(router.QUEUE, registry)
        self.queue_seconds = Buckets(router.QUEUE_SECONDS, registry)
        self.limited = Counts(router.LIMITED, registry)
        self.key_requests = Counts(router.KEY_REQUESTS, registry)
        self.key_in_flight = Levels(router.KEY_IN_FLIGHT, registry)

    def forget_pod(self, pod: str) -> None:
        """Drop what was counted of a pod that is gone: names come and go without end."""
        self.passed_before += by_status(self.requests, pod)
        for instrument in [getattr(self, name) for name in dir(self)]:
            if isinstance(instrument, Counts | Levels | Buckets):
                instrument.forget("pod", pod)

    def read_pods(self, membership: Membership, now: float) -> None:
        """Set what is read off the pods, before a scrape."""
        offered = {pod.name for pod in membership.offered(now)}
        for pod in membership.pods.values():
            self.in_flight.set(pod.name, to=pod.own_in_flight)
            self.others_in_flight.set(pod.name, to=pod.others_in_flight)
            self.pod_up.set(pod.name, to=float(pod.name in offered))
            self.breaker.set(pod.name, to=pod.breaker.state(now))
            self.draining.set(pod.name, to=float(pod.draining))

    def read_models(self, models: Models) -> None:
        """Set how many pods serve each model, before a scrape."""
        self.model_pods.clear()
        for model, pods in models.numbers().items():
            self.model_pods.set(model, to=pods)

    def read_limits(self, holders: Iterable[Holder], waiting: int) -> None:
        """Set what keys have under way and how many requests wait, before a scrape."""
        self.queue.set(to=waiting)
        self.key_in_flight.clear()
        for holder in holders:
            self.key_in_flight.set(holder.name, to=holder.under_way)

    def read_sources(self, troubles: Mapping[str, str | None]) -> None:
        """Set whether each file and each name could be used, before a scrape."""
        for source, trouble in troubles.items():
            self.source_ok.set(source, to=float(trouble is None))

    def read_ledger(self, ledger: Ledger) -> None:
        """Set what is read off the pods' KV events, before a scrape."""
        for pod, streams in ledger.streams.items():
            holdings = ledger.holdings(pod)
            self.index_blocks.set(pod, to=holdings.blocks)
            self.index_orphans.set(pod, to=holdings.parked)
            for level in LEVELS:
                self.events_trust.set(pod, level, to=float(level == holdings.trust.level))
            self.events_lag.set(pod, to=max(stream.lag_s for stream in streams))
            feeds = [stream.feed for stream in streams]
            self.events_batches.set(pod, to=sum(stream.batches for stream in streams))
            self.events_gaps.set(pod, to=sum(feed.gaps for feed in feeds))
            self.events_lost.set(pod, to=sum(feed.lost for feed in feeds))
            self.events_restarts.set(pod, to=sum(feed.restarts for feed in feeds))

    def read_tokens(self, tokens: PromptTokens) -> None:
        """Set which models' tokens are made here, before a scrape."""
        for name, model in tokens.models.items():
            self.tokens_known.set(name, to=float(model.trouble is None))


def by_status(counts: Counts, pod: str | None = None) -> Counter[str]:
    """Return a counter's values by status: those of one pod, or of all but what went to none."""
    found: Counter[str] = Counter()
    for family in counts.collect():
        for sample in family.samples:
            name = sample.labels.get("pod")
            if name == pod if pod is not None else name != "":
                found[sample.labels["status"]] += int(sample.value)
    return found
