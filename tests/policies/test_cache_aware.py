"""The rules of SGLang's router, one by one."""

from __future__ import annotations

import pytest

from kvbench.policies.cache_aware import CacheAware
from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.seeds import rng

BLOCKS = tuple(range(10))


def asked(*blocks: int, tokens: int = 640) -> RouteRequest:
    """Return a request."""
    return RouteRequest("r", "m", blocks, 64, tokens)


def warm() -> CacheAware:
    """Return a policy that has sent ten blocks to pod a."""
    policy = CacheAware(rng(1))
    policy.placed(asked(*BLOCKS), "a", 0.0)
    return policy


@pytest.mark.parametrize(
    ("loads", "expected", "reason"),
    [
        pytest.param((0, 0), "a", "prefix", id="the match wins"),
        pytest.param((64, 0), "a", "prefix", id="64 apart is not too much"),
        pytest.param((65, 0), "b", "load", id="65 apart is"),
        pytest.param((300, 200), "a", "prefix", id="100 apart, but only 1.5 times as many"),
        pytest.param((301, 200), "b", "load", id="100 apart, and more than 1.5 times as many"),
    ],
)
def test_the_match_wins_until_the_pods_are_out_of_balance(loads, expected, reason):
    """Both thresholds must be passed."""
    pods = [PodState("a", loads[0]), PodState("b", loads[1])]

    decision = warm().choose(asked(*BLOCKS), pods, 0.0)

    assert (decision.pod, decision.reason) == (expected, reason)


@pytest.mark.parametrize(("shared", "expected"), [(3, "b"), (4, "a")])
def test_a_match_of_less_than_three_tenths_is_none(shared, expected):
    """Three blocks of ten go to the less loaded pod, four to the one that has them."""
    prompt = (*BLOCKS[:shared], *range(100, 110 - shared))
    pods = [PodState("a", 1), PodState("b", 0)]

    assert warm().choose(asked(*prompt), pods, 0.0).pod == expected


def test_of_equally_loaded_pods_one_is_drawn_whatever_was_matched():
    """A short match does not draw, or conversations with one beginning would share one pod."""
    policy, prompt = warm(), (*BLOCKS[:2], *range(100, 108))
    pods = [PodState("a"), PodState("b")]

    chosen = [policy.choose(asked(*prompt), pods, 0.0).pod for _ in range(100)]

    assert 25 < chosen.count("a") < 75
