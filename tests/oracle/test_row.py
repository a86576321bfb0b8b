"""What rows add up to."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.oracle.row import balance_of, latency_of


@pytest.mark.parametrize(
    ("parts", "max_over_mean", "jain"),
    [
        pytest.param([5, 5, 5, 5], 1, 1, id="all the same"),
        pytest.param([20, 0, 0, 0], 4, 0.25, id="all on one of four"),
        pytest.param([3, 1], 1.5, 0.8, id="three to one"),
        pytest.param([0, 0], 1, 1, id="nothing is even"),
    ],
)
def test_balance_says_how_uneven_it_is_in_two_ways(parts, max_over_mean, jain):
    """Max over mean sees the busiest pod; Jain's index sees all."""
    balance = balance_of(parts)
    assert (balance.max_over_mean, balance.jain) == pytest.approx((max_over_mean, jain))


@given(parts=st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_balance_lies_between_even_and_all_on_one(parts):
    """1 to n, and 1/n to 1."""
    balance, pods = balance_of(parts), len(parts)
    assert 1 - 1e-9 <= balance.max_over_mean <= pods + 1e-9
    assert 1 / pods - 1e-9 <= balance.jain <= 1 + 1e-9


def test_quantiles_are_values_that_occurred():
    """Element ⌈q·n⌉: of 1 to 200 the 100th, 190th, 198th and last."""
    latency = latency_of(array("d", range(200, 0, -1)))
    assert (latency.p50, latency.p95, latency.p99, latency.max) == (100, 190, 198, 200)
