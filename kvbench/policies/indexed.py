"""What each pod holds by its own account, where that can be believed; else an estimate.

`IndexedPrefixes` answers a prefix policy's question pod by pod: exactly, from the index of KV
events, if the prompt's token ids are known and the pod is *exact*; from the estimate otherwise.
Stale truth is not used: it errs without bounds, where an estimate errs little.

Events tell of a block when it has been computed, which may be seconds after the request that will
compute it was routed. Until then the block is *promised*: taken for present on the pod that the
request was sent to, or a hundred requests with one prefix would each look for an empty pod. A
promise lasts while its request is under way, and until its events have come: two seconds at most.
That of a request that was refused, or that failed or was left before it was computed, ends at once,
as far as no other has promised the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence  # noqa: TC003  # compiled, the class looks at it
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from kvbench.policies.decision import Outcome
from kvbench.policies.prefixes import RoutedPrefixes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.policies.decision import Decision, RouteRequest
    from kvbench.policies.prefixes import PrefixSource

_COARSE: Final = 4
_LONGEST_S: Final = 120.0  # a promise whose request is never heard of again
_GRACE_S: Final = 2.0  # from the end of a request to its events
_UNTOLD: Final = Outcome()


class Index(Protocol):
    """Who knows what pods hold: `kvbench.kvcache.ledger`, or a simulation's pods themselves."""

    def match(self, hashes: Sequence[int], block_size: int, pods: Sequence[str]) -> dict[str, int]:
        """Return, for those of `pods` that are known exactly, how many of the blocks they hold."""
        ...


@dataclass(slots=True)
class _Promise:
    """What a request has promised.

    Attributes:
        pod: For which pod.
        blocks: All of its prompt.
        first: The first of them that is promised; those before it are there.
        until: When it expires if nothing is heard of it.
    """

    pod: str
    blocks: Sequence[int]
    first: int
    until: float


@dataclass(slots=True)
class _Promises:
    """Blocks that a pod will have, and until when that is taken for granted.

    Attributes:
        until: When each of them expires.
        leaving: The promises of requests that have ended, and when they expire.
    """

    until: dict[int, float] = field(default_factory=dict)
    leaving: deque[tuple[float, _Promise]] = field(default_factory=deque)

    def end(self, promise: _Promise, until: float) -> None:
        """Let blocks expire at `until`, unless they have been promised again since."""
        for block in promise.blocks[promise.first :]:
            if self.until.get(block) == promise.until:
                self.until[block] = until
        self.leaving.append((until, promise))

    def break_off(self, promise: _Promise, under_way: Iterable[_Promise], now: float) -> None:
        """End a promise that will not be kept; what others have promised before it holds.

        `under_way` are those, the latest first.
        """
        self.end(promise, now)
        at = promise.first  # up to there it is known who else has promised
        for other in under_way:
            if other.pod == promise.pod:
                at = self._renew(promise, other, at, other.until)
        for until, other in reversed(self.leaving):
            if until > now:
                at = self._renew(promise, other, at, until)

    def _renew(self, broken: _Promise, other: _Promise, at: int, until: float) -> int:
        """Let what two promises share from block `at` on expire at `until`, if that is later."""
        blocks, others = broken.blocks, other.blocks
        start = max(other.first, at)
        most = min(len(others), len(blocks))
        shared = start
        while shared < most and blocks[shared] == others[shared]:
            if self.until.get(blocks[shared], 0.0) < until:
                self.until[blocks[shared]] = until
            shared += 1
        return shared if shared > start else at

    def drop(self, now: float) -> None:
        """Forget what has expired."""
        while self.leaving and self.leaving[0][0] <= now:
            promise = self.leaving.popleft()[1]
            for block in promise.blocks[promise.first :]:
                if self.until.get(block, math.inf) <= now:
                    del self.until[block]

    def extend(self, blocks: Sequence[int], held: int, now: float) -> int:
        """Return how many blocks will be there, if the first `held` are."""
        until = self.until
        while held < len(blocks) and until.get(blocks[held], now) > now:
            held += 1
        return held


class IndexedPrefixes:
    """Exact where it can be, an estimate where not.

    Args:
        index: What pods hold by their own account.
        estimate: What to believe of the others.
    """

    def __init__(self, index: Index, estimate: PrefixSource | None = None) -> None:
        self._index = index
        self._estimate = estimate or RoutedPrefixes()
        self._promises: dict[str, _Promises] = {}
        self._under_way: dict[str, _Promise] = {}
        self._latest: tuple[str, dict[str, int]] = ("", {})
        self._now = 0.0

    def matched_tokens(self, request: RouteRequest, pods: Sequence[str], now: float) -> list[int]:
        """Return, for each of `pods`, the prompt tokens that it has, or will have, cached."""
        self._now = now
        if not request.hash_tokens:
            return self._estimate.matched_tokens(request, pods, now)
        found = self._exact(request, pods, now)
        others = [pod for pod in pods if pod not in found]
        if others:
            estimated = self._estimate.matched_tokens(_coarse(request), others, now)
            found.update(zip(others, estimated, strict=True))
        return [found[pod] for pod in pods]

    def _exact(self, request: RouteRequest, pods: Sequence[str], now: float) -> dict[str, int]:
        """Return the cached tokens of the pods that are known exactly."""
        held = self._index.match(request.hashes, request.hash_tokens, pods)
        self._latest = (request.id, held)
        found: dict[str, int] = {}
        for pod, blocks in held.items():
            promises = self._promises.get(pod)
            if promises is not None:
                blocks = promises.extend(request.hashes, blocks, now)  # noqa: PLW2901 - refined
            found[pod] = blocks * request.hash_tokens
        return found

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Promise the blocks of `request` that `pod` does not have yet."""
        if not request.hash_tokens:
            self._estimate.placed(request, pod, now)
            return
        self._estimate.placed(_coarse(request), pod, now)
        identity, held = self._latest
        known = held.get(pod, 0) if identity == request.id else 0
        self._expire(now)
        promise = _Promise(pod, request.hashes, known, now + _LONGEST_S)
        if known < len(request.hashes):
            promises = self._promises.setdefault(pod, _Promises())
            promises.until.update(dict.fromkeys(request.hashes[known:], promise.until))
            self._under_way[request.id] = promise

    def _expire(self, now: float) -> None:
        """End the promises of requests that were never heard of again; forget what has expired."""
        while self._under_way:
            oldest = next(iter(self._under_way))
            promise = self._under_way[oldest]
            if promise.until > now:
                break
            del self._under_way[oldest]
            if promise.pod in self._promises:
                self._promises[promise.pod].end(promise, now)
        for promises in self._promises.values():
            promises.drop(now)

    def finished(self, request: RouteRequest, decision: Decision, outcome: Outcome) -> None:
        """Let the promises of a request expire; let the estimate learn, where it was used."""
        if not request.hash_tokens:
            self._estimate.finished(request, decision, outcome)
            return
        none = _Promise(decision.pod, (), 0, 0.0)
        promise = self._under_way.pop(request.id, none)
        pod, now = promise.pod, self._now
        # A chain of one block: has the last of them come, so have all.
        come = self._index.match(promise.blocks[-1:], request.hash_tokens, [pod]).get(pod)
        promises = self._promises.get(pod)
        if promises is not None and promise.blocks:
            if come:
                promises.end(promise, now)
                promises.drop(now)
            elif outcome.in_vain:
                promises.break_off(promise, reversed(self._under_way.values()), now)
            else:
                promises.end(promise, now + _GRACE_S)
        if come is None or outcome.in_vain:  # not exact, so it was estimated; or to be taken back
            self._estimate.finished(_coarse(request), decision, outcome)
        else:  # it has ended; what it got says nothing of an estimate
            self._estimate.finished(request, decision, _UNTOLD)

    def believed(self, request: RouteRequest) -> int:
        """Return what the estimate believed, which learns only where there was nothing better."""
        return self._estimate.believed(_coarse(request) if request.hash_tokens else request)

    def forget(self, pod: str) -> None:
        """Drop what was believed of `pod`."""
        self._promises.pop(pod, None)
        self._estimate.forget(pod)


def _coarse(request: RouteRequest) -> RouteRequest:
    """Return a request with tokens to estimate: in few and large blocks, as it is likely known."""
    return msgspec.structs.replace(
        request,
        blocks=request.blocks[_COARSE - 1 :: _COARSE],
        block_tokens=_COARSE * request.block_tokens,
    )
