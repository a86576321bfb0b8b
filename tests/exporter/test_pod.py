from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.exporter.pod import LATELY_S, WatchedPod, context_ratios
from kvbench.metrics import engines
from kvbench.metrics.exposition import Lengths, Reading

BOUNDS = (10.0, 100.0, 1000.0, float("inf"))
CACHE = {"block_size": "10", "num_gpu_blocks": "101", "kv_cache_size_tokens": "1010"}


def lengths(*values: int) -> Lengths:
    """Return a histogram of lengths."""
    counts = tuple(float(sum(v <= bound for v in values)) for bound in BOUNDS)
    return Lengths(BOUNDS, counts, float(sum(values)))


def reading(*, prompts=(), answers=(), cache=CACHE, **numbers: float) -> Reading:
    """Return a reading with these numbers by word, and requests of these lengths."""
    return Reading(
        engine="vllm",
        numbers=dict(numbers),
        lengths={"prompt_lengths": lengths(*prompts), "answer_lengths": lengths(*answers)},
        cache=[cache],
    )


def watched(*readings: Reading | None, window: int | None = None) -> WatchedPod:
    """Return a pod after one look a second."""
    pod = WatchedPod("a", window)
    for second, look in enumerate(readings):
        pod.looked(100.0 + second, 5000.0 + second, look)
    return pod


def test_counters_begin_with_the_first_look_and_go_on_over_a_restart():
    """10, 15, and then 4 of a new process: 5 and 4 were added."""
    pod = watched(reading(queries=10.0), reading(queries=15.0), None, reading(queries=4.0))

    assert pod.totals["queries"] == 9.0
    assert pod.added["queries"] == 4.0
    assert pod.restarts == 1


@given(st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=20))
def test_counters_never_run_backwards(values):
    """Whatever is read, and whenever nothing is."""
    pod = WatchedPod("a")
    before = 0.0
    for second, value in enumerate(values):
        pod.looked(float(second), 0.0, None if value is None else reading(queries=float(value)))
        assert pod.totals.get("queries", 0.0) >= before
        before = pod.totals.get("queries", 0.0)


def test_a_process_that_began_later_was_restarted_though_no_counter_fell():
    """And its age is by its own word."""
    pod = watched(reading(started=4000.0, queries=0.0), reading(started=5000.5, queries=0.0))

    assert pod.restarts == 1
    assert pod.began == 100.5


def test_without_its_word_a_pod_is_as_old_as_it_is_known():
    """A pod with several API servers does not say when it began."""
    pod = watched(reading(queries=5.0), reading(queries=6.0))

    assert (pod.began, pod.restarts) == (100.0, 0)


def test_requests_without_a_token_are_minded_and_nothing_else():
    """Since the first look that saw them; a token, an end, or an unreadable pod ends it."""
    stuck = reading(running=1.0, generation_tokens=7.0)
    pod = watched(reading(running=1.0, generation_tokens=6.0), stuck, stuck, stuck)
    assert pod.busy_since == 102.0

    pod.looked(104.0, 0.0, reading(running=1.0, generation_tokens=8.0))
    assert pod.busy_since is None
    pod.looked(105.0, 0.0, reading(running=1.0, generation_tokens=8.0))
    pod.looked(106.0, 0.0, None)
    assert pod.busy_since is None


def test_requests_that_ended_are_seen_between_two_looks():
    """What was there at the first look is the past."""
    pod = watched(
        reading(prompts=[50, 700], answers=[5, 5]),
        reading(prompts=[50, 700, 300], answers=[5, 5, 20]),
        window=1000,
    )

    assert [(e.prompts, e.answers) for e in pod.ended] == [([(300.0, 1.0)], [(20.0, 1.0)])]
    assert context_ratios(pod.ended[0], 1000) == [(0.32, 1)]

    pod.forget_old(102.0 + LATELY_S)
    assert not pod.ended


def test_headroom_is_in_tokens_and_in_requests_as_long_as_those_of_late():
    """Half of 1,000 tokens is free; requests take whole blocks of 10."""
    pod = watched(
        reading(usage=0.5), reading(usage=0.5, prompts=[91, 91, 91], answers=[4, 4, 4]), window=400
    )

    assert pod.headroom_tokens == 500.0
    assert [pod.headroom_sequences(length) for length in ("mean", "p95", "window")] == [5, 5, 1]


def test_before_any_request_has_ended_only_the_window_says_how_many_fit():
    """Unknown is None, not 0; so it is without a capacity."""
    pod = watched(reading(usage=0.0), window=400)

    assert [pod.headroom_sequences(length) for length in ("mean", "p95", "window")] == [
        None,
        None,
        2,
    ]
    assert watched(reading(usage=0.0, cache={}), window=400).headroom_tokens is None


@given(st.lists(st.integers(1, 900), min_size=1, max_size=20))
def test_of_a_fleet_of_requests_the_mean_context_is_kept(values):
    """However coarse the engine's buckets are, its sums are exact."""
    pod = watched(reading(), reading(prompts=values, answers=[10] * len(values)), window=1000)
    ratios = context_ratios(pod.ended[0], 1000)

    assert sum(n for _, n in ratios) == len(values)
    mean = sum(ratio * n for ratio, n in ratios) / len(values)
    assert mean == pytest.approx(min(1.0, sum(values) / len(values) / 1000 + 0.01))


def test_the_engines_words_are_those_that_the_tests_use():
    """Or the tests above would test nothing."""
    assert {engines.QUERIES.word, engines.GENERATION_TOKENS.word, engines.USAGE.word} == {
        "queries",
        "generation_tokens",
        "usage",
    }
