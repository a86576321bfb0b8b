"""What is measured covers what a pod can take, and nothing that it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.experiment import DECODED, Bounds, Decode, Prefill, design
from kvbench.errors import InputError

POD = Bounds(longest=8000, block_size=16, most_sequences=16, kv_tokens=40_000)


@given(
    st.integers(20, 200),
    st.integers(1000, 200_000),
    st.sampled_from([16, 32, 64]),
    st.integers(1, 64),
    st.integers(2000, 10**6),
    st.integers(0, 2**32),
)
def test_every_point_fits_into_the_pod(points, longest, block_size, sequences, kv_tokens, seed):
    """Prompts into its window, batches into its cache, cached prefixes into whole blocks."""
    bounds = Bounds(longest, block_size, sequences, kv_tokens)

    experiment = design(points, 3, bounds, seed)

    assert len(experiment.points) <= points
    assert [sorted(numbers) for numbers in experiment.rounds] == [
        list(range(len(experiment.points)))
    ] * 3
    for point in experiment.points:
        if isinstance(point, Prefill):
            assert point.new >= 1
            assert point.cached % block_size == 0
            assert point.cached + point.new <= min(longest, kv_tokens // 2)
            assert point.cached <= experiment.prefix
        else:
            assert point.sequences <= sequences
            assert point.context >= 1
            assert point.sequences * (point.context + DECODED) <= kv_tokens // 2 + DECODED
            assert point.context <= longest


def test_prompts_of_all_lengths_are_there_cached_and_not():
    """A third has nothing cached; every power of two of the uncached length occurs."""
    points = design(64, 1, POD, seed=0).points
    prefills = [point for point in points if isinstance(point, Prefill)]

    assert sum(not point.cached for point in prefills) >= len(prefills) // 3
    assert {point.new.bit_length() for point in prefills} == set(range(1, 14))
    assert sum(point.held_out for point in prefills) == len(prefills) // 4


def test_batches_double_with_short_and_long_contexts():
    """As long as the cache holds them twice."""
    points = design(64, 1, POD, seed=0).points
    batches = sorted((p.sequences, p.context) for p in points if isinstance(p, Decode))

    assert batches[:4] == [(1, 32), (1, 7968), (2, 32), (2, 7968)]
    assert batches[-2:] == [(16, 32), (16, 1218)]


def test_the_same_seed_gives_the_same_experiment_and_another_seed_another():
    """So a calibration can be repeated."""
    assert design(40, 2, POD, seed=1) == design(40, 2, POD, seed=1)
    assert design(40, 2, POD, seed=1) != design(40, 2, POD, seed=2)


def test_too_little_is_refused():
    """Too few points, and a pod with room for next to nothing."""
    with pytest.raises(InputError, match=r"--points: expected at least 20, got 19"):
        design(19, 1, POD, seed=0)
    with pytest.raises(InputError, match="prompts of up to 100 tokens are too short"):
        design(20, 1, Bounds(100, 16, 4, 10_000), seed=0)
