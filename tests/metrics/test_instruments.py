"""What is counted is what is shown."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvbench.metrics.instruments import Buckets, Counts, Levels
from kvbench.metrics.metric import Metric


def test_a_counter_shows_its_sum_by_label():
    """And 0 before anything happened where there are no labels."""
    registry = CollectorRegistry()
    served = Counts(Metric("x_total", "counter", "Served.", ("pod",)), registry)
    Counts(Metric("y_total", "counter", "Idle."), registry)
    served.add("a")
    served.add("a", by=2)
    served.add("b")

    assert registry.get_sample_value("x_total", {"pod": "a"}) == 3
    assert registry.get_sample_value("x_total", {"pod": "b"}) == 1
    assert registry.get_sample_value("y_total") == 0


def test_a_gauge_shows_its_last_value():
    """By label."""
    registry = CollectorRegistry()
    level = Levels(Metric("z", "gauge", "Level.", ("pod",)), registry)
    level.set("a", to=3)
    level.set("a", to=1)

    assert registry.get_sample_value("z", {"pod": "a"}) == 1


def test_a_histogram_counts_what_is_at_most_each_bound():
    """A value on a bound is within it; what is above all is in +Inf."""
    registry = CollectorRegistry()
    metric = Metric("t_seconds", "histogram", "Times.", ("pod",), (0.1, 1.0))
    times = Buckets(metric, registry)
    for value in (0.05, 0.1, 0.5, 7.0):
        times.observe("a", value=value)

    def bucket(bound):
        return registry.get_sample_value("t_seconds_bucket", {"pod": "a", "le": bound})

    assert [bucket(bound) for bound in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert registry.get_sample_value("t_seconds_count", {"pod": "a"}) == 4
    assert registry.get_sample_value("t_seconds_sum", {"pod": "a"}) == pytest.approx(7.65)


def test_help_and_type_come_from_the_catalogue_entry():
    """As Prometheus reads them."""
    registry = CollectorRegistry()
    Counts(Metric("x_total", "counter", "Served so far."), registry)

    assert generate_latest(registry).decode() == (
        "# HELP x_total Served so far.\n# TYPE x_total counter\nx_total 0.0\n"
    )


def test_what_was_counted_of_somebody_gone_can_be_dropped():
    """Of that label's value only; an instrument without the label loses nothing."""
    registry = CollectorRegistry()
    served = Counts(Metric("x_total", "counter", "Served.", ("how", "pod")), registry)
    level = Levels(Metric("z", "gauge", "Level.", ("pod",)), registry)
    times = Buckets(Metric("t_seconds", "histogram", "Times.", ("pod",), (1.0,)), registry)
    alone = Counts(Metric("y_total", "counter", "All."), registry)
    for pod in ("a", "b"):
        served.add("well", pod)
        level.set(pod, to=1)
        times.observe(pod, value=0.5)
    for instrument in (served, level, times, alone):
        instrument.forget("pod", "a")

    text = generate_latest(registry).decode()
    assert 'pod="a"' not in text
    assert text.count('pod="b"') == 2 + 4
    assert "y_total 0.0" in text
