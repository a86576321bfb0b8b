import math

import numpy as np
import pytest

from kvbench.records.intervals import (
    EVERYWHERE,
    excess_by_session,
    quantile_interval,
    share_interval,
    sum_interval,
    t_quantile,
    turns_to_bound,
)


def _ratio(sums):
    return sums[:, 0] / sums[:, 1]


def _turns(chance, sessions, apart, within, turns=5):
    """Return logarithmic times of sessions that differ by `apart`, and their sessions."""
    of = np.repeat(np.arange(sessions), turns)
    spread = apart * chance.standard_normal(sessions)[of] + within * chance.standard_normal(len(of))
    return np.exp(spread), of


@pytest.mark.parametrize(
    ("sessions", "apart", "q"),
    [
        pytest.param(40, 0.1, 0.95, id="p95 of 200 turns"),
        pytest.param(150, 0.5, 0.95, id="p95, sessions that differ a lot"),
        pytest.param(20, 0.2, 0.5, id="median of 100 turns"),
        pytest.param(300, 0.1, 0.99, id="p99 of 1500 turns"),
    ],
)
def test_a_quantiles_interval_misses_the_true_one_as_seldom_as_it_says(sessions, apart, q):
    """2.5 of 100 on either side; of 300 trials hardly ever more than 17."""
    chance = np.random.default_rng(1)
    z = {0.5: 0.0, 0.95: 1.6449, 0.99: 2.3263}[q]
    true = math.exp(z * math.hypot(apart, 0.25))
    above = below = 0
    for _ in range(300):
        values, of = _turns(chance, sessions, apart, 0.25)
        found = quantile_interval(values, excess_by_session(values, of, q), q)
        above += found.low > true
        below += found.high < true
    assert above <= 17
    assert below <= 17


def test_a_ratios_interval_misses_the_true_one_as_seldom_as_it_says():
    """Also of 15 sessions, thanks to the wider levels."""
    chance = np.random.default_rng(2)
    missed = 0
    for trial in range(300):
        values, of = _turns(chance, 15, 0.3, 0.1)
        columns = np.stack([np.log(values), np.ones(len(values))], axis=1)
        found = sum_interval(columns, of, _ratio, seed=trial)
        missed += not found.low <= 0 <= found.high
    assert missed <= 27


def test_a_quantile_of_too_few_turns_has_no_upper_end():
    """And has one as soon as there are as many as are said to be needed."""
    needed = turns_to_bound(0.95)
    assert 70 < needed < 90
    for turns, bounded in ((needed // 2, False), (2 * needed, True)):
        values = np.linspace(1, 2, turns)
        found = quantile_interval(values, excess_by_session(values, np.arange(turns), 0.95), 0.95)
        assert math.isfinite(found.high) == bounded


def test_failures_reach_the_upper_end_before_they_reach_the_number():
    """With 4 of 100 failed the p95 is finite, and is not known to be."""
    values = np.append(np.linspace(1, 2, 96), [math.inf] * 4)
    found = quantile_interval(values, excess_by_session(values, np.arange(100), 0.95), 0.95)
    assert (math.isfinite(found.low), found.high) == (True, math.inf)


def test_one_session_says_nothing_about_others():
    """However many turns it has."""
    values, of = np.linspace(1, 2, 500), np.zeros(500, dtype=np.int64)
    assert quantile_interval(values, excess_by_session(values, of, 0.5), 0.5) == EVERYWHERE
    assert sum_interval(np.ones((500, 2)), of, _ratio, seed=0) == EVERYWHERE
    assert share_interval(0, 0) == EVERYWHERE


def test_very_many_sessions_in_bundles_are_as_uncertain_as_one_by_one():
    """The width of 12,000 sessions is that of a normal approximation."""
    chance = np.random.default_rng(3)
    values, of = _turns(chance, 12_000, 0.3, 0.1, turns=2)
    means = values.reshape(-1, 2).mean(axis=1)
    found = sum_interval(np.stack([values, np.ones(len(values))], axis=1), of, _ratio, seed=1)
    expected = 2 * 1.96 * means.std() / math.sqrt(12_000)
    assert found.high - found.low == pytest.approx(expected, rel=0.1)


def test_the_same_seed_gives_the_same_draws():
    """And another seed others."""
    chance = np.random.default_rng(4)
    values, of = _turns(chance, 30, 0.3, 0.1)
    columns = np.stack([values, np.ones(len(values))], axis=1)
    first, again, other = (sum_interval(columns, of, _ratio, seed=s) for s in (1, 1, 2))
    assert first == again != other


def test_wilsons_interval_is_wilsons():
    """Of 0 of 10, and of 5 of 10, from the formula's own table."""
    none, half = share_interval(0, 10), share_interval(5, 10)
    assert (none.low, round(none.high, 4)) == (0.0, 0.2775)
    assert (round(half.low, 4), round(half.high, 4)) == (0.2366, 0.7634)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (1000, 1.962)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    """Of 97.5 %."""
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=2e-3)
