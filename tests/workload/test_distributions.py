"""Distributions draw what they say, within their bounds."""

from __future__ import annotations

from random import Random
from statistics import mean, median

import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.workload.distributions import (
    Choice,
    Constant,
    Exponential,
    LogNormal,
    Normal,
    Uniform,
    Zipf,
    draw_rank,
    draw_whole,
    tagged,
)


@given(fakes_workload.whole_numbers(2, 50), st.randoms(use_true_random=False))
def test_what_is_drawn_lies_within_the_bounds(distribution, rng):
    """The bounds that a distribution states are kept, rounded or not."""
    low, high = distribution.bounds
    assert 2 <= low <= high <= 50
    assert low <= distribution.draw(rng) <= high
    assert low <= draw_whole(distribution, rng) <= high


@pytest.mark.parametrize(
    ("distribution", "statistic", "expected"),
    [
        pytest.param(Constant(7), mean, 7, id="a constant is constant"),
        pytest.param(Uniform(10, 30), mean, 20, id="uniform: the middle"),
        pytest.param(Normal(100, 20, 200), mean, 100, id="normal: its mean"),
        pytest.param(LogNormal(50, 1, 1e6), median, 50, id="lognormal: its median"),
        pytest.param(Exponential(5, 1000), mean, 5, id="exponential: its mean"),
        pytest.param(Choice((1, 9), (3, 1)), mean, 3, id="choice: by weight"),
        pytest.param(Choice((1, 9)), mean, 5, id="choice: alike without weights"),
        pytest.param(Zipf(1, 3), mean, 3 / (1 + 1 / 2 + 1 / 3), id="zipf: weights 1, 1/2, 1/3"),
    ],
)
def test_each_kind_has_its_shape(distribution, statistic, expected):
    """Twenty thousand draws come within 3 % of the theory."""
    rng = Random(1)
    drawn = [distribution.draw(rng) for _ in range(20_000)]
    assert statistic(drawn) == pytest.approx(expected, rel=0.03)


def test_a_wide_lognormal_stays_a_number():
    """A spread that would overflow a float ends at the bound."""
    rng = Random(1)
    assert max(LogNormal(10, 1e6, 500).draw(rng) for _ in range(50)) == 500


def test_ranks_follow_zipf():
    """Rank 0 comes twice as often as rank 1 at exponent 1, and as often at exponent 0."""
    rng = Random(2)
    drawn = [draw_rank(rng, 4, 1.0) for _ in range(20_000)]
    assert drawn.count(0) / drawn.count(1) == pytest.approx(2, rel=0.05)
    drawn = [draw_rank(rng, 4, 0.0) for _ in range(20_000)]
    assert drawn.count(0) / drawn.count(3) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda: Uniform(5, 1), "smaller bound first, got 5 and 1", id="uniform"),
        pytest.param(lambda: Normal(5, 1, max=3, min=4), "got 4 and 3", id="normal"),
        pytest.param(lambda: LogNormal(5, 1, max=3, min=4), "got 4 and 3", id="lognormal"),
        pytest.param(lambda: Exponential(5, max=3, min=4), "got 4 and 3", id="exponential"),
        pytest.param(lambda: Zipf(1, max=3, min=4), "got 4 and 3", id="zipf"),
        pytest.param(lambda: Choice((1, 2), (1,)), "as many weights as values", id="choice"),
        pytest.param(lambda: Choice((1,), (0,)), "at least one weight above 0", id="no weight"),
    ],
)
def test_bounds_the_wrong_way_round_are_refused(make, says):
    """A distribution that cannot be drawn from cannot be made."""
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (5, {"kind": "constant", "value": 5}),
        ({"uniform": [1, 2]}, {"kind": "uniform", "low": 1, "high": 2}),
        ({"choice": [1, 2]}, {"kind": "choice", "values": [1, 2]}),
        ({"zipf": {"exponent": 1}}, {"kind": "zipf", "exponent": 1}),
        ({"normal": 5}, {"kind": "normal"}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "kind": "a, b"}),
        ({}, {"kind": "nothing"}),
    ],
)
def test_the_short_form_becomes_the_form_with_a_kind(short, long):
    """What is not understood keeps a kind that the parser will refuse."""
    assert tagged(short) == long
