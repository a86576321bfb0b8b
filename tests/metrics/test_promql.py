"""PromQL idioms, each against a fault that is seen in the wild."""

from __future__ import annotations

import pytest

from kvbench.metrics import engines, router, vllm
from kvbench.metrics.promql import (
    bound,
    gauge,
    increase,
    mean,
    panel_id,
    quantile,
    rate,
    ratio,
    resets,
    selector,
    within,
)


def test_one_name_is_selected_plainly_and_several_by_one_matcher():
    """So that a panel shows a fleet of either engine."""
    assert selector(router.POD_UP, 'pod="a"') == 'kvbench_router_pod_up{pod="a"}'
    assert selector(engines.WAITING, 'job="x"') == (
        '{__name__=~"vllm:num_requests_waiting|sglang:num_queue_reqs",job="x"}'
    )


def test_a_rate_is_of_a_counter_or_of_a_part_of_a_histogram():
    """Anything else is a mistake of ours."""
    assert rate(vllm.PREEMPTIONS, "5m") == "rate(vllm:num_preemptions_total[5m])"
    assert rate(vllm.TTFT, "5m", part="sum") == "rate(vllm:time_to_first_token_seconds_sum[5m])"
    for wrong in (lambda: rate(router.POD_UP, "5m"), lambda: rate(vllm.TTFT, "5m")):
        with pytest.raises(AssertionError):
            wrong()
    with pytest.raises(AssertionError):
        gauge(vllm.PREEMPTIONS)


def test_what_grows_and_begins_anew_is_a_counter():
    """With the assertion that a rate has."""
    assert increase(vllm.PREEMPTIONS, "5m") == "increase(vllm:num_preemptions_total[5m])"
    assert resets(vllm.PREEMPTIONS, "5m", 'job="x"') == (
        'resets(vllm:num_preemptions_total{job="x"}[5m])'
    )
    for of in (increase, resets):
        with pytest.raises(AssertionError):
            of(router.POD_UP, "5m")


def test_a_share_within_a_bound_is_counted_at_its_bucket():
    """Over all observations of the same series."""
    assert within(0.25, vllm.TTFT, "5m", 'job="x"', "instance") == (
        "sum by (instance) (rate(vllm:time_to_first_token_seconds_bucket"
        '{job="x",le=~"0\\\\.25"}[5m])) / '
        '(sum by (instance) (rate(vllm:time_to_first_token_seconds_count{job="x"}[5m])) > 0)'
    )


def test_a_ratio_is_absent_where_there_is_nothing_to_divide_by():
    """Neither NaN nor 0."""
    assert ratio("a", "b") == "a / (b > 0)"


def test_a_quantile_is_of_summed_buckets_and_drops_the_nan_of_an_idle_histogram():
    """NaN is not at least 0."""
    assert quantile(0.95, vllm.TTFT, "5m", 'job="x"', "instance") == (
        "histogram_quantile(0.95, sum by (le, instance) "
        '(rate(vllm:time_to_first_token_seconds_bucket{job="x"}[5m]))) >= 0'
    )


def test_a_mean_is_of_the_window_and_not_of_a_pods_whole_life():
    """Sum over count, both as rates."""
    assert mean(vllm.TTFT, "5m") == (
        "sum(rate(vllm:time_to_first_token_seconds_sum[5m])) / "
        "(sum(rate(vllm:time_to_first_token_seconds_count[5m])) > 0)"
    )


@pytest.mark.parametrize(
    ("seconds", "matcher"), [(1.0, 'le=~"1|1\\\\.0"'), (0.25, 'le=~"0\\\\.25"')]
)
def test_a_bound_is_matched_in_both_spellings(seconds, matcher):
    """Text has 1.0, later Prometheus stores 1."""
    assert bound(seconds) == matcher


def test_a_panels_number_is_a_function_of_its_title():
    """Links to it survive that panels are moved."""
    assert panel_id("Work by pod") == panel_id("Work by pod") != panel_id("Pods")
    assert 0 < panel_id("Pods") <= 100_000
