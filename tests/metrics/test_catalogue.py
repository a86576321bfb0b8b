"""Rules for names, which hold for every entry."""

from __future__ import annotations

import re

import pytest

from kvbench.metrics import exporter, router
from kvbench.metrics.catalogue import CATALOGUE

every_entry = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)


@every_entry
def test_a_name_is_ours_and_says_what_it_counts(metric):
    """`kvbench_`, no colon, `_total` for counters only; help is a sentence."""
    assert re.fullmatch(r"kvbench_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help[0].isupper()
    assert metric.help.endswith(".")


@every_entry
def test_buckets_belong_to_histograms_and_rise(metric):
    """Without +Inf, which is always there."""
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_what_is_heard_of_kv_events_is_called_alike_by_exporter_and_router():
    """A query for one is a query for the other, with its prefix; restarts are the router's."""
    heard = {}
    for module, prefix in ((exporter, "kvbench_events_"), (router, "kvbench_router_events_")):
        own = [metric for metric in module.METRICS if metric.name.startswith(prefix)]
        heard[prefix] = {(m.name.removeprefix(prefix), m.kind, m.labels) for m in own}
    of_exporter, of_router = heard.values()
    assert len(of_exporter) == 5
    assert of_router - of_exporter == {("restarts_total", "counter", ("pod",))}
    assert of_exporter <= of_router


def test_no_name_is_given_twice():
    """The catalogue is a table, and the name its key."""
    names = [metric.name for metric in CATALOGUE]

    assert len(names) == len(set(names))
