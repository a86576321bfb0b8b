"""What each pod is believed to hold: where the tokens matched come from.

`PrefixSource` is the question that a prefix policy asks. `RoutedPrefixes` answers it from nothing
but where requests were sent: the blocks of a prompt are on the pod that it went to, until they are
the least recently used of too many, or too old. Its keys are the router's own; no pod is asked.

Theory. Keys are a chain: a block's key stands for the whole prefix that ends with it. Touching a
prompt refreshes its blocks from the last to the first, so a block is never older than one that
follows it, and the oldest to go is the end of some chain, never its middle. Therefore what a pod
holds of a chain is always a beginning of it, and the longest match is found by bisection: a prompt
of 512 blocks costs ten look-ups a pod.

The size of a pod's cache is not known here, so it is learned: a pod that delivers less than was
believed has evicted what was taken for present, so 5 % of what is remembered of it is dropped, the
oldest, and that is the new bound. Each belief that holds lets the bound grow by 0.4 %.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Decision, Outcome, RouteRequest


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
        self._pods: dict[str, _Held] = {}

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
            min(self._matched_blocks(blocks, pod, fresh) * request.block_tokens, most)
            for pod in pods
        ]

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the blocks of `request` for present on `pod`, and the most recently used there."""
        held = self._pods.get(pod)
        if held is None:
            held = self._pods[pod] = _Held(self._capacity)
        if request.blocks:
            held.touch(request.blocks, now)
        held.drop(now - self._ttl_s)

    def finished(self, request: RouteRequest, decision: Decision, outcome: Outcome) -> None:
        """Fit the remembered size of the pod's cache to what it delivered.

        Both sides are compared as shares of the prompt, for the tokens of a request may be
        estimated, and a share of 10 % and two blocks is left to the estimate.
        """
        held = self._pods.get(decision.pod)
        if held is None or not decision.matched_tokens or not outcome.prompt_tokens:
            return
        if outcome.cached_tokens is None:
            return
        cached = outcome.cached_tokens * request.prompt_tokens / outcome.prompt_tokens
        if cached < 0.9 * decision.matched_tokens - 2 * request.block_tokens:
            held.bound(max(len(held.stamps) * 19 // 20, 1))
        else:
            held.bound(min(held.capacity + held.capacity // 256 + 1, self._capacity))

    def forget(self, pod: str) -> None:
        """Drop all that was believed of `pod`."""
        self._pods.pop(pod, None)

    def size(self) -> int:
        """Return how many blocks are remembered, over all pods."""
        return sum(len(held.stamps) for held in self._pods.values())

    def _matched_blocks(self, blocks: Sequence[int], pod: str, fresh: float) -> int:
        held = self._pods.get(pod)
        if held is None:
            return 0
        stamps = held.stamps
        if stamps.get(blocks[0], -math.inf) < fresh:
            return 0
        low, high = 1, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if stamps.get(blocks[middle - 1], -math.inf) >= fresh:
                low = middle
            else:
                high = middle - 1
        return low


class _Held:
    """The blocks of one pod: when each was last asked for, least recently first."""

    __slots__ = ("capacity", "stamps")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stamps: OrderedDict[int, float] = OrderedDict()

    def touch(self, blocks: Sequence[int], now: float) -> None:
        """Make `blocks` the most recent, the first of them last; keep within capacity."""
        stamps = self.stamps
        for block in reversed(blocks[: self.capacity]):
            stamps[block] = now
            stamps.move_to_end(block)
        self.bound(self.capacity)

    def bound(self, capacity: int) -> None:
        """Keep at most `capacity` blocks, from now on."""
        self.capacity = capacity
        while len(self.stamps) > capacity:
            self.stamps.popitem(last=False)

    def drop(self, before: float) -> None:
        """Forget what was last asked for before that moment."""
        stamps = self.stamps
        while stamps and next(iter(stamps.values())) < before:
            stamps.popitem(last=False)
