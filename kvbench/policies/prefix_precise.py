"""llm-d's scores over what pods hold: prefix 3, queue 2, cache utilisation 2.

score = 3 · (cached tokens ÷ prompt tokens) + 2 · (most waiting - waiting) ÷ (most - least waiting)
      + 2 · (1 - KV cache in use)

as llm-d's default profile has them, each between 0 and 1; where all queues are equal, theirs is 1.
The cost is 7 minus that, so less is better here as everywhere. What llm-d scrapes off the pods, and
this router does not, is taken from what it knows itself: requests in flight are the queue, and the
share of the prompts in flight is the cache in use. Ties are drawn.

With an exact index it is llm-d's precise scorer; without one, on estimates, its approximate one.
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

_PREFIX, _QUEUE, _MEMORY = 3.0, 2.0, 2.0  # pkg/epp/config/loader/defaults.go, loadDefaultConfig


class PrefixPrecise(ByPrefix):
    """The pod with the best weighted score."""

    name = "prefix_precise"

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Take the best score; the terms are its three parts, weighted."""
        matched = self._prefixes.matched_tokens(request, [pod.name for pod in pods], now)
        queues = [pod.in_flight for pod in pods]
        most, spread = max(queues), max(queues) - min(queues)
        waiting = sum(pod.in_flight_prefill_tokens for pod in pods)
        candidates = []
        for pod, tokens in zip(pods, matched, strict=True):
            terms = {
                "prefix": _PREFIX * tokens / max(request.prompt_tokens, 1),
                "queue": _QUEUE * ((most - pod.in_flight) / spread if spread else 1.0),
                "memory": _MEMORY * (1 - pod.in_flight_prefill_tokens / waiting if waiting else 1),
            }
            cost = _PREFIX + _QUEUE + _MEMORY - sum(terms.values())
            candidates.append(Candidate(pod.name, tokens, cost, terms))
        chosen = cheapest(candidates, self._rng)
        reason: Reason = "prefix" if chosen.matched_tokens else "load"
        return decide(self.name, chosen, reason, candidates)
