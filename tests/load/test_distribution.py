"""Samples in buckets: percentiles that are never flattered, in bounded memory."""

import math

from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.distribution import Distribution

samples = st.lists(st.floats(0, 1000), min_size=1, max_size=200)


@given(samples, st.floats(0.01, 1))
def test_a_percentile_is_never_too_small_and_at_most_two_percent_too_large(values, share):
    """Compared with the exact one; less than a microsecond is none."""
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    found = distribution.percentile(share)
    assert exact * (1 - 1e-9) <= max(found, 1e-6)
    assert found <= max(exact * 1.0201, 1e-6)


@given(samples)
def test_the_largest_is_exact(values):
    """It is what tells of a single stall."""
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    assert distribution.largest == max(values)
    assert distribution.percentile(1.0) <= distribution.largest


def test_of_no_samples_there_is_nothing_to_say():
    """Unknown is None."""
    assert Distribution().percentile(0.5) is None
    assert Distribution().largest is None


def test_a_timer_that_fired_early_is_not_late():
    """Timers may round down."""
    distribution = Distribution()
    distribution.add(-0.0004)
    assert distribution.largest == 0.0


def test_memory_does_not_grow_with_samples():
    """Ten thousand samples over nine decades need no more than a bucket for each 2 %."""
    distribution = Distribution()
    for i in range(10_000):
        distribution.add(1.002**i * 1e-6)
    assert len(distribution.buckets) <= 1010


@given(samples, samples)
def test_what_two_have_seen_is_what_one_would_have_seen(left, right):
    """Workers add up to the whole."""
    both, one, other = Distribution(), Distribution(), Distribution()
    both.add_all([*left, *right])
    one.add_all(left)
    other.add_all(right)

    one.merge(other)

    assert one.buckets == both.buckets
    assert (one.count, one.largest) == (both.count, both.largest)
    assert math.isclose(one.total, both.total, abs_tol=1e-9)


@given(samples, st.lists(st.floats(1e-6, 1000), min_size=1, max_size=5))
def test_no_sample_above_a_bound_counts_as_below_it(values, bounds):
    """And all that are 2 % below it count."""
    distribution = Distribution()
    distribution.add_all(values)
    for bound, found in zip(bounds, distribution.at_most(bounds), strict=True):
        assert sum(v <= bound / 1.021 for v in values) <= found
        assert found <= sum(v <= max(bound * (1 + 1e-6), 1e-6) for v in values)
