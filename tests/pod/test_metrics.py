"""Histograms and times, sample by sample."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.scheduler import Engine
from kvbench.engine.timing import StepTime
from kvbench.engine.values import EngineConfig, StepResult
from kvbench.pod.driver import Lateness
from kvbench.pod.metrics import Histogram, PodMetrics, RequestTimes


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 3)), max_size=20))
def test_a_histogram_counts_what_is_at_most_each_bound(seen: list[tuple[float, int]]):
    """Cumulatively, and everything under +Inf."""
    bounds = (1.0, 5.0, 10.0)
    histogram = Histogram(bounds)
    for value, times in seen:
        histogram.observe(value, times)
    got = {labels.get("le", suffix): value for suffix, labels, value in histogram.samples()}
    for bound in bounds:
        assert got[str(bound)] == sum(times for value, times in seen if value <= bound)
    assert got["+Inf"] == got["_count"] == sum(times for _, times in seen)
    assert got["_sum"] == pytest.approx(sum(value * times for value, times in seen))


def step(began: float, ends: float, *scheduled: str, preempted: tuple[str, ...] = ()) -> StepResult:
    """Return a step."""
    return StepResult(began, ends, (), dict.fromkeys(scheduled, 1), preempted)


def test_times_are_those_of_the_engines_time_line():
    """Queued from 1 to 3, first token at 4, preempted once, last token at 9."""
    engine = Engine(EngineConfig(num_gpu_blocks=10), StepTime(0, 0, 0, 0, 0, 0))
    metrics = PodMetrics(engine, Lateness(), "m", config={}, created=0.0)
    metrics.arrived("a", RequestTimes(1.0, 100, 8, 1.0))
    for result, token in (
        (step(2.0, 3.0), False),
        (step(3.0, 4.0, "a"), True),
        (step(4.0, 5.0, preempted=("a",)), False),
        (step(5.0, 7.0, "a"), True),
        (step(7.0, 9.0, "a"), True),
    ):
        metrics.step_began(result)
        if token:
            metrics.token("a", result.ends, cached=32)
        metrics.step_done(result)
    metrics.finished("a", "length")
    lines = metrics.exposition().decode().splitlines()
    sums = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if "_sum{" in line and line.startswith("vllm:")
    }
    expected = {
        "time_to_first_token_seconds": 3.0,
        "request_queue_time_seconds": 2.0,
        "request_prefill_time_seconds": 1.0,
        "request_decode_time_seconds": 5.0,
        "request_inference_time_seconds": 6.0,
        "e2e_request_latency_seconds": 8.0,
        "inter_token_latency_seconds": 5.0,
        "request_time_per_output_token_seconds": 2.5,
        "request_num_preemptions": 1.0,
        "request_prefill_kv_computed_tokens": 68.0,
        "request_generation_tokens": 3.0,
    }
    assert {name: sums[f"vllm:{name}_sum"] for name in expected} == expected
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 3.0' in lines
    assert 'vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 2.0' in lines


def test_an_abandoned_request_is_forgotten():
    """Its tokens stay counted; it is in no histogram of requests."""
    engine = Engine(EngineConfig(num_gpu_blocks=10), StepTime(0, 0, 0, 0, 0, 0))
    metrics = PodMetrics(engine, Lateness(), "m", config={}, created=0.0)
    metrics.arrived("a", RequestTimes(1.0, 10, 8, 1.0))
    result = step(1.0, 2.0, "a")
    metrics.step_began(result)
    metrics.token("a", 2.0, cached=0)
    metrics.step_done(result)
    metrics.abandoned("a")
    metrics.abandoned("a")
    text = metrics.exposition().decode()
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 1.0' in text
    assert 'vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 0.0' in text


def test_a_time_before_0_is_one_of_0():
    """A sum that falls is a restart to Prometheus, and the mean of a busy pod absurd."""
    histogram = Histogram((1.0, 5.0))
    histogram.observe(0.5)
    histogram.observe(-0.25)

    assert list(histogram.samples())[-2:] == [("_count", {}, 2.0), ("_sum", {}, 0.5)]


def test_a_pod_that_began_anew_says_since_when():
    """As a process that was restarted does, though it is the same one."""
    engine = Engine(EngineConfig(num_gpu_blocks=10), StepTime(0, 0, 0, 0, 0, 0))
    later = PodMetrics(engine, Lateness(), "m", config={}, created=4e9)

    assert "process_start_time_seconds 4e+09" in later.exposition().decode()
