"""Keeps account of decisions: what each was made of, what it cost, what came of it. Pure.

For each decision: an entry of the journal, the regret, and what shadow policies would have done.
For each request that has ended: what shadows had expected of it, if it was served; what was
predicted against what was delivered, with the cause; whether the pod counted the same tokens; and
the rates at which pods work, learned from all answers, whatever the policy.

Regret is counted in outcomes, not in scores: the expected time to first token at the chosen pod,
less that at the best of the pods offered, by what they really held. Where one of them is not exact
there is no true state to compare with, and no regret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kvbench.policies.prediction import Evidence, cause_of
from kvbench.policies.rates import Rates
from kvbench.policies.shadow import DEFAULT_BLOCKS, Shadow
from kvbench.router.journal import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbench.policies.decision import Decision, Outcome, RouteRequest
    from kvbench.policies.pod_state import PodState
    from kvbench.policies.prediction import Cause
    from kvbench.router.books import WatchedIndex
    from kvbench.router.journal import Journal
    from kvbench.router.meters import Meters
    from kvbench.router.tokens import PromptTokens

_MOST_EVICTED = 20_000  # of which it is remembered that they were evicted, per pod
_NO_BLOCKS: Final[dict[str, int]] = {}  # of no pod; nobody adds to these
_NO_SECONDS: Final[dict[str, float]] = {}
_NO_TRUST: Final[dict[str, str]] = {}


class Evictions:
    """The blocks that were evicted last, by pod; an observer of the ledger.

    They are kept in two generations, of which the older is dropped when the younger is full.

    Attributes:
        count: How many there were, over all pods: a clock of their own.
    """

    def __init__(self) -> None:
        self.count = 0
        self._pods: dict[str, list[dict[int, int]]] = {}

    def since(self, pod: str, block: int, count: int) -> bool:
        """Return whether a pod has evicted a block since there were so many evictions."""
        return any(gone.get(block, -1) >= count for gone in self._pods.get(pod, ()))

    def forget(self, pod: str) -> None:
        """Forget a pod that is gone."""
        self._pods.pop(pod, None)

    def begins(self, pod: str, at: float, *, replayed: bool) -> None:
        """Take no note of a batch."""

    def cleared(self, pod: str) -> None:
        """Take no note of a reset."""

    def extended(self, pod: str, block: int, blocks: int) -> None:
        """Take no note of a use."""

    def stored(self, pod: str, block: int, parent: int, holders: int) -> None:
        """Take no note of a new block."""

    def removed(self, pod: str, block: int, holders: int, *, evicted: bool) -> None:  # noqa: ARG002
        """Take note of an eviction."""
        if not evicted:
            return
        name = pod.partition(" rank ")[0]
        generations = self._pods.get(name) or self._pods.setdefault(name, [{}, {}])
        if len(generations[0]) >= _MOST_EVICTED // 2:
            generations[:] = {}, generations[0]
        generations[0][block] = self.count
        self.count += 1


class Account:
    """The books.

    Args:
        index: What pods hold by their own account.
        tokens: The models whose tokens are known.
        meters: What is counted.
        journal: The last decisions.
        sizes: Tokens that the pods' caches hold, of those that have said so.
        utc: Calendar seconds.

    Attributes:
        journal: As given.
        rates: What prefill takes, and a request beside it.
        evictions: To be told of evictions.
    """

    def __init__(
        self,
        index: WatchedIndex,
        tokens: PromptTokens,
        meters: Meters,
        journal: Journal,
        sizes: Mapping[str, int],
        *,
        utc: Callable[[], float],
    ) -> None:
        self._index = index
        self._ledger = index.ledger
        self._tokens = tokens
        self._meters = meters
        self._utc = utc
        self._open: dict[int, Record] = {}  # whose requests are under way; clients may repeat an id
        self._shadows: dict[str, tuple[str, Shadow]] = {}
        self.journal = journal
        self.rates = Rates()
        self.evictions = Evictions()
        self._sizes = sizes

    def shadow(self, names: Sequence[str], serving: str, seed: int) -> None:
        """Begin to follow the traffic with these policies, and with the one that serves.

        Raises:
            InputError: There is no policy of one of these names.
        """
        for name in dict.fromkeys(names):
            self._shadows[f"shadow {name}"] = (name, Shadow(name, seed, self.rates))
        if names:
            self._shadows["serving"] = (serving, Shadow(None, seed, self.rates))

    def decided(
        self, request: RouteRequest, decision: Decision, pods: Sequence[PodState], now: float
    ) -> None:
        """Take note of a decision among `pods`, before the request counts on its pod."""
        size, ledger = request.hash_tokens, self._ledger
        names = [pod.name for pod in pods] if ledger.streams or self._shadows else []
        held = self._index.again(request.hashes, size, names) if size else _NO_BLOCKS
        for chosen in pods:  # compiled to a loop, which `next` of a generator is not
            if chosen.name == decision.pod:
                break
        record = self._open[id(decision)] = Record(
            request.id,
            self._utc(),
            request.model,
            decision,
            request.prompt_tokens,
            size,
            held,
            self._ttfts(request, decision, pods, held) if held else _NO_SECONDS,
            {name: ledger.trust(name).level for name in names if name not in held}
            if ledger.streams
            else _NO_TRUST,
            chosen.in_flight_prefill_tokens,
            chosen.in_flight,
            self.evictions.count,
        )
        if held and len(record.ttfts) == len(pods):
            best = min(record.ttfts.values())
            record.regret_s = record.ttfts[decision.pod] - best
            self._meters.regret.observe(decision.policy, value=record.regret_s)
        self.journal.begin(record)
        if self._shadows:
            self._follow(request, names, decision.pod, now)

    def finished(
        self, request: RouteRequest, decision: Decision, outcome: Outcome, now: float
    ) -> Record | None:
        """Take note of what became of a request; return what is kept of the decision on it."""
        if self._shadows:
            self._count_shadows(request, now, served=outcome.served)
        record = self._open.pop(id(decision), None)
        if record is None:
            return None
        record.outcome = outcome
        prompt, cached = outcome.prompt_tokens, outcome.cached_tokens
        if prompt is not None and cached is not None:
            self._compare(request, record, prompt, cached)
        self.journal.complete(record)
        return record

    def forget(self, pod: str) -> None:
        """Take note that a pod has lost its cache."""
        for _, shadow in self._shadows.values():
            shadow.forget(pod)

    def _ttfts(
        self,
        request: RouteRequest,
        decision: Decision,
        pods: Sequence[PodState],
        held: dict[str, int],
    ) -> dict[str, float]:
        """Return the seconds to first token to expect on the pods that are known exactly.

        What requests under way have promised counts as held, where the policy has said so.
        """
        promised = {one.pod: one.matched_tokens for one in decision.candidates}
        expected: dict[str, float] = {}
        for pod in pods:
            if pod.name in held:
                cached = max(held[pod.name] * request.hash_tokens, promised.get(pod.name, 0))
                waiting = pod.in_flight_prefill_tokens + max(request.prompt_tokens - cached, 0)
                expected[pod.name] = self.rates.expected_s(waiting, pod.in_flight)
        return expected

    def _follow(self, request: RouteRequest, pods: Sequence[str], served: str, now: float) -> None:
        """Let the shadows decide."""
        tokens = self._sizes.get(served)
        size = request.hash_tokens or request.block_tokens
        blocks = DEFAULT_BLOCKS if tokens is None else max(tokens // size, 1)
        for _, shadow in self._shadows.values():
            shadow.place(request, pods, served, blocks, now)

    def _count_shadows(self, request: RouteRequest, now: float, *, served: bool) -> None:
        """Count what the shadows had expected of a request, if it was served."""
        for role, (name, shadow) in self._shadows.items():
            expected = shadow.ended(request, now, served=served)
            if expected is not None:
                labels = (name, role.partition(" ")[0])
                self._meters.shadow_prompt_tokens.add(*labels, by=request.prompt_tokens)
                self._meters.shadow_cached_tokens.add(*labels, by=expected.cached_tokens)
                self._meters.shadow_ttft.observe(*labels, value=expected.ttft_s)

    def _compare(self, request: RouteRequest, record: Record, prompt: int, cached: int) -> None:
        """Compare what was predicted with what was delivered, and learn."""
        decision, ttft = record.decision, record.outcome.ttft_s
        difference = cached - decision.matched_tokens
        cause = record.cause = self._cause(request, record) if difference else "none"
        self._meters.predictions.add(cause)
        if difference:
            direction = "more" if difference > 0 else "less"
            self._meters.prediction_error.add(cause, direction, by=abs(difference))
        if cause == "duplicate":
            self._ledger.correct(decision.pod, request.hashes, cached // request.hash_tokens)
        if request.hash_tokens:
            self._count(request, prompt)
        if ttft is not None and (self._shadows or self._ledger.streams):
            own = max(prompt - cached, 0)
            self.rates.observe(record.waiting_tokens + own, record.in_flight, ttft)

    def _cause(self, request: RouteRequest, record: Record) -> Cause:
        """Return why what was delivered is not what was predicted."""
        decision, cached = record.decision, record.outcome.cached_tokens
        assert cached is not None
        pod, block, held = decision.pod, max(record.block, 1), record.held.get(decision.pod)
        evidence = Evidence(
            held is not None,
            decision.matched_tokens,
            cached,
            request.prompt_tokens,
            record.outcome.prompt_tokens,
            block,
        )
        if held is not None:
            missing = cached // block
            first = request.hashes[missing] if missing < len(request.hashes) else None
            since = record.evictions
            evidence = msgspec.structs.replace(
                evidence,
                indexed=held * block,
                evicted=first is not None and self.evictions.since(pod, first, since),
                copies=0 if first is None else self._ledger.copies(pod, first),
                exact_still=self._ledger.trust(pod).level == "exact",
            )
        return cause_of(evidence)

    def _count(self, request: RouteRequest, theirs: int) -> None:
        """Compare our count of the prompt with the pod's."""
        model = self._tokens.models.get(request.model)
        if model is not None and not model.count(request.prompt_tokens, theirs, request.form):
            self._meters.miscounted.add(request.model)
