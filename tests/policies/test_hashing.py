"""The policies that hash a key to a pod."""

from __future__ import annotations

import pytest

from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import make_policy

PODS = [PodState(f"10.0.0.{i}:8000") for i in range(5)]


def request(session: str | None = None, first: int | None = None) -> RouteRequest:
    """Return a request with that session key and that first block."""
    blocks = () if first is None else (first, first + 1)
    return RouteRequest("r", "m", blocks, 64, 150, session)


@pytest.mark.parametrize("name", ["session", "chwbl"])
def test_a_pod_that_leaves_moves_only_its_own_keys(name):
    """And gives them to more than one other."""
    policy = make_policy(name, seed=0)

    def homes(pods):
        return [policy.choose(request(f"s{i}", i * 7919), pods, 0.0).pod for i in range(300)]

    before, after = homes(PODS), homes(PODS[1:])
    moved = [(was, now) for was, now in zip(before, after, strict=True) if was != now]

    assert {was for was, _ in moved} == {PODS[0].name}
    assert len({now for _, now in moved}) == 4


def test_a_session_stays_home_whatever_the_load():
    """That is what it is compared for."""
    policy = make_policy("session", seed=0)
    home = policy.choose(request("ann"), PODS, 0.0).pod
    crowded = [PodState(pod.name, 100 if pod.name == home else 0) for pod in PODS]

    decision = policy.choose(request("ann"), crowded, 0.0)

    assert (decision.pod, decision.reason) == (home, "session")


def test_without_a_session_key_the_least_loaded_pod_is_taken():
    """The reason says so."""
    pods = [PodState("a", 2), PodState("b", 0)]

    decision = make_policy("session", seed=0).choose(request(), pods, 0.0)

    assert (decision.pod, decision.reason) == ("b", "load")


def test_bounded_load_walks_on_when_the_home_has_more_than_its_share():
    """With 5 in flight on five pods a share is ⌈6 / 5 · 1.25⌉ = 2."""
    policy = make_policy("chwbl", seed=0)
    home = policy.choose(request(first=42), PODS, 0.0).pod
    one = [PodState(pod.name, 1) for pod in PODS]
    full = [PodState(pod.name, 5 if pod.name == home else 0) for pod in PODS]

    within, beyond = (policy.choose(request(first=42), pods, 0.0) for pods in (one, full))

    assert (within.pod, within.reason) == (home, "prefix")
    assert beyond.pod != home
    assert beyond.reason == "load"


def test_prompts_that_begin_alike_share_a_home():
    """Only the first block is looked at."""
    policy = make_policy("chwbl", seed=0)
    tails = [RouteRequest("r", "m", (42, tail), 64, 150) for tail in range(50)]

    assert len({policy.choose(tail, PODS, 0.0).pod for tail in tails}) == 1
