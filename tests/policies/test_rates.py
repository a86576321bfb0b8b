"""Learning what time costs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.policies.rates import Rates


@pytest.mark.parametrize(
    ("base", "prefill", "beside"),
    [
        pytest.param(0.02, 1 / 15_000, 0.0005, id="a data-centre GPU"),
        pytest.param(0.05, 1 / 2_000, 0.004, id="a small GPU"),
        pytest.param(0.1, 1 / 300, 0.05, id="a CPU"),
    ],
)
def test_the_rates_are_those_of_the_pods_after_some_hundred_answers(base, prefill, beside):
    """From noisy times (a fifth up or down), far from the prior."""
    chance = random.Random(4)
    rates = Rates()
    for _ in range(400):
        tokens, requests = chance.randrange(8000), chance.randrange(30)
        ttft = base + prefill * tokens + beside * requests
        rates.observe(tokens, requests, ttft * chance.uniform(0.8, 1.2))

    assert rates.prefill == pytest.approx(prefill, rel=0.1)
    assert rates.expected_s(4000, 10) == pytest.approx(
        base + prefill * 4000 + beside * 10, rel=0.05
    )


def test_pods_that_change_are_followed():
    """Twice as slow from one moment on: the past fades."""
    rates = Rates()
    for slowness in (1, 2):
        for i in range(600):
            rates.observe(i % 40 * 100, i % 7, slowness * (0.01 + i % 40 * 0.01))

    assert rates.prefill == pytest.approx(2e-4, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**4), st.floats(0, 1e4)), max_size=60
    )
)
def test_no_observation_makes_time_run_backwards(observations):
    """A token and a request always cost something, and figures stay figures."""
    rates = Rates()
    for tokens, requests, ttft_s in observations:
        rates.observe(tokens, requests, ttft_s)

    assert 0 <= rates.base < 1e6
    assert 1e-6 <= rates.prefill < 1e6
    assert 1e-5 <= rates.beside < 1e6


def test_without_observations_the_prior_answers():
    """10,000 tokens a second and a millisecond a neighbour."""
    assert Rates().expected_s(5000, 4) == pytest.approx(0.01 + 0.5 + 0.004)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**5), st.integers(0, 300), st.floats(0.001, 100)),
        min_size=1,
        max_size=40,
    )
)
def test_the_rates_are_those_of_least_squares(observations):
    """By numpy, from the same samples, weights and prior."""
    rates = Rates()
    prior, spread = np.array([0.01, 1e-4, 1e-3]), np.array([0.2, 3e-3, 0.05])
    rows, times = list(np.diag(1 / spread)), list(prior / spread)
    for number, (tokens, requests, ttft_s) in enumerate(observations):
        root = 0.995 ** ((len(observations) - 1 - number) / 2)
        root /= max(rates.expected_s(tokens, requests), ttft_s, 1e-3)
        rows.append(root * np.array([1.0, tokens, requests]))
        times.append(root * ttft_s)
        rates.observe(tokens, requests, ttft_s)

    best, *_ = np.linalg.lstsq(np.array(rows), np.array(times))

    base, prefill, beside = np.maximum(best, [0.0, 1e-6, 1e-5])
    assert rates.base == pytest.approx(base, rel=1e-4, abs=1e-5)
    assert rates.prefill == pytest.approx(prefill, rel=1e-4, abs=1e-7)
    assert rates.beside == pytest.approx(beside, rel=1e-4, abs=1e-7)
