"""`/metrics` of the master: the sums of the run that is on, in Prometheus' words.

Families are made when they are asked for, from `kvbench.load.live.Live` and the catalogue's
entries; nothing is counted twice. Buckets of histograms are read off the 2 % buckets of the sums:
a sample that may be above a bound counts as above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kvbench.load.distribution import Distribution
from kvbench.load.tally import Cell
from kvbench.metrics import load
from kvbench.records.schema import CONTEXTS
from kvbench.text.degeneration import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric as Family

    from kvbench.load.live import Live
    from kvbench.metrics.metric import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class LoadCollector(Collector):
    """Collects from a live run.

    Args:
        live: The run.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    def collect(self) -> Iterator[Family]:
        """Yield all families of `kvbench.metrics.load`."""
        live, total = self._live, self._live.total
        run = InfoMetricFamily(load.RUN.name.removesuffix("_info"), load.RUN.help)
        run.add_metric((), {"run": live.run, "workload": live.workload, "target": live.target})
        yield run
        yield _gauge(load.RUNNING, {(): float(live.running)})
        yield _gauge(load.PLANNED_TURNS, {(): live.planned})
        yield _counter(load.FILED_TURNS, {(k,): n for k, n in total.outcomes.items()})
        workers = live.workers.values()
        yield _counter(load.DUE_TURNS, {(): sum(worker.due for worker in workers)})
        yield _counter(load.BEGUN_TURNS, {(): sum(worker.begun for worker in workers)})
        yield _gauge(load.IN_FLIGHT, {(): live.in_flight})
        for metric, field in (
            (load.SENT_TURNS, "turns"),
            (load.PROMPT_TOKENS, "prompt_tokens"),
            (load.CACHED_TOKENS, "cached_tokens"),
            (load.PLANNED_TOKENS, "planned_tokens"),
            (load.CEILING_TOKENS, "ceiling_tokens"),
            (load.COMPLETION_TOKENS, "completion_tokens"),
        ):
            yield _counter(metric, {(pod,): getattr(c, field) for pod, c in total.pods.items()})
        first, later = total.turns.get(1, Cell()).ttft, Distribution()
        for turn, cell in total.turns.items():
            if turn > 1:
                later.merge(cell.ttft)
        yield _histogram(load.TTFT, {("first",): first, ("later",): later})
        yield _histogram(load.ITL, {(): total.all.itl})
        yield _histogram(load.LATENESS, {(): total.all.lateness})
        yield _counter(load.JUDGED, {(c,): total.judged.get(c, 0) for c in CONTEXTS})
        found = {(k, c): total.degenerate.get((k, c), 0) for k in KINDS for c in CONTEXTS}
        yield _counter(load.DEGENERATE, {(k, c): n for (k, c), n in found.items()})
        named = live.workers.items()
        yield _counter(load.CPU, {(name,): worker.cpu_s for name, worker in named})
        yield _gauge(load.LOOP_DELAY, {(name,): worker.loop_delay_s for name, worker in named})


def exposition(live: Live) -> bytes:
    """Return the text that a scraper gets."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LoadCollector(live))
    text: bytes = generate_latest(registry)
    return text


def _counter(metric: Metric, values: Mapping[tuple[str, ...], float]) -> Family:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(metric: Metric, values: Mapping[tuple[str, ...], float]) -> Family:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, values: Mapping[tuple[str, ...], Distribution]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, samples in values.items():
        bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
        below = [*samples.at_most(metric.buckets), samples.count]
        family.add_metric(labels, list(zip(bounds, below, strict=True)), samples.total)
    return family
