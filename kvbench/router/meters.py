"""What the router counts: its part of the metric catalogue, on a registry of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from kvbench.metrics import catalogue
from kvbench.metrics.instruments import Buckets, Counts, Levels

if TYPE_CHECKING:
    from kvbench.router.membership import Membership


class Meters:
    """The router's instruments; each attribute is the catalogue entry of that name."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counts(catalogue.ROUTER_REQUESTS, registry)
        self.decisions = Counts(catalogue.ROUTER_DECISIONS, registry)
        self.prompt_tokens = Counts(catalogue.ROUTER_PROMPT_TOKENS, registry)
        self.predicted_tokens = Counts(catalogue.ROUTER_PREDICTED_TOKENS, registry)
        self.cached_tokens = Counts(catalogue.ROUTER_CACHED_TOKENS, registry)
        self.in_flight = Levels(catalogue.ROUTER_IN_FLIGHT, registry)
        self.pod_up = Levels(catalogue.ROUTER_POD_UP, registry)
        self.retries = Counts(catalogue.ROUTER_RETRIES, registry)
        self.errors = Counts(catalogue.ROUTER_ERRORS, registry)
        self.refusals = Counts(catalogue.ROUTER_REFUSALS, registry)
        self.added_latency = Buckets(catalogue.ROUTER_ADDED_LATENCY, registry)
        self.ttft = Buckets(catalogue.ROUTER_TTFT, registry)

    def read_pods(self, membership: Membership, now: float) -> None:
        """Set what is read off the pods, before a scrape."""
        offered = {pod.name for pod in membership.offered(now)}
        for pod in membership.pods.values():
            self.in_flight.set(pod.name, to=pod.state.in_flight)
            self.pod_up.set(pod.name, to=float(pod.name in offered))
