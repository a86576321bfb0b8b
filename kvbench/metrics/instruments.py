"""Catalogue entries made into things that count, and shown by `prometheus_client` when scraped.

Rules: an instrument is made from its `Metric` and nothing else, so no name, label or bucket is
written twice, and no process-wide registry is touched. Counting is a dict and an addition: the
library's own instruments take a lock per increment and cost ten times as much, which a router that
counts seven things per request can feel. So an instrument belongs to one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

    from kvbench.metrics.metric import Metric

V = TypeVar("V")


class Counts(Collector):
    """A counter."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        assert metric.kind == "counter", metric
        self._metric = metric
        self._values: dict[tuple[str, ...], float] = {} if metric.labels else {(): 0.0}
        registry.register(self)

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count `by` under these label values."""
        self._values[labels] = self._values.get(labels, 0.0) + by

    def forget(self, label: str, value: str) -> None:
        """Drop what was counted under this value of this label, if there is such a label."""
        _drop(self._metric, self._values, label, value)

    def collect(self) -> Iterator[Family]:
        """Yield the family as it stands."""
        family = CounterMetricFamily(
            self._metric.name, self._metric.help, labels=self._metric.labels
        )
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Levels(Collector):
    """A gauge, or a counter that somebody else counts: its values are set."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        assert metric.kind in {"gauge", "counter"}, metric
        self._metric = metric
        self._values: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def set(self, *labels: str, to: float) -> None:
        """Set the value under these label values."""
        self._values[labels] = to

    def clear(self) -> None:
        """Forget all values: what is not set again is absent."""
        self._values.clear()

    def forget(self, label: str, value: str) -> None:
        """Drop what was set under this value of this label, if there is such a label."""
        _drop(self._metric, self._values, label, value)

    def collect(self) -> Iterator[Family]:
        """Yield the family as it stands."""
        kind = GaugeMetricFamily if self._metric.kind == "gauge" else CounterMetricFamily
        family = kind(self._metric.name, self._metric.help, labels=self._metric.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Buckets(Collector):
    """A histogram."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        assert metric.kind == "histogram", metric
        self._metric = metric
        self._bounds = metric.buckets
        self._counts: dict[tuple[str, ...], list[float]] = {}  # by bucket; the sum comes last
        if not metric.labels:
            self._begin(())
        registry.register(self)

    def observe(self, *labels: str, value: float, times: int = 1) -> None:
        """Count `value` in its bucket under these label values."""
        counts = self._counts.get(labels) or self._begin(labels)
        counts[bisect_left(self._bounds, value)] += times
        counts[-1] += value * times

    def forget(self, label: str, value: str) -> None:
        """Drop what was counted under this value of this label, if there is such a label."""
        _drop(self._metric, self._counts, label, value)

    def _begin(self, labels: tuple[str, ...]) -> list[float]:
        counts = self._counts[labels] = [0.0] * (len(self._bounds) + 2)
        return counts

    def collect(self) -> Iterator[Family]:
        """Yield the family as it stands; buckets count what is at most their bound."""
        bounds = [*map(floatToGoString, self._metric.buckets), "+Inf"]
        family = HistogramMetricFamily(
            self._metric.name, self._metric.help, labels=self._metric.labels
        )
        for labels, (*counts, total) in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric(labels, buckets, total)
        yield family


def _drop(
    metric: Metric, values: MutableMapping[tuple[str, ...], V], label: str, value: str
) -> None:
    """Drop the values whose label of that name has that value."""
    if label in metric.labels:
        at = metric.labels.index(label)
        for labels in [labels for labels in values if labels[at] == value]:
            del values[labels]
