"""The rules of SGLang's router and of vllm-router, with the defaults of their command lines.

1. Where the pods are out of balance, the least loaded pod: the most loaded has more than 64
   requests in flight more than the least loaded, and more than 1.5 times as many.
2. Else, where more than 0.3 of the prompt has been sent to a pod before, the pod of the longest
   match.
3. Else the least loaded pod. (Earlier releases took the one with the smallest tree, which a slow
   pod keeps: it then attracts everything that is new.)

Theirs count characters, these count tokens; what is in a pod's cache is believed from what it was
sent, as there. Ties are drawn.
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

_MATCH = 0.3  # --cache-threshold
_APART = 64  # --balance-abs-threshold
_TIMES = 1.5  # --balance-rel-threshold


class CacheAware(ByPrefix):
    """The longest match, unless it is short or the pods are out of balance."""

    name = "cache_aware"

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Apply the three rules; the cost is uncached tokens, or requests in flight."""
        matched = self._prefixes.matched_tokens(request, [pod.name for pod in pods], now)
        loads = [pod.in_flight for pod in pods]
        most, least = max(loads), min(loads)
        out_of_balance = most - least > _APART and most > _TIMES * least
        by_match = not out_of_balance and max(matched) > _MATCH * request.prompt_tokens
        candidates = [
            Candidate(
                pod.name,
                tokens,
                float(request.prompt_tokens - tokens if by_match else pod.in_flight),
                {"in_flight": float(pod.in_flight), "match": tokens / (request.prompt_tokens or 1)},
            )
            for pod, tokens in zip(pods, matched, strict=True)
        ]
        reason: Reason = "prefix" if by_match else "load"
        if by_match:
            return decide(self.name, cheapest(candidates, self._rng), reason, candidates)
        idle = [one for one, load in zip(candidates, loads, strict=True) if load == least]
        return decide(self.name, self._rng.choice(idle), reason, candidates)
