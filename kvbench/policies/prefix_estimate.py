"""The longest match wins, among pods that are not overloaded: what most prefix routers do.

A pod is overloaded while its requests in flight exceed its share, 1.25 times the mean, by more
than a slack of 4. Without the guard a hot prefix would keep one pod busy and the others idle.
Where nobody has a block of the prompt, the least loaded pod gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.policies.by_prefix import ByPrefix
from kvbench.policies.choice import cheapest, decide
from kvbench.policies.decision import Candidate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.policies.decision import Decision, Reason, RouteRequest
    from kvbench.policies.pod_state import PodState

_LOAD_FACTOR = 1.25
_SLACK = 4
_TIE = 1e-6  # weight of a request in flight against a token: it breaks ties, nothing more


class PrefixEstimate(ByPrefix):
    """The pod with the longest beginning of the prompt, unless it is overloaded."""

    name = "prefix_estimate"

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Take the longest match that is not overloaded; the cost is uncached tokens."""
        matched = self._prefixes.matched_tokens(request, [pod.name for pod in pods], now)
        mean = (sum(pod.in_flight for pod in pods) + 1) / len(pods)
        room = mean * _LOAD_FACTOR + _SLACK
        candidates = [
            Candidate(
                pod.name,
                tokens,
                request.prompt_tokens - tokens + _TIE * pod.in_flight,
                {"in_flight": pod.in_flight, "room": room},
            )
            for pod, tokens in zip(pods, matched, strict=True)
        ]
        light = [
            candidate
            for candidate, pod in zip(candidates, pods, strict=True)
            if pod.in_flight <= room
        ]
        chosen = cheapest(light, self._rng)
        reason: Reason = "prefix" if chosen.matched_tokens else "load"
        return decide(self.name, chosen, reason, candidates)
