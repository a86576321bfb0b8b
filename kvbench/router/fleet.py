"""All that the requests under way share: pods, connections, policies, meters, limits."""

from __future__ import annotations

import contextlib
import itertools
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import ON_INDEX, make_policy
from kvbench.router.account import Account
from kvbench.router.chats import KnownChats
from kvbench.router.keys import PIECE_TOKENS, BytesPerToken, crowded
from kvbench.router.meters import Meters
from kvbench.router.models import Models, UnknownModelError
from kvbench.router.others import Others
from kvbench.router.responses import Responses
from kvbench.router.upstream import Pool

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from kvbench.clock import Clock
    from kvbench.http.address import Address
    from kvbench.policies.decision import Decision, Outcome, Policy
    from kvbench.policies.indexed import Index
    from kvbench.router.books import Books
    from kvbench.router.forward import Forwarding, Limits
    from kvbench.router.membership import Lease, Membership, Pod
    from kvbench.router.tokens import Reading


class Policies:
    """The policies in use: the router's own, and those that requests have asked for.

    All learn of every placement and of what came of it, whoever decided: the blocks are there.

    Attributes:
        default: The router's own.
        several: Whether requests have asked for others.
        balance: For what is no prompt.
        sizes: Tokens that the pods' caches hold, of those that have said so.

    Raises:
        InputError: There is no policy of that name.
    """

    def __init__(self, default: str, seed: int, index: Index | None = None) -> None:
        self._seed = seed
        self._index = index
        self.sizes: dict[str, int] = {}
        self._policies = {default: make_policy(default, seed, index, self.sizes)}
        self.default = self._policies[default]
        self.several = False
        self.balance = make_policy("least_load", seed)

    def named(self, name: str) -> Policy:
        """Return the policy of that name, made when first asked for.

        Raises:
            InputError: There is none.
        """
        if name not in self._policies:
            self._policies[name] = make_policy(name, self._seed, self._index, self.sizes)
            self.several = True
        return self._policies[name]

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Tell all where a request went."""
        for policy in self._policies.values():
            policy.placed(request, pod, now)

    def witnessed(
        self, policy: Policy, request: RouteRequest, before: PodState, outcome: Outcome, now: float
    ) -> None:
        """Tell all but the policy that chose what became of a request."""
        for other in self._policies.values():
            if other is not policy:
                other.witnessed(request, before, outcome, now)

    def forget(self, pod: str) -> None:
        """Tell all that a pod holds nothing."""
        for policy in self._policies.values():
            policy.forget(pod)


class Fleet:
    """The pods and what is known of them.

    Attributes:
        membership: Which pods there are and which are offered.
        models: What they serve.
        others: What others have under way on the pods.
        pools: Connections, by pod.
        policies: Who chooses.
        bytes_per_token: How long a token is.
        chats: What of their bodies is known.
        responses: Who made which.
        meters: What is counted.
        tokens: The models whose tokens the router makes itself.
        account: Keeps account of decisions.
        limits: How long a pod may take.
        now: Returns the time, seconds; what that counts from is no matter.
        router: What pods are told of who asks.
        under_way: Requests not yet ended.
    """

    def __init__(
        self,
        membership: Membership,
        policies: Policies,
        limits: Limits,
        clock: Clock,
        books: Books,
        *,
        router: bytes = b"kvbench",
    ) -> None:
        self.membership = membership
        self.router = router
        self.index, self.tokens = books.index, books.tokens
        self.models = Models()
        self.others = Others()
        self.pools: dict[str, Pool] = {}
        self.policies = policies
        self.bytes_per_token = BytesPerToken()
        self.chats = KnownChats()
        self.responses = Responses()
        self.meters = Meters()
        self.account = Account(
            books.index, books.tokens, self.meters, books.journal, policies.sizes, utc=books.utc
        )
        books.index.ledger.observer = self.account.evictions
        books.index.ledger.on_empty = self.forget
        self.limits = limits
        self.now = clock.now
        self.under_way: set[Forwarding] = set()
        self._expected: list[tuple[float, int, Lease]] = []  # a heap
        self._numbers = itertools.count()
        self._leaving: list[Pod] = []
        for pod in membership.pods.values():
            self._joined(pod)

    def add(self, address: Address) -> Pod:
        """Take in a pod."""
        pod = self.membership.add(address)
        self._joined(pod)
        return pod

    def _joined(self, pod: Pod) -> None:
        if pod.name in self.pools:  # one of the same name has not quite left
            self.pools[pod.name].close()
        self.pools[pod.name] = Pool(pod.address, self.router)
        self.models.joined(pod.name)

    def remove(self, name: str) -> Pod:
        """Send a pod no more requests, and forget it once those that it has have ended.

        Raises:
            KeyError: There is none of that name.
        """
        pod = self.membership.remove(name)
        self.models.left(name)
        self.others.forget(pod)
        self.forget(name)
        self.sized(name, None)
        self._leaving.append(pod)
        return pod

    def _see_off(self) -> None:
        """Forget the pods that have left, and by now have nothing under way."""
        gone = [pod for pod in self._leaving if pod.state.in_flight == 0]
        self._leaving = [pod for pod in self._leaving if pod.state.in_flight]
        for pod in gone:
            if pod.name not in self.membership.pods and pod.name in self.pools:
                self.pools.pop(pod.name).close()
                self.forget(pod.name)
                self.account.evictions.forget(pod.name)
                self.meters.forget_pod(pod.name)

    def serving(self, model: str, response: str) -> Container[str] | None:
        """Return the pods that may be sent a request for a model; None if all may.

        Args:
            model: The model asked for.
            response: Id of the response that the request is about, "" if it is about none.

        Raises:
            UnknownModelError: None serves the model.
        """
        maker = self.responses.maker(response) if response else None
        return {maker} if maker in self.membership.pods else self.models.serving(model)

    def read(self, path: str, body: bytes) -> Reading | None:
        """Return a prompt laid out for its tokens, where they can be told and would be of use.

        Raises:
            BodyError: The body is not UTF-8.
        """
        ledger = self.index.ledger
        if not ledger.streams or ledger.block_size(self.membership.pods) is None:
            return None
        began = self.now()
        if crowded(body):
            return None
        parsed = self.tokens.parse(path, body)
        if parsed is None or not self._block_size(parsed.model):
            return None
        between = self.now()
        reading = self.tokens.lay_out(parsed)
        self.meters.stages.observe("parse", value=between - began)
        self.meters.stages.observe("template", value=self.now() - between)
        return reading

    def exactly(
        self, identity: str, session: str, reading: Reading, encoded: Sequence[Sequence[int]]
    ) -> RouteRequest:
        """Return a request with its tokens, given those that had to be encoded."""
        size = self._block_size(reading.prompt.model) or 1
        began = self.now()
        exact = reading.finish(encoded, size)
        self.meters.stages.observe("hash", value=self.now() - began)
        step = max(PIECE_TOKENS // size, 1)
        return RouteRequest(
            id=identity,
            model=reading.prompt.model,
            blocks=exact.hashes[step - 1 :: step],
            block_tokens=step * size,
            prompt_tokens=exact.prompt_tokens,
            session=session or reading.prompt.session,
            hashes=exact.hashes,
            hash_tokens=size,
            form=reading.form,
        )

    def _block_size(self, model: str) -> int:
        """Return the size of the blocks of the pods that serve a model; 0 if none has told it."""
        names: Iterable[str] = self.membership.pods
        with contextlib.suppress(UnknownModelError):
            among = self.models.serving(model)
            names = names if among is None else [name for name in names if name in among]
        return self.index.ledger.block_size(names) or 0

    def choose(
        self, policy: Policy, request: RouteRequest, pods: Sequence[PodState], now: float
    ) -> Decision:
        """Have a policy choose among `pods`, and tell everybody who has to know."""
        index, meters = self.index, self.meters
        index.spent_s = 0.0
        began = self.now()
        decision = policy.choose(request, pods, now)
        spent = self.now() - began
        meters.stages.observe("score", value=spent - index.spent_s)
        if request.hash_tokens:
            meters.stages.observe("look_up", value=index.spent_s)
            decision = self._predicted(request, decision, pods)
        meters.decisions.add(decision.policy, decision.reason)
        self.policies.placed(request, decision.pod, now)
        self.account.decided(request, decision, pods, now)
        return decision

    def _predicted(
        self, request: RouteRequest, decision: Decision, states: Sequence[PodState]
    ) -> Decision:
        """Return a decision that predicts what the chosen pod holds, also if its policy cannot."""
        if decision.policy in ON_INDEX:
            return decision
        names = [state.name for state in states]
        held = self.index.again(request.hashes, request.hash_tokens, names).get(decision.pod)
        if held is None:
            return decision
        return msgspec.structs.replace(decision, matched_tokens=held * request.hash_tokens)

    def finished(
        self, policy: Policy, request: RouteRequest, decision: Decision, outcome: Outcome
    ) -> None:
        """Tell everybody what became of a request."""
        now = self.now()
        believed = _believed(decision) if request.hash_tokens else decision
        policy.finished(request, believed, outcome, now)
        record = self.account.finished(request, decision, outcome, now)
        if self.policies.several and record is not None:
            before = PodState(decision.pod, record.in_flight, record.waiting_tokens)
            self.policies.witnessed(policy, request, before, outcome, now)

    def forget(self, pod: str) -> None:
        """Take note that a pod has lost its cache."""
        self.policies.forget(pod)
        self.account.forget(pod)

    def sized(self, pod: str, tokens: int | None) -> None:
        """Take note of how many tokens a pod's cache holds; None if it does not say."""
        if tokens is None:
            self.policies.sizes.pop(pod, None)
        else:
            self.policies.sizes[pod] = tokens

    def expect_first_token(self, moment: float, lease: Lease) -> None:
        """Take the first token of a request for come at `moment`, for it will not be seen."""
        heappush(self._expected, (moment, next(self._numbers), lease))

    def settle(self, now: float) -> None:
        """Take note of the first tokens that are expected to have come by now."""
        while self._expected and self._expected[0][0] <= now:
            heappop(self._expected)[2].first_token()

    def sweep(self) -> None:
        """End what has taken too long, and close connections that have been idle for too long."""
        now = self.now()
        self.settle(now)
        self._see_off()
        for forwarding in [one for one in self.under_way if one.overdue(now)]:
            forwarding.too_late()
        for pool in self.pools.values():
            pool.sweep()


def _believed(decision: Decision) -> Decision:
    """Return a decision as its policy made it, with its own belief in what is cached."""
    chosen = decision.chosen
    if chosen.matched_tokens == decision.matched_tokens:
        return decision
    return msgspec.structs.replace(decision, matched_tokens=chosen.matched_tokens)
