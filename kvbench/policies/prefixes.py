"""What each pod is believed to hold: where the tokens matched come from.

`PrefixSource` is the question that a prefix policy asks. `RoutedPrefixes` answers it from nothing
but where requests were sent: the blocks of a prompt are on the pod that it went to, until they are
the least recently used of too many, or too old. Its keys are the router's own; no pod is asked.

What is believed of a pod is kept as `kvbench.policies.held` keeps blocks: a prompt costs the same
however long it is.

The size of a pod's cache is not known here, so it is learned. A pod that delivers less than was
believed has evicted the first block that is missing; so it holds no more than what was asked for
between that block's last use and this one, which is counted. The bound goes half the way there if
that is at least half of what is remembered, and down by 1 % if not: then the answer may mislead,
for prompts that are computed side by side miss what they have in common, and pods cache in blocks
larger than ours. A pod that delivers more than was believed still has what was forgotten, and the
bound grows by that much; with each belief that holds it grows by 0.4 %. It matters where caches are
tight: who takes a cache for larger than it is sends a prompt whose blocks are gone back to the pod
that had them, each time; who knows that they are gone is free to send it where there is most room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvbench.policies.held import Held

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Decision, Outcome, RouteRequest

_UNDER_WAY = 4096  # most requests whose end is waited for


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

    def forget(self, pod: str) -> None:
        """Learn that `pod` holds nothing."""
        ...


class ByPrefix:
    """What policies have in common that look for the beginning of a prompt: whom they tell.

    Args:
        rng: For ties.
        prefixes: Says what pods have; None takes what was sent where.
    """

    def __init__(self, rng: random.Random, prefixes: PrefixSource | None = None) -> None:
        self._rng = rng
        self._prefixes = prefixes or RoutedPrefixes()

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the prompt for present there."""
        self._prefixes.placed(request, pod, now)

    def finished(
        self,
        request: RouteRequest,
        decision: Decision,
        outcome: Outcome,
        now: float,  # noqa: ARG002 - every policy is told
    ) -> None:
        """Compare what was believed with what was delivered."""
        self._prefixes.finished(request, decision, outcome)

    def forget(self, pod: str) -> None:
        """Drop what was believed of the pod."""
        self._prefixes.forget(pod)


class RoutedPrefixes:
    """The blocks of the prompts that each pod was sent, least recently used first.

    Args:
        capacity: Most blocks remembered per pod.
        ttl_s: Seconds after which a block that nobody asked for is forgotten.
    """

    def __init__(self, capacity: int = 32_768, ttl_s: float = 1800.0) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._pods: dict[str, Held] = {}
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
            if (held := self._pods.get(pod)) is None
            else min(held.matched(blocks, fresh) * request.block_tokens, most)
            for pod in pods
        ]

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the blocks of `request` for present on `pod`, and the most recently used there."""
        if not request.blocks:
            return
        held = self._pods.get(pod)
        if held is None:
            held = self._pods[pod] = Held(self._capacity)
        added = held.added
        self._under_way[request.id] = _Placement(pod, held.touch(request.blocks, now), added)
        if len(self._under_way) > _UNDER_WAY:  # the end of some is never told
            del self._under_way[next(iter(self._under_way))]
        held.drop(now - self._ttl_s)

    def finished(self, request: RouteRequest, decision: Decision, outcome: Outcome) -> None:
        """Fit the remembered size of the pod's cache to what it delivered.

        Both sides are compared as shares of the prompt, for the tokens of a request may be
        estimated, and a share of 10 % and two blocks is left to the estimate.
        """
        placement = self._under_way.pop(request.id, None)
        held = self._pods.get(decision.pod)
        if held is None or placement is None or placement.pod != decision.pod:
            return
        if outcome.cached_tokens is None or not outcome.prompt_tokens:
            return
        cached = outcome.cached_tokens * request.prompt_tokens / outcome.prompt_tokens
        believed, size = decision.matched_tokens, request.block_tokens
        if cached < 0.9 * believed - 2 * size:
            most = placement.most(held, int(cached // size))
            led = (held.size + most) // 2 if 2 * most >= held.size else held.size * 99 // 100
            held.bound(max(led, 1))
        elif believed < 0.9 * cached - 2 * size:
            held.bound(min(held.capacity + int((cached - believed) // size), self._capacity))
        elif believed:
            held.bound(min(held.capacity + held.capacity // 256 + 1, self._capacity))

    def forget(self, pod: str) -> None:
        """Drop all that was believed of `pod`."""
        self._pods.pop(pod, None)

    def size(self) -> int:
        """Return how many blocks are remembered, over all pods."""
        return sum(held.size for held in self._pods.values())


class _Placement(NamedTuple):
    """What was believed of a prompt when it was sent to a pod.

    Attributes:
        pod: Its name.
        uses: Along the prompt, how many blocks from its first, and when the last of them had been
            asked for before: later blocks never later.
        added: Blocks that had been added to what was believed of the pod, until then.
    """

    pod: str
    uses: list[tuple[int, float]]
    added: int

    def most(self, held: Held, had: int) -> int:
        """Return how many blocks the pod had at most, given how many it had of the prompt.

        They are those that were asked for since the first that is missing was; not counted what is
        missing and what was added, both of which were put there later.
        """
        at = next((at for end, at in self.uses if end > had), None)
        if at is None:
            return held.size
        missing = self.uses[-1][0] - had
        return min(max(held.since(at) - missing - (held.added - self.added), 0), held.size)
