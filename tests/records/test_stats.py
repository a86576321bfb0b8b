import math

import numpy as np
import pytest
from fakes_records import failed_row, row, story
from hypothesis import given
from hypothesis import strategies as st

from kvbench.records.stats import (
    Balance,
    Latency,
    PodTraffic,
    gaps,
    hits,
    latencies,
    quantile,
    quantiles,
    traffic,
)
from kvbench.records.table import to_frame


def _prompt(tokens):
    """Prompt tokens on which plan and pods agree."""
    return {"prompt_tokens": tokens, "planned_prompt_tokens": tokens}


FINITE = st.floats(0, 1e6)


@given(st.lists(FINITE, min_size=1), st.integers(1, 64))
def test_quantiles_of_finite_values_equal_numpys_inverted_cdf(values, sixtyfourths):
    """The definition is numpy's, at shares that floating point holds exactly."""
    q = sixtyfourths / 64

    assert quantile(np.array(values), q) == np.quantile(values, q, method="inverted_cdf")


@given(st.lists(FINITE | st.just(math.inf), min_size=1), st.floats(0.001, 1))
def test_a_quantile_is_the_smallest_value_that_enough_values_do_not_exceed(values, q):
    """Straight from the definition, with infinite values: never NaN, always one of the values."""
    found = quantile(np.array(values), q)

    need = q * len(values) - 1e-9
    assert found in values
    assert sum(value <= found for value in values) >= need
    assert sum(value < found for value in values) < need or found == min(values)


@pytest.mark.parametrize(
    ("q", "rank"), [(0.5, 50), (0.95, 95), (0.99, 99), (0.07, 7), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_of_a_hundred_values_is_the_value_of_that_rank(q, rank):
    """Also where the product comes out a hair above its integer (0.07 × 100)."""
    assert quantile(np.arange(1.0, 101.0), q) == rank


def test_with_three_failures_in_a_hundred_the_p95_is_finite_and_the_p99_is_not():
    """A failure is infinitely slow, neither dropped nor 0."""
    frame = to_frame([row(i) for i in range(97)] + [failed_row(i) for i in range(97, 100)])

    values = latencies(frame, "ttft_s")

    assert len(values) == 100
    assert quantiles(values, [0.5, 0.95, 0.99]) == [
        pytest.approx(0.2),
        pytest.approx(0.2),
        math.inf,
    ]


def test_a_turn_that_failed_after_its_first_token_counts_as_infinite_too():
    """What was measured before a stream was cut is no TTFT of an answer."""
    assert latencies(to_frame([row(0, error="cut")]), "ttft_s").tolist() == [math.inf]


def test_an_answer_of_one_token_has_no_tpot_and_a_failure_has_an_infinite_one():
    """Absent is left out, failed is not."""
    frame = to_frame([row(0, completion_tokens=1), row(1), failed_row(2)])

    assert latencies(frame, "tpot_s").tolist() == [pytest.approx(0.1), math.inf]


def test_every_failed_turn_adds_one_infinite_gap():
    """A pod that answers nothing has no gaps, which must not look smooth."""
    assert gaps(to_frame([row(0), failed_row(1)])).tolist() == [0.1, 0.1, 0.1, math.inf]


def test_quantiles_of_nothing_are_nan():
    """Nothing measured is not 0."""
    assert all(map(math.isnan, quantiles(np.array([]), [0.5, 0.99])))
    assert Latency.of(np.array([])).count == 0


def test_the_hit_rate_is_weighted_by_tokens():
    """One long miss outweighs many short hits."""
    counted = hits(
        to_frame(
            [
                row(0, **_prompt(100), cached_tokens=96, ceiling_tokens=96),
                row(1, **_prompt(100), cached_tokens=96, ceiling_tokens=96),
                row(2, **_prompt(10_000), cached_tokens=0, ceiling_tokens=4_908),
            ]
        )
    )

    assert counted.rate == 192 / 10_200
    assert counted.ceiling == 5_100 / 10_200
    assert counted.attained == pytest.approx(192 / 5_100)


def test_unknown_cached_tokens_are_in_neither_side_and_are_counted():
    """A server that does not say is not a server that misses."""
    counted = hits(to_frame([row(0), row(1, cached_tokens=None), failed_row(2)]))

    assert (counted.turns, counted.unknown) == (1, 2)
    assert counted.rate == 0.512
    assert counted.ceiling == 0.768


def test_a_hit_rate_of_nothing_known_is_unknown():
    """None, not 0 and no division error."""
    counted = hits(to_frame([row(0, cached_tokens=None)]))

    assert (counted.rate, counted.ceiling, counted.attained) == (None, None, None)


def test_the_ceiling_is_taken_over_turns_that_have_one():
    """A turn without a ceiling does not dilute it."""
    counted = hits(to_frame([row(0), row(1, ceiling_tokens=None, cached_tokens=0)]))

    assert counted.rate == 512 / 2000
    assert counted.ceiling == 0.768
    assert counted.attained == pytest.approx(512 / 768)


def test_the_ceiling_is_a_share_of_the_plans_own_tokens():
    """A pod that counts half the tokens does not double what was possible."""
    counted = hits(to_frame([row(0, planned_prompt_tokens=1000, prompt_tokens=500)]))

    assert counted.ceiling == 0.768
    assert counted.counted_off == -0.5
    assert hits(to_frame([row(0, planned_prompt_tokens=None)])).ceiling == 0.768


def test_traffic_counts_turns_and_what_had_to_be_computed_per_pod():
    """Failed turns count where they were sent; turns of no pod belong to none."""
    frame = to_frame(
        [
            row(0, pod="b"),
            row(1, pod="a", cached_tokens=0),
            failed_row(2, pod="a"),
            failed_row(3),
        ]
    )

    assert traffic(frame, pods=["c"]) == (
        PodTraffic("a", turns=2, prompt_tokens=1000, uncached_tokens=1000),
        PodTraffic("b", turns=1, prompt_tokens=1000, uncached_tokens=488),
        PodTraffic("c", turns=0, prompt_tokens=0, uncached_tokens=0),
    )


@pytest.mark.parametrize(
    ("parts", "busiest", "over_mean"),
    [
        pytest.param([5, 5, 5, 5], 0.25, 1.0, id="even"),
        pytest.param([20, 0, 0, 0], 1.0, 4.0, id="all on one of four"),
        pytest.param([7], 1.0, 1.0, id="one pod is even"),
        pytest.param([0, 0], None, None, id="nothing to share"),
        pytest.param([], None, None, id="no pods"),
    ],
)
def test_balance_is_the_busiest_pods_share_and_how_far_it_is_above_the_mean(
    parts, busiest, over_mean
):
    """An idle pod counts: it is what imbalance means."""
    assert Balance.of(parts) == Balance(busiest, over_mean)


def test_pods_add_up_to_the_whole():
    """Turns and tokens of all pods are those of the run."""
    rows = story("random")
    counted = traffic(to_frame(rows))

    assert sum(pod.turns for pod in counted) == len(rows)
    assert sum(pod.prompt_tokens for pod in counted) == sum(r.prompt_tokens for r in rows)
    assert sum(pod.uncached_tokens for pod in counted) == sum(
        r.prompt_tokens - r.cached_tokens for r in rows
    )
