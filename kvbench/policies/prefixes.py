"""What each pod is believed to hold: where the tokens matched come from.

`PrefixSource` is the question that a prefix policy asks. `RoutedPrefixes` answers it from nothing
but where requests were sent: the blocks of a prompt are on the pod that it went to, until they are
the least recently used of too many, or too old. Its keys are the router's own; no pod is asked.

A prompt that a pod refused, or had not computed when it failed or its client left, is not there:
those of its blocks that were new with it are forgotten, unless somebody has asked for them since.

What is believed of a pod is kept as `kvbench.policies.held` keeps blocks: a prompt costs the same
however long it is.

The size of a pod's cache is learned, from what the pod says of it if it says anything: answers take
some of that, and caches behind the pod's own add to it. Of a block that was believed, what
was asked for between its last use and this one is counted, its *distance*: a pod that still has the
block has room for more than that, and one that has not has room for no more. So each answer bounds
the size, from below as far as the prompt was there (what is *proven*; there is always room for the
whole prompt), and from above where it falls short: then so much is remembered from now on, and 3 %
more, for pods forget in the order in which requests end; but half of what was at least, for no one
answer is certain. Distances are taken when a prompt is sent; later on, what is asked for meanwhile
would be among them.

Not every shortfall is an eviction. What a request under way has asked for cannot have been evicted:
it is being computed, and who is computed side by side with it misses it. And pods that cache in
larger blocks than ours always miss a little. A shortfall against what is proven changes nothing but
that 5 % less of that is taken for proven. Where more is delivered than was believed, what is
remembered grows by as much; and by 0.4 % where a block was there that was about to be forgotten.

The size matters where caches are tight: who takes a cache for larger than it is sends a prompt
whose blocks are gone back to the pod that had them, each time; who knows that they are gone is free
to send it where there is most room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kvbench.policies.decision import Decision
from kvbench.policies.held import Held

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbench.policies.decision import Outcome, RouteRequest

_UNDER_WAY: Final = 4096  # most requests whose end is waited for
_RUNS: Final = 128  # if there are more, distances are of every second prompt, or every third, ...


class PrefixSource(Protocol):
    """Says how many tokens of a prompt each pod has cached."""

    def matched_tokens(self, request: RouteRequest, pods: Sequence[str], now: float) -> list[int]:
        """Return, for each of `pods`, the prompt tokens believed cached there."""
        ...

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Learn that `request` was sent to `pod`."""
        ...

    def finished(self, request: RouteRequest, decision: Decision, outcome: Outcome) -> None:
        """Learn how many tokens the pod had where `decision` believed `matched_tokens`."""
        ...

    def believed(self, request: RouteRequest) -> int:
        """Return the tokens of a request under way that were believed where it was sent."""
        ...

    def forget(self, pod: str) -> None:
        """Learn that `pod` holds nothing."""
        ...


class RoutedPrefixes:
    """The blocks of the prompts that each pod was sent, least recently used first.

    Args:
        capacity: Most blocks remembered per pod.
        ttl_s: Seconds after which a block that nobody asked for is forgotten.
        sizes: Tokens that pods say their caches hold, by pod; may change.
    """

    def __init__(
        self,
        capacity: int = 32_768,
        ttl_s: float = 1800.0,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._sizes: Mapping[str, int] = {} if sizes is None else sizes
        self._pods: dict[str, _Pod] = {}
        self._under_way: dict[str, _Placement] = {}

    def matched_tokens(self, request: RouteRequest, pods: Sequence[str], now: float) -> list[int]:
        """Return, for each of `pods`, the tokens of the longest beginning believed there.

        Never all of the prompt: a pod always computes at least its last token.
        """
        blocks = request.blocks
        if not blocks:
            return [0] * len(pods)
        most = max(request.prompt_tokens - 1, 0)
        fresh = now - self._ttl_s
        return [
            0
            if (known := self._pods.get(pod)) is None
            else min(known.held.matched(blocks, fresh) * request.block_tokens, most)
            for pod in pods
        ]

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the blocks of `request` for present on `pod`, and the most recently used there."""
        if not request.blocks:
            return
        known = self._pods.get(pod)
        if known is None:
            known = self._pods[pod] = _Pod(Held(self._capacity))
        told = self._sizes.get(pod, 0) // request.block_tokens
        if abs(told - known.told) > known.told // 16:  # or its tokens are estimated otherwise now
            known.told = told
            known.held.bound(min(told or self._capacity, self._capacity))
        self._leave(request.id)  # it may have been tried before
        self._under_way[request.id] = known.place(request.blocks, now)
        if len(self._under_way) > _UNDER_WAY:  # the end of some is never told
            self._leave(next(iter(self._under_way)))
        known.held.drop(now - self._ttl_s)

    def finished(self, request: RouteRequest, decision: Decision, outcome: Outcome) -> None:
        """Fit the remembered size of the pod's cache to what it delivered, if it did.

        Both sides are compared as shares of the prompt, for the tokens of a request may be
        estimated, and a share of 10 % and two blocks is left to the estimate.
        """
        placement = self._leave(request.id)
        pod = self._pods.get(decision.pod)
        if pod is None or placement is None or placement.pod is not pod:
            return
        if outcome.in_vain:
            if placement.at not in pod.under_way:  # nobody else asked at that moment
                pod.held.take_back(request.blocks, placement.known, placement.at)
            return
        if outcome.cached_tokens is None or not outcome.prompt_tokens:
            return
        cached = outcome.cached_tokens * request.prompt_tokens / outcome.prompt_tokens
        believed, size, held = decision.matched_tokens, request.block_tokens, pod.held
        last = min(int(cached), believed) // size - 1  # that was there
        distance = placement.part(last).before + last if last >= 0 else 0
        pod.proven = max(pod.proven, distance, len(request.blocks))
        if cached < 0.9 * believed - 2 * size:
            pod.fell_short(placement, int(cached // size))
        elif believed < 0.9 * cached - 2 * size:
            held.bound(min(held.capacity + int((cached - believed) // size), self._capacity))
        elif distance > 0.9 * held.capacity:
            held.bound(min(held.capacity + held.capacity // 256 + 1, self._capacity))

    def believed(self, request: RouteRequest) -> int:
        """Return the tokens of a request under way that were believed where it was sent."""
        placement = self._under_way.get(request.id)
        known = 0 if placement is None else placement.known * request.block_tokens
        return min(known, max(request.prompt_tokens - 1, 0))

    def _leave(self, identity: str) -> _Placement | None:
        """Take leave of a request that was under way, if it was."""
        placement = self._under_way.pop(identity, None)
        if placement is not None:
            placement.pod.leave(placement.at)
        return placement

    def forget(self, pod: str) -> None:
        """Drop all that was believed of `pod`."""
        self._pods.pop(pod, None)

    def size(self) -> int:
        """Return how many blocks are remembered, over all pods."""
        return sum(pod.held.size for pod in self._pods.values())


def sent_by_another(prefixes: PrefixSource, request: RouteRequest, pod: str) -> Decision:
    """Return as a decision that a request was sent to a pod, and what was believed there."""
    return Decision(pod, "", "only", prefixes.believed(request), ())


class _Part(NamedTuple):
    """A part of a prompt that was believed there, all of it last asked for at one moment.

    Attributes:
        end: Blocks of the prompt up to its end.
        before: Blocks that were asked for since, but for those of the prompt up to there: the
            distance of the prompt's block number b (from 0) is this and b.
        computing: Whether who asked for it was still under way.
    """

    end: int
    before: int
    computing: bool


_UNKNOWN: Final = _Part(0, 0, computing=True)


@dataclass(slots=True)
class _Pod:
    """What is known of a pod.

    Attributes:
        held: The blocks that it was sent.
        told: For how many blocks it says to have room, 0 if it does not say.
        proven: For how many blocks it has shown to have room.
        under_way: Moments at which requests were placed that have not ended, and how many.
        placed: Requests that it was sent.
    """

    held: Held
    told: int = 0
    proven: int = 0
    under_way: dict[float, int] = field(default_factory=dict)
    placed: int = 0

    def place(self, blocks: Sequence[int], now: float) -> _Placement:
        """Take blocks for present, and the most recently used."""
        held, before = self.held, self.held.added
        uses = held.touch(blocks, now)
        self.placed += 1
        parts = []
        if self.placed % (1 + held.runs // _RUNS) == 0:
            new = held.added - before
            since = held.since([at for _, at in uses])
            parts = [
                _Part(end, count - new - end, at in self.under_way)
                for (end, at), count in zip(uses, since, strict=True)
            ]
        self.under_way[now] = self.under_way.get(now, 0) + 1
        return _Placement(self, now, uses[-1][0] if uses else 0, parts)

    def leave(self, at: float) -> None:
        """Take note that a request has ended that was placed at a moment."""
        self.under_way[at] -= 1
        if not self.under_way[at]:
            del self.under_way[at]

    def fell_short(self, placement: _Placement, had: int) -> None:
        """Learn from a prompt of which only the first `had` blocks were there."""
        part = placement.part(had)
        if part.computing:
            return
        most = part.before + had
        if most < self.proven:
            self.proven = self.proven * 19 // 20
        elif most < self.held.size:
            self.held.bound(max(most + most // 32, self.held.size // 2, 1))


class _Placement(NamedTuple):
    """What was believed of a prompt when it was sent to a pod.

    Attributes:
        pod: What is known of the pod.
        at: When.
        known: How many of its blocks were believed there.
        parts: Along the prompt, what was believed of it; none where no distances were taken.
    """

    pod: _Pod
    at: float
    known: int
    parts: list[_Part]

    def part(self, block: int) -> _Part:
        """Return the part that a block is in."""
        return next((part for part in self.parts if part.end > block), _UNKNOWN)
