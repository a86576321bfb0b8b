"""When sessions begin: the rate asked for at every moment, in the spacing asked for."""

from __future__ import annotations

import itertools
from statistics import mean, stdev

import pytest

from kvbench import seeds
from kvbench.workload.arrivals import arrivals
from kvbench.workload.distributions import Constant
from kvbench.workload.spec import (
    LadderArrival,
    RampArrival,
    ReplayArrival,
    Step,
    UsersArrival,
)

LADDER = (Step(2.0, 10.0), Step(8.0, 5.0))


def times(arrival, seed=1):
    """All times of an arrival that ends."""
    return list(arrivals(arrival, seeds.rng(seed)))


def test_an_even_ladder_has_its_rates_to_the_letter():
    """Twenty sessions half a second apart, forty an eighth apart, and then the end."""
    began = times(LadderArrival(LADDER, "constant"))
    assert began == pytest.approx([i / 2 for i in range(20)] + [10 + i / 8 for i in range(40)])


def test_a_random_ladder_has_its_rates_on_average():
    """Each step for itself, with the spread of a Poisson process."""
    began = times(LadderArrival((Step(50.0, 40.0), Step(400.0, 20.0))))
    low = [t for t in began if t < 40]
    high = [t for t in began if t >= 40]
    assert len(low) == pytest.approx(2000, rel=0.07)
    assert len(high) == pytest.approx(8000, rel=0.05)
    gaps = [b - a for a, b in itertools.pairwise(high)]
    assert stdev(gaps) / mean(gaps) == pytest.approx(1, rel=0.05)
    assert max(began) < 60


@pytest.mark.parametrize(("start", "end"), [(0.0, 10.0), (10.0, 0.0), (2.0, 6.0), (5.0, 5.0)])
def test_an_even_ramp_reaches_every_whole_number_of_sessions_when_its_rate_says(start, end):
    """The integral of the rate up to the k-th session is k."""
    over = 20.0
    began = times(RampArrival(start, end, over, "constant"))
    assert len(began) == round((start + end) / 2 * over)
    integrals = [start * t + (end - start) * t * t / (2 * over) for t in began]
    assert integrals == pytest.approx(list(range(len(began))), abs=1e-6)


def test_replayed_times_begin_at_zero_and_may_be_played_faster():
    """In order, whatever their order was."""
    assert times(ReplayArrival((105.0, 100.0, 100.5), speed=2.0)) == [0.0, 0.25, 2.5]


def test_of_a_closed_loop_only_the_first_sessions_have_a_time():
    """The others wait for the ones before them."""
    assert times(UsersArrival(3, 0.5, Constant(1))) == [0.0, 0.5, 1.0]
