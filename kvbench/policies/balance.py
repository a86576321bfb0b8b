"""Policies that look at pods alone, never at the prompt: the baselines everybody compares with."""

# ruff: noqa: ARG002 - every policy is asked the same, whatever it needs to know
from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.policies.choice import Memoryless, by_load, cheapest, decide
from kvbench.policies.decision import Candidate

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Decision, RouteRequest
    from kvbench.policies.pod_state import PodState


class Random(Memoryless):
    """Any pod, each as likely as the other."""

    name = "random"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Draw a pod."""
        candidates = [Candidate(pod.name, 0, 0.0, {}) for pod in pods]
        return decide(self.name, cheapest(candidates, self._rng), "random", candidates)


class RoundRobin(Memoryless):
    """One pod after the other, in the order in which they are offered."""

    name = "round_robin"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turn = -1

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Take the next pod; the cost is how many turns a pod would still have to wait."""
        self._turn += 1
        candidates = [
            Candidate(pod.name, 0, (place - self._turn) % len(pods), {})
            for place, pod in enumerate(pods)
        ]
        return decide(self.name, cheapest(candidates, self._rng), "turn", candidates)


class LeastLoad(Memoryless):
    """The pod with the fewest requests in flight."""

    name = "least_load"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Take the least loaded pod."""
        candidates = by_load(pods)
        return decide(self.name, cheapest(candidates, self._rng), "load", candidates)


class PowerOfTwo(Memoryless):
    """The less loaded of two pods drawn by chance."""

    name = "power_of_two"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Draw two, take the less loaded."""
        candidates = by_load(self._rng.sample(pods, min(2, len(pods))))
        return decide(self.name, cheapest(candidates, self._rng), "load", candidates)
