"""Ties."""

from __future__ import annotations

from kvbench.policies.choice import cheapest, decide
from kvbench.policies.decision import Candidate
from kvbench.seeds import rng


def candidate(pod: str, cost: float, matched: int = 0) -> Candidate:
    """Return a candidate without terms."""
    return Candidate(pod, matched, cost, {})


def test_the_least_cost_wins():
    """Whatever is cached elsewhere."""
    chosen = cheapest([candidate("a", 2.0, 500), candidate("b", 1.0)], rng(0))

    assert chosen.pod == "b"


def test_of_equal_costs_the_one_with_more_cached_wins():
    """It leaves the fleet less work."""
    chosen = cheapest([candidate("a", 1.0, 5), candidate("b", 1.0, 9), candidate("c", 1.0)], rng(0))

    assert chosen.pod == "b"


def test_a_tie_is_broken_evenly():
    """χ² over 3,000 draws of three, at 0.1 %."""
    chance = rng(11)
    counts = dict.fromkeys("abc", 0)
    for _ in range(3000):
        counts[cheapest([candidate(pod, 0.0) for pod in "abc"], chance).pod] += 1

    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 13.82


def test_an_only_candidate_is_chosen_because_it_is_the_only_one():
    """Not for its load, and not for its prefix."""
    only = candidate("a", 3.0, 64)

    decision = decide("prefix_cost", only, "prefix", [only])

    assert (decision.pod, decision.reason, decision.matched_tokens) == ("a", "only", 64)
