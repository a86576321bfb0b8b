"""The default: the pod where the first token costs everybody the fewest seconds.

cost (seconds) = prefill · (uncached tokens in flight there + this prompt's uncached tokens)
               + beside · (requests in flight there)
               + prefill · (this prompt's uncached tokens) · (½ requests in flight there + ¼)

The first two lines are the expected time to this request's first token. The third is what it takes
from others: while a pod computes this prompt, those that wait there wait, and those that decode
there slow down, taken to be half a second for each second; and what it adds to the cache pushes as
much out, of which a quarter is taken to be asked for again. Without this line each request would
flee a short queue for an empty pod, compute there what the busy one has cached, and fill the
fleet's caches with copies; all would wait longer.

One figure weighs cache against load, in one unit, so nothing needs a threshold: a hot prefix spills
to a second pod exactly when that is cheaper than waiting for the first; a prompt that nobody knows
goes to the least loaded pod; and what a decision gave away can be read off its candidates.
The two rates are learned from the pods' own answers (`kvbench.policies.rates`).
"""

# ruff: noqa: ARG002 - every policy is asked the same, whatever it needs to know
from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.policies.choice import cheapest, decide
from kvbench.policies.decision import Candidate
from kvbench.policies.prefixes import PrefixSource, RoutedPrefixes
from kvbench.policies.rates import Rates

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Decision, Outcome, PodState, Reason, RouteRequest


# Played in virtual time, half to twice these values do about as well; without them, time to first
# token is twice as long where 64 sessions at a time share caches that are too small for them.
_SLOWED = 0.5
_ASKED_AGAIN = 0.25


class PrefixCost:
    """The pod with the least cost in seconds."""

    name = "prefix_cost"

    def __init__(
        self,
        rng: random.Random,
        prefixes: PrefixSource | None = None,
        rates: Rates | None = None,
    ) -> None:
        self._rng = rng
        self._prefixes = prefixes or RoutedPrefixes()
        self.rates = rates or Rates()

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Take the cheapest; the terms are the seconds that its cost is made of, and why."""
        matched = self._prefixes.matched_tokens(request, [pod.name for pod in pods], now)
        a_token, a_request = self.rates.prefill, self.rates.beside
        candidates = []
        for pod, tokens in zip(pods, matched, strict=True):
            uncached = request.prompt_tokens - tokens
            waiting, in_flight = pod.in_flight_prefill_tokens, pod.in_flight
            prefill = a_token * (waiting + uncached)
            beside = a_request * in_flight
            others = a_token * uncached * (_SLOWED * in_flight + _ASKED_AGAIN)
            terms = {
                "prefill_s": prefill,
                "beside_s": beside,
                "others_s": others,
                "waiting_tokens": waiting,
                "in_flight": in_flight,
            }
            candidates.append(Candidate(pod.name, tokens, prefill + beside + others, terms))
        chosen = cheapest(candidates, self._rng)
        reason: Reason = "prefix" if chosen.matched_tokens else "load"
        return decide(self.name, chosen, reason, candidates)

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the prompt for present there."""
        self._prefixes.placed(request, pod, now)

    def finished(
        self, request: RouteRequest, decision: Decision, outcome: Outcome, now: float
    ) -> None:
        """Learn the rates from its time, and the pod's memory from its cached tokens."""
        self._prefixes.finished(request, decision, outcome)
        if outcome.ttft_s is None:
            return
        cached = outcome.cached_tokens
        cached = decision.matched_tokens if cached is None else cached
        prompt = request.prompt_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
        terms = next(c.terms for c in decision.candidates if c.pod == decision.pod)
        own = max(prompt - cached, 0)
        self.rates.observe(terms["waiting_tokens"] + own, terms["in_flight"], outcome.ttft_s)

    def forget(self, pod: str) -> None:
        """Drop what was believed of the pod."""
        self._prefixes.forget(pod)
