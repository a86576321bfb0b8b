"""The exporter's instruments: its part of the metric catalogue, on a registry of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from kvbench.metrics import exporter
from kvbench.metrics.instruments import Buckets, Counts, Levels

if TYPE_CHECKING:
    from kvbench.metrics.metric import Metric


class Meters:
    """What is shown at `/metrics`.

    Attributes:
        registry: All of it, and what the exporter's own process takes.
        lifetimes: BLOCK_LIFETIME.
        gaps: REUSE_GAP.
        contexts: CONTEXT_RATIO.
        failures: SCRAPE_FAILURES.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.lifetimes = Buckets(exporter.BLOCK_LIFETIME, registry)
        self.gaps = Buckets(exporter.REUSE_GAP, registry)
        self.contexts = Buckets(exporter.CONTEXT_RATIO, registry)
        self.failures = Counts(exporter.SCRAPE_FAILURES, registry)
        counted = {
            exporter.BLOCK_LIFETIME,
            exporter.REUSE_GAP,
            exporter.CONTEXT_RATIO,
            exporter.SCRAPE_FAILURES,
        }
        self._levels = {
            metric: Levels(metric, registry) for metric in exporter.METRICS if metric not in counted
        }
        ProcessCollector(registry=registry)

    def clear(self) -> None:
        """Forget what is set anew for every scrape."""
        for levels in self._levels.values():
            levels.clear()

    def show(self, metric: Metric, *labels: str, value: float | None) -> None:
        """Show a value; what is unknown (None) is absent."""
        if value is not None:
            self._levels[metric].set(*labels, to=value)

    def forget(self, pod: str) -> None:
        """Drop what was counted of a pod that is no more."""
        for instrument in (self.lifetimes, self.gaps, self.contexts, self.failures):
            instrument.forget("pod", pod)
