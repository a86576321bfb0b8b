"""What the router counts: its part of the metric catalogue, on a registry of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from kvbench.metrics import router
from kvbench.metrics.instruments import Buckets, Counts, Levels

if TYPE_CHECKING:
    from kvbench.router.membership import Membership


class Meters:
    """The router's instruments; each attribute is the catalogue entry of that name."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counts(router.REQUESTS, registry)
        self.decisions = Counts(router.DECISIONS, registry)
        self.prompt_tokens = Counts(router.PROMPT_TOKENS, registry)
        self.predicted_tokens = Counts(router.PREDICTED_TOKENS, registry)
        self.cached_tokens = Counts(router.CACHED_TOKENS, registry)
        self.in_flight = Levels(router.IN_FLIGHT, registry)
        self.pod_up = Levels(router.POD_UP, registry)
        self.retries = Counts(router.RETRIES, registry)
        self.errors = Counts(router.ERRORS, registry)
        self.refusals = Counts(router.REFUSALS, registry)
        self.added_latency = Buckets(router.ADDED_LATENCY, registry)
        self.ttft = Buckets(router.TTFT, registry)

    def forget_pod(self, pod: str) -> None:
        """Drop what was counted of a pod that is gone: names come and go without end."""
        for instrument in vars(self).values():
            if isinstance(instrument, Counts | Levels | Buckets):
                instrument.forget("pod", pod)

    def read_pods(self, membership: Membership, now: float) -> None:
        """Set what is read off the pods, before a scrape."""
        offered = {pod.name for pod in membership.offered(now)}
        for pod in membership.pods.values():
            self.in_flight.set(pod.name, to=pod.state.in_flight)
            self.pod_up.set(pod.name, to=float(pod.name in offered))
