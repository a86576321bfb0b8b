"""The policies that look at pods alone."""

from __future__ import annotations

import pytest

from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import make_policy

REQUEST = RouteRequest("r", "m", (1, 2), 64, 150)


def test_round_robin_takes_the_pods_in_turn_and_copes_when_one_leaves():
    """In the order in which they are offered."""
    policy = make_policy("round_robin", seed=0)
    three = [PodState("a"), PodState("b"), PodState("c")]

    first = [policy.choose(REQUEST, three, 0.0).pod for _ in range(5)]
    then = [policy.choose(REQUEST, three[:2], 0.0).pod for _ in range(4)]

    assert first == ["a", "b", "c", "a", "b"]
    assert sorted(then) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        pytest.param((3, 1, 2), "b", id="the least loaded pod wins"),
        pytest.param((0, 9, 9), "a", id="an idle pod wins"),
    ],
)
def test_least_load_counts_requests_in_flight(in_flight, expected):
    """Not those that have been served."""
    pods = [PodState(name, n) for name, n in zip("abc", in_flight, strict=True)]

    decision = make_policy("least_load", seed=0).choose(REQUEST, pods, 0.0)

    assert (decision.pod, decision.reason) == (expected, "load")
    assert [candidate.cost for candidate in decision.candidates] == list(in_flight)


def test_power_of_two_compares_two_and_never_takes_the_most_loaded():
    """Two of three are drawn, so the most loaded of them can never win."""
    policy = make_policy("power_of_two", seed=0)
    pods = [PodState("a", 5), PodState("b", 1), PodState("c", 3)]

    chosen = [policy.choose(REQUEST, pods, 0.0) for _ in range(200)]

    assert {decision.pod for decision in chosen} == {"b", "c"}
    assert all(len(decision.candidates) == 2 for decision in chosen)
