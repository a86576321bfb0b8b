"""The longest match, with a guard."""

from __future__ import annotations

from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import make_policy


def request(*blocks: int) -> RouteRequest:
    """Return a request of these blocks of 64 tokens."""
    return RouteRequest("r", "m", blocks, 64, 64 * len(blocks) + 10)


def placed(*where: tuple[str, tuple[int, ...]]):
    """Return a policy that has sent these blocks to these pods."""
    policy = make_policy("prefix_estimate", seed=0)
    for pod, blocks in where:
        policy.placed(request(*blocks), pod, 0.0)
    return policy


def test_the_longest_match_wins_against_a_lower_load():
    """As long as the guard does not bite."""
    policy = placed(("a", (1, 2, 3)), ("b", (1,)))

    decision = policy.choose(request(1, 2, 9), [PodState("a", 3), PodState("b", 0)], 0.0)

    assert (decision.pod, decision.reason, decision.matched_tokens) == ("a", "prefix", 128)


def test_an_overloaded_pod_is_passed_over():
    """20 in flight on two pods make a share of 10.5 · 1.25 + 4 = 17."""
    policy = placed(("a", (1, 2, 3)), ("b", (1,)))
    pods = [PodState("a", 18), PodState("b", 2)]

    decision = policy.choose(request(1, 2, 3), pods, 0.0)

    assert (decision.pod, decision.matched_tokens) == ("b", 64)


def test_of_equal_matches_the_less_loaded_wins():
    """Load is the second key."""
    policy = placed(("a", (1,)), ("b", (1,)))

    decision = policy.choose(request(1, 5), [PodState("a", 3), PodState("b", 2)], 0.0)

    assert decision.pod == "b"


def test_without_a_match_the_least_loaded_pod_is_taken():
    """The reason says that no prefix spoke for it."""
    decision = placed().choose(request(1), [PodState("a", 3), PodState("b", 2)], 0.0)

    assert (decision.pod, decision.reason, decision.matched_tokens) == ("b", "load", 0)


def test_a_forgotten_pod_attracts_nothing():
    """It was restarted, or reset."""
    policy = placed(("a", (1, 2)))
    policy.forget("a")

    decision = policy.choose(request(1, 2), [PodState("a", 1), PodState("b", 0)], 0.0)

    assert decision.pod == "b"
