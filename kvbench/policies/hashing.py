"""Policies that hash a key to a pod: no index, no state, and every replica agrees.

Pods are ranked for a key by the hash of key and name (highest random weight). A pod that leaves
gives its keys evenly to the others, and moves nobody else's; no ring is needed for that.

Bounded load (Mirrokni et al., "Consistent Hashing with Bounded Loads"): a pod is passed over while
it has more than its share of the requests in flight, the share being the mean times a factor.
"""

# ruff: noqa: ARG002 - every policy is asked the same, whatever it needs to know
from __future__ import annotations

import math
from typing import TYPE_CHECKING

import xxhash

from kvbench.policies.choice import Memoryless, by_load, cheapest, decide

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Candidate, Decision, Reason, RouteRequest
    from kvbench.policies.pod_state import PodState

_LOAD_FACTOR = 1.25  # the value of the paper, and of KubeAI


def ranking(key: str, pods: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in the order in which `key` prefers them."""
    return sorted(
        pods,
        key=lambda pod: xxhash.xxh3_64_intdigest(f"{key}\x1f{pod.pod}".encode()),
        reverse=True,
    )


class Session(Memoryless):
    """The pod that the session's key hashes to; without a key, the least loaded."""

    name = "session"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Send a session home."""
        candidates = by_load(pods)
        if request.session is None:
            return decide(self.name, cheapest(candidates, self._rng), "load", candidates)
        home = ranking(request.session, candidates)[0]
        return decide(self.name, home, "session", candidates)


class BoundedLoad(Memoryless):
    """The first pod, in the order that the prompt's beginning prefers, that has room.

    The key is the prompt's first block, so that prompts that begin alike share a home; what comes
    after it is not seen. Prompts shorter than a block go to the least loaded pod.
    """

    name = "chwbl"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Walk the ranking until a pod has room."""
        candidates = by_load(pods)
        if not request.blocks:
            return decide(self.name, cheapest(candidates, self._rng), "load", candidates)
        total = sum(pod.in_flight for pod in pods) + 1
        share = math.ceil(total / len(pods) * _LOAD_FACTOR)
        order = ranking(str(request.blocks[0]), candidates)
        chosen = next(pod for pod in order if pod.cost + 1 <= share)
        reason: Reason = "prefix" if chosen is order[0] else "load"
        return decide(self.name, chosen, reason, candidates)
