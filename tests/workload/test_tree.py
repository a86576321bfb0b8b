"""The prefix tree: who goes which way down."""

from __future__ import annotations

from collections import Counter

import pytest

from kvbench import seeds
from kvbench.workload.distributions import Constant, Uniform
from kvbench.workload.spec import (
    EvenPopularity,
    PrefixLevel,
    UniformPopularity,
    WeightedPopularity,
)
from kvbench.workload.tree import descend


def leaves(levels, count, seed=1):
    """The groups of the first `count` sessions."""
    return [descend(levels, seed, n, seeds.rng(seed, "session", n))[0] for n in range(count)]


def test_weights_are_kept():
    """Seven in ten, two in ten, one in ten."""
    level = PrefixLevel("t", 3, Constant(8), WeightedPopularity((7, 2, 1)))
    counts = Counter(leaves((level,), 5000))
    assert [counts[f"t-{i}"] / 5000 for i in range(3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.02)


def test_even_levels_are_gone_through_together_round_after_round():
    """Each of the six pairs once in every six sessions, and not always in the same order."""
    levels = (
        PrefixLevel("a", 3, Constant(8), EvenPopularity()),
        PrefixLevel("b", 2, Constant(8), EvenPopularity()),
    )
    seen = leaves(levels, 60)
    rounds = [seen[i : i + 6] for i in range(0, 60, 6)]
    assert all(len(set(names)) == 6 for names in rounds)
    assert len({tuple(names) for names in rounds}) > 5
    assert leaves(levels, 60) == seen
    assert leaves(levels, 60, seed=2) != seen


def test_a_level_in_between_may_be_chosen_by_chance():
    """It takes no part in the rounds."""
    levels = (
        PrefixLevel("a", 2, Constant(8), EvenPopularity()),
        PrefixLevel("x", 5, Constant(8), UniformPopularity()),
        PrefixLevel("b", 2, Constant(8), EvenPopularity()),
    )
    ends = [(name.split("/")[0], name.split("/")[2]) for name in leaves(levels, 40)]
    assert all(len(set(ends[i : i + 4])) == 4 for i in range(0, 40, 4))


def test_a_node_has_one_length_and_its_text_its_path():
    """However many sessions go through it."""
    levels = tuple(PrefixLevel(f"l{i}", 2, Uniform(1, 900)) for i in range(5))
    lengths = {}
    for n in range(200):
        group, segments = descend(levels, 1, n, seeds.rng(1, "session", n))
        assert segments[-1].key == f"prefix/{group}"
        for segment in segments:
            assert lengths.setdefault(segment.key, segment.tokens) == segment.tokens
    assert len(lengths) == 2 + 4 + 8 + 16 + 32
