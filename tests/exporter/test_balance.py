from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.exporter.balance import Recent, jain, max_over_mean


@pytest.mark.parametrize(
    ("amounts", "largest", "fairness"),
    [
        pytest.param([5.0, 5.0, 5.0, 5.0], 1.0, 1.0, id="even"),
        pytest.param([8.0, 0.0, 0.0, 0.0], 4.0, 0.25, id="all on one"),
        pytest.param([3.0, 1.0], 1.5, 0.8, id="uneven"),
        pytest.param([0.0, 0.0], None, None, id="idle"),
        pytest.param([1e308, 0.0], 2.0, 0.5, id="more than its square can be"),
        pytest.param([float("inf"), 1.0], None, None, id="nonsense"),
    ],
)
def test_balance_has_the_values_that_one_can_work_out_by_hand(amounts, largest, fairness):
    """Idle fleets have no balance."""
    assert max_over_mean(amounts) == (largest and pytest.approx(largest))
    assert jain(amounts) == (fairness and pytest.approx(fairness))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_both_measures_stay_within_their_bounds(amounts):
    """Max over mean lies in 1 to n, Jain's index in 1/n to 1; or there was no work."""
    largest, fairness, n = max_over_mean(amounts), jain(amounts), len(amounts)

    assert (largest is None) == (fairness is None) == (not any(amounts))
    if largest is not None and fairness is not None:
        assert 1 - 1e-9 <= largest <= n * (1 + 1e-9)
        assert (1 - 1e-9) / n <= fairness <= 1 + 1e-9


def test_only_what_was_done_lately_counts_and_pods_that_are_gone_do_not():
    """A pod that did nothing counts as 0."""
    recent = Recent(60.0)
    recent.add(0.0, "a", 100.0)
    recent.add(50.0, "a", 1.0)
    recent.add(50.0, "b", 2.0)
    recent.add(55.0, "gone", 7.0)

    assert recent.sums(61.0, ["a", "b", "c"]) == [1.0, 2.0, 0.0]
    assert recent.sums(111.0, ["a", "b", "c"]) == [0.0, 0.0, 0.0]
