"""The default: the pod where the first token costs everybody the fewest seconds.

cost (seconds) =
    prefill · (uncached tokens in flight there + this prompt's uncached tokens)
  + beside · (requests in flight there)
  + prefill · (this prompt's uncached tokens)
    · (½ requests in flight there + ½ churn² + ¼ mean requests in flight · surplus + newness)

The first two lines are the expected time to this request's first token. The third is what it takes
from others. While a pod computes this prompt, those that wait there wait, and those that decode
there slow down, taken to be half a second for each second. And what it adds to the pod's cache
pushes as much out, some of which will be asked for again and be computed again.

How much of it depends on how fast the pod's cache turns over, its *churn*: the uncached tokens that
it was sent of late, over the mean of all pods (so 1 is even, and 0 a pod that was sent nothing). A
block that is pushed out has lain idle for as long as the cache takes to turn over; the longer it
has, the less likely it is to be asked for, taken to fall with the square of the time. With pods of
one size that is churn². So cold prompts go where the cache lies idle before there is any queue,
and a pod that everything would hit a little is not sent everything: without this term,
conversations that share a few hundred tokens and come one after the other would all use one cache.

What is computed again is computed beside others too, and slows them as well: half a second for each
second and each request in flight then, of which the mean of all pods now is the best guess. This is
counted as far as a pod's churn² is larger than the least of the pods' (its *surplus*): what has to
be computed somewhere slows somebody wherever it goes, so a hot prefix is not kept from a pod that
lies idle. It keeps work even where many requests are in flight: they come and go, and a cold prompt
brings later ones with it, so where it goes should not hang on who has one more at the moment.

A pod that joins later than the others is warmed up slowly: for half a minute its uncached tokens
cost more (`newness`), ten times as much at first, then in inverse proportion to its age. It is
newer than others only: pods whose caches are emptied together have none of it.

That is what this request costs. A copy of its beginning serves later ones too. So a request that
stays with the cheapest pod though others have fewer requests in flight pays *rent*: to each of
them, what it would have saved there with a copy: beside, for each request fewer, and as much again,
for as it waits for those beside it, those who come while it is there wait for it. Where no first
token waits for others, nothing is saved. It pays for the beginning that its conversation found
cached at first, for where that is conversations begin. What was paid to a pod for a beginning makes
that pod cheaper; when it makes up for what a copy costs, the request that comes then makes it
(`kvbench.policies.rent`). So pods that alone hold what everybody asks for are not kept busier than
the others for long.

One figure weighs cache against load, in one unit, so nothing needs a threshold: a hot prefix spills
to a second pod exactly when that is cheaper than staying with the first; a prompt that nobody knows
goes to the least loaded pod; and what a decision gave away can be read off its candidates.
The two rates are learned from the pods' own answers (`kvbench.policies.rates`).
"""

# ruff: noqa: ARG002 - every policy is asked the same, whatever it needs to know
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from kvbench.policies.decision import Candidate, Decision
from kvbench.policies.prefixes import PrefixSource, RoutedPrefixes, sent_by_another
from kvbench.policies.rates import Rates
from kvbench.policies.rent import Rents

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Outcome, RouteRequest
    from kvbench.policies.pod_state import PodState


_MUTUAL: Final = 2.0  # who waits for others beside it is waited for by others
# Played in virtual time, half to twice these values do about as well.
_SLOWED: Final = 0.5
_ASKED_AGAIN: Final = 0.5
_HORIZON: Final = 2.0**17  # tokens per pod that "of late" is: about what a cache holds
_WARM_S: Final = 30.0
_COLDEST: Final = 0.1  # a new pod's age, as a share of that, is at least this
_LARGE: Final = 1e9
_OTHERS: Final = 4096  # most requests whose end is waited for


class _Table(msgspec.Struct):
    """The candidates of a decision, made when somebody looks: what spoke for and against each pod.

    Attributes:
        pods: Their names.
        matched: Prompt tokens believed cached there.
        waiting: Uncached tokens in flight there.
        in_flight: Requests in flight there.
        weights: Of an uncached token of the prompt, but for those in flight.
        prompt_tokens: Tokens of the prompt.
        a_token: Seconds of prefill.
        a_request: Seconds beside a request.
        rents: What was paid to each for a copy, seconds; empty where nobody has to pay.
        turns: Those of the caches, with what the request adds.
    """

    pods: list[str]
    matched: list[int]
    waiting: list[int]
    in_flight: list[int]
    weights: list[float]
    prompt_tokens: int
    a_token: float
    a_request: float
    rents: list[float] = []
    turns: float = 0.0

    def costs(self) -> list[float]:
        """Return what each pod costs, in seconds, but for rent."""
        tokens, a_token, a_request = self.prompt_tokens, self.a_token, self.a_request
        return [
            a_token * (waiting + (tokens - hit) * (1 + _SLOWED * in_flight + weight))
            + a_request * in_flight
            for hit, waiting, in_flight, weight in zip(  # noqa: B905 - so it is compiled to a loop
                self.matched, self.waiting, self.in_flight, self.weights
            )
        ]

    def __call__(self) -> tuple[Candidate, ...]:
        return tuple(map(self._candidate, range(len(self.pods)), self.costs()))

    def of(self, pod: str) -> Candidate:
        """Return a pod's."""
        at = self.pods.index(pod)
        return self._candidate(at, self.costs()[at])

    def _candidate(self, at: int, cost: float) -> Candidate:
        """Return one; `cost` is what it costs but for rent."""
        uncached, in_flight = self.prompt_tokens - self.matched[at], self.in_flight[at]
        terms = {
            "prefill_s": self.a_token * (self.waiting[at] + uncached),
            "beside_s": self.a_request * in_flight,
            "others_s": self.a_token * uncached * (_SLOWED * in_flight + self.weights[at]),
            "rent_s": 0.0 - self.rents[at] if self.rents else 0.0,
            "weight": self.weights[at],
            "waiting_tokens": float(self.waiting[at]),
            "in_flight": float(in_flight),
        }
        return Candidate(self.pods[at], self.matched[at], cost + terms["rent_s"], terms)


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
        self._turnover = _Turnover()
        self._rents = Rents()
        # What others have chosen: uncached tokens, and at which turn.
        self._others: dict[str, tuple[int, float]] = {}
        self.rates = rates or Rates()

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Take the cheapest; the terms are the seconds that its cost is made of, and why."""
        names = [pod.name for pod in pods]
        in_flight = [pod.in_flight for pod in pods]
        matched = self._prefixes.matched_tokens(request, names, now)
        table = _Table(
            names,
            matched,
            [pod.in_flight_prefill_tokens for pod in pods],
            in_flight,
            self._turnover.weights(names, sum(in_flight) / len(in_flight), now),
            request.prompt_tokens,
            self.rates.prefill,
            self.rates.beside,
        )
        costs = table.costs()
        place = _first_of(costs, matched, self._rng)
        last = matched[place] // request.block_tokens - 1
        if 0 <= last < len(request.blocks):
            prefix = request.blocks[last]
            self._rents.goes_on(prefix, matched[place], request.blocks[-1])
            if in_flight[place] > min(in_flight):
                place = self._rent(prefix, table, costs, place)
        pod, hit = names[place], matched[place]
        uncached = request.prompt_tokens - hit
        table.turns = self._turnover.chosen(request, pod, uncached)
        return Decision(
            pod,
            self.name,
            "only" if len(names) == 1 else "prefix" if hit else "load",
            hit,
            table,
            table.a_token * (table.waiting[place] + uncached),
        )

    def _rent(self, prefix: int, table: _Table, costs: list[float], home: int) -> int:
        """Have a request pay for staying at `home` though others have fewer in flight.

        Args:
            prefix: The key of the last block that `home` has.
            table: The candidates; is told what was paid.
            costs: What they cost, but for that.
            home: The cheapest.

        Returns:
            Where it goes: there, or where enough has been paid for a copy.
        """
        pods, matched, in_flight = table.pods, table.matched, table.in_flight
        busy, turns = in_flight[home], self._turnover.turns
        begins, tokens = self._rents.beginning(prefix, matched[home])
        paid = self._rents.paid(begins, turns)
        place, least = home, costs[home]
        rents = table.rents = [0.0] * len(pods)
        for at, pod in enumerate(pods):
            fewer = busy - in_flight[at]
            if fewer > 0 and matched[at] < tokens:
                rents[at] = paid.get(pod, 0.0)
                paid[pod] = rents[at] + _MUTUAL * table.a_request * fewer
                if costs[at] - rents[at] < least:
                    place, least = at, costs[at] - rents[at]
        if place == home:
            self._rents.pay(begins, paid, turns)
        else:
            self._rents.bought(begins)
        return place

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the prompt for present there."""
        if not self._turnover.placed(request, pod):  # another policy has chosen
            hit = self._prefixes.matched_tokens(request, [pod], now)[0]
            uncached = request.prompt_tokens - hit
            turns = self._turnover.chosen(request, pod, uncached)
            self._turnover.placed(request, pod)
            self._others[request.id] = uncached, turns
            if len(self._others) > _OTHERS:  # the end of some is never told
                del self._others[next(iter(self._others))]
        self._prefixes.placed(request, pod, now)

    def finished(
        self, request: RouteRequest, decision: Decision, outcome: Outcome, now: float
    ) -> None:
        """Learn the rates from its time, and the pod's memory from its cached tokens."""
        self._prefixes.finished(request, decision, outcome)
        table = decision.table
        if outcome.in_vain and isinstance(table, _Table):
            uncached = request.prompt_tokens - decision.matched_tokens
            self._turnover.take_back(decision.pod, uncached, table.turns)
        if outcome.ttft_s is None:
            return
        cached = outcome.cached_tokens
        cached = decision.matched_tokens if cached is None else cached
        prompt = request.prompt_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
        terms = decision.chosen.terms
        own = max(prompt - cached, 0)
        self.rates.observe(terms["waiting_tokens"] + own, terms["in_flight"], outcome.ttft_s)

    def witnessed(
        self, request: RouteRequest, before: PodState, outcome: Outcome, now: float
    ) -> None:
        """Learn the same from what another policy has chosen."""
        sent = sent_by_another(self._prefixes, request, before.name)
        self._prefixes.finished(request, sent, outcome)
        uncached, turns = self._others.pop(request.id, (0, 0.0))
        if outcome.in_vain:
            self._turnover.take_back(before.name, uncached, turns)
        if outcome.ttft_s is None:
            return
        cached = outcome.cached_tokens
        cached = sent.matched_tokens if cached is None else cached
        prompt = request.prompt_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
        waiting = before.in_flight_prefill_tokens + max(prompt - cached, 0)
        self.rates.observe(waiting, before.in_flight, outcome.ttft_s)

    def forget(self, pod: str) -> None:
        """Drop what was believed of the pod."""
        self._prefixes.forget(pod)
        self._turnover.forget(pod)


def _first_of(costs: list[float], matched: list[int], rng: random.Random) -> int:
    """Return the place of the candidate that `kvbench.policies.choice.cheapest` would return."""
    least, place, alone = costs[0], 0, True
    for at in range(1, len(costs)):
        cost = costs[at]
        if cost < least:
            least, place, alone = cost, at, True
        elif cost == least:
            alone = False
    if alone:
        return place
    tied = [at for at, cost in enumerate(costs) if cost == least]
    most = max([matched[at] for at in tied])
    tied = [at for at in tied if matched[at] == most]
    return tied[0] if len(tied) == 1 else rng.choice(tied)


class _Turnover:
    """How fast the pods' caches turn over, and which pods are new.

    A token that a pod was sent counts less with each that any pod is sent after it: by a factor e
    for each `_HORIZON` tokens a pod. (What is kept grows instead: only ratios matter.) Pods begin
    even, as if each had been sent a quarter of that; one that joins later begins with the mean of
    the others.
    """

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}
        self._unit = 1.0  # what a token counts that is sent now
        self.turns = 0.0  # how often `_HORIZON` tokens a pod were sent
        self._born: dict[str, float] = {}  # of pods that are younger than others
        self._latest = ("", "", 0)  # the decision that is about to be placed

    def weights(self, pods: Sequence[str], in_flight: float, now: float) -> list[float]:
        """Return what an uncached token weighs on each pod, beside its own second.

        `in_flight` are the requests of a pod, in the mean of all.
        """
        try:
            sent = [self._sent[pod] for pod in pods]
        except KeyError:
            sent = self._meet(pods, now)
        total, fewest = 0.0, sent[0]
        for one in sent:
            total += one
            fewest = min(fewest, one)
        scale = _ASKED_AGAIN * len(sent) * len(sent) / (total * total)
        beside = _SLOWED * in_flight * scale
        least = beside * fewest * fewest
        weights = [(scale + beside) * one * one - least for one in sent]
        if self._born:
            self._born = {pod: born for pod, born in self._born.items() if now - born < _WARM_S}
            newness = [self._newness(pod, now) for pod in pods]
            oldest = min(newness)  # where all caches were emptied, no pod is newer than others
            weights = [one + new - oldest for one, new in zip(weights, newness, strict=True)]
        return weights

    def _meet(self, pods: Sequence[str], now: float) -> list[float]:
        """Get to know the pods that are not known; return what each was sent."""
        known = [self._sent[pod] for pod in pods if pod in self._sent]
        typical = sum(known) / len(known) if known else self._unit * _HORIZON / 4
        for pod in pods:
            if pod not in self._sent:
                self._sent[pod] = typical
                if known:
                    self._born[pod] = now
        return [self._sent[pod] for pod in pods]

    def _newness(self, pod: str, now: float) -> float:
        """Return how many seconds a second of prefill costs more on a pod because it is new."""
        born = self._born.get(pod)
        return 0.0 if born is None else 1 / max((now - born) / _WARM_S, _COLDEST) - 1

    def chosen(self, request: RouteRequest, pod: str, uncached: int) -> float:
        """Take note of how many tokens a decision would have a pod compute.

        Return how often caches will have turned over then.
        """
        self._latest = (request.id, pod, uncached)
        return self.turns + self._turned(uncached)

    def placed(self, request: RouteRequest, pod: str) -> bool:
        """Count the tokens that a pod has to compute; return whether it is known how many."""
        sent = self._sent
        if pod not in sent:  # nobody has asked yet which pods there are
            return True
        identity, chosen, uncached = self._latest
        if identity != request.id or chosen != pod:
            return False
        turned = self._turned(uncached)
        self.turns += turned
        self._unit *= math.exp(turned)
        sent[pod] += uncached * self._unit
        if self._unit > _LARGE:
            self._sent = {name: one / self._unit for name, one in sent.items()}
            self._unit = 1.0
        return True

    def take_back(self, pod: str, uncached: int, turns: float) -> None:
        """Count no more what a pod was sent at so many turns, and has not computed."""
        if pod in self._sent:
            counted = uncached * self._unit * math.exp(turns - self.turns)
            self._sent[pod] = max(self._sent[pod] - counted, self._unit)

    def _turned(self, uncached: int) -> float:
        """Return by how much tokens that are sent turn the caches over."""
        return min(uncached / (_HORIZON * len(self._sent)), 1.0)

    def forget(self, pod: str) -> None:
        """Take the pod for new when it is offered again."""
        self._sent.pop(pod, None)
        self._born.pop(pod, None)
