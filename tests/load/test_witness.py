"""The generator's testimony: percentiles that are never flattered, in bounded memory."""

import math

from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.witness import Distribution, Witness

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
    assert len(distribution._buckets) <= 1010


def test_the_testimony_counts_what_it_was_told():
    """And measures its own CPU time."""
    witness = Witness()
    for lateness in (0.001, 0.002, 0.5):
        witness.sent(lateness)
    witness.ticked(0.01)
    witness.opened(3)
    witness.opened(2)
    said = witness.testify(worker=4)
    assert (said.worker, said.turns, said.max_in_flight) == (4, 3, 3)
    assert 0.002 <= said.lateness_p50_s <= 0.00204
    assert (said.lateness_max_s, said.loop_delay_max_s) == (0.5, 0.01)
    assert said.cpu_share >= 0
