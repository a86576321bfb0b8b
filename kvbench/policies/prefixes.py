"""What each pod is believed to hold: where the tokens matched come from.

`PrefixSource` is the question that a prefix policy asks. `RoutedPrefixes` answers it from nothing
but where requests were sent: the blocks of a prompt are on the pod that it went to, until they are
the least recently used of too many, or too old. Its keys are the router's own; no pod is asked.

Theory. Keys are a chain: a block's key stands for the whole prefix that ends with it. Touching a
prompt refreshes its blocks from the last to the first, so a block is never older than one that
follows it, and the oldest to go is the end of some chain, never its middle. Therefore blocks are
kept in runs, each of blocks that were last asked for together, in a tree whose oldest run is a
leaf; and since equal keys mean equal beginnings, how far a prompt goes along a run is found by
bisection. So a prompt costs a few comparisons for each run that it passes, however long it is.

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

import math
from bisect import bisect_left
from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, Protocol

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
        self._pods: dict[str, _Held] = {}
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
            held = self._pods[pod] = _Held(self._capacity)
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


class _Run:
    """Blocks that follow on one another and were last asked for together.

    Attributes:
        blocks: Their keys; never none.
        parent: The run whose last block comes before them.
        at: When they were last asked for.
        children: The runs that follow, by their first key.
    """

    __slots__ = ("at", "blocks", "children", "parent")

    def __init__(self, blocks: Sequence[int], parent: _Run | None, at: float) -> None:
        self.blocks = blocks
        self.parent = parent
        self.at = at
        self.children: dict[int, _Run] = {}


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

    def most(self, held: _Held, had: int) -> int:
        """Return how many blocks the pod had at most, given how many it had of the prompt.

        They are those that were asked for since the first that is missing was; not counted what is
        missing and what was added, both of which were put there later.
        """
        at = next((at for end, at in self.uses if end > had), None)
        if at is None:
            return held.size
        missing = self.uses[-1][0] - had
        return min(max(held.since(at) - missing - (held.added - self.added), 0), held.size)


class _Held:
    """The blocks of one pod, as a tree of runs; the least recently used run is always a leaf.

    Attributes:
        capacity: Most blocks that are kept.
        size: How many there are.
        added: How many have been added, ever.
    """

    __slots__ = ("_root", "_runs", "added", "capacity", "size")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.added = 0
        self._root = _Run((), None, math.inf)
        self._runs: OrderedDict[_Run, None] = OrderedDict()  # least recently used first

    def matched(self, blocks: Sequence[int], fresh: float) -> int:
        """Return how many of `blocks`, from the first, were asked for at `fresh` or later."""
        run, found = self._root.children.get(blocks[0]), 0
        while run is not None and run.at >= fresh:
            same = _same(run.blocks, blocks, found)
            found += same
            if same < len(run.blocks) or found == len(blocks):
                break
            run = run.children.get(blocks[found])
        return found

    def touch(self, blocks: Sequence[int], now: float) -> list[tuple[int, float]]:
        """Make `blocks` the most recent, the first of them last; keep within capacity.

        Return, along those that were there, how many, and when they had been asked for before.
        """
        path, uses, run, found = [], [], self._root, 0
        blocks = blocks[: self.capacity]
        while found < len(blocks):
            child = run.children.get(blocks[found])
            if child is None:
                run = self._grow(run, blocks[found:])
                found = len(blocks)
            else:
                same = _same(child.blocks, blocks, found)
                run = child if same == len(child.blocks) else self._split(child, same)
                found += same
                uses.append((found, run.at))
            path.append(run)
        for run in reversed(path):
            run.at = now
            self._runs.move_to_end(run)
        self.bound(self.capacity)
        return uses

    def since(self, at: float) -> int:
        """Return how many blocks were last asked for at that moment or later."""
        young = takewhile(lambda run: run.at >= at, reversed(self._runs))
        return sum(len(run.blocks) for run in young)

    def _grow(self, run: _Run, blocks: Sequence[int]) -> _Run:
        """Add blocks behind a run; return the run that has them: that one, if it was a leaf."""
        self.size += len(blocks)
        self.added += len(blocks)
        if run.blocks and not run.children:
            run.blocks = (*run.blocks, *blocks)
            return run
        child = run.children[blocks[0]] = _Run(blocks, run, 0.0)
        self._runs[child] = None
        return child

    def _split(self, run: _Run, at: int) -> _Run:
        """Cut a run in two; return the front, a new one."""
        parent = run.parent
        assert parent is not None
        front = _Run(run.blocks[:at], parent, run.at)
        run.blocks, run.parent = run.blocks[at:], front
        parent.children[front.blocks[0]] = front
        front.children[run.blocks[0]] = run
        self._runs[front] = None
        return front

    def bound(self, capacity: int) -> None:
        """Keep at most `capacity` blocks, from now on."""
        self.capacity = capacity
        while self.size > capacity:
            self._cut(next(iter(self._runs)), self.size - capacity)

    def drop(self, before: float) -> None:
        """Forget what was last asked for before that moment."""
        while self._runs and (oldest := next(iter(self._runs))).at < before:
            self._cut(oldest, len(oldest.blocks))

    def _cut(self, leaf: _Run, most: int) -> None:
        """Forget the last blocks of a leaf."""
        kept = max(len(leaf.blocks) - most, 0)
        self.size -= len(leaf.blocks) - kept
        if kept:
            leaf.blocks = leaf.blocks[:kept]
            return
        assert leaf.parent is not None
        del leaf.parent.children[leaf.blocks[0]]
        del self._runs[leaf]


def _same(run: Sequence[int], blocks: Sequence[int], start: int) -> int:
    """Return how many keys of `run` are those of `blocks` from `start`, given that the first is."""
    most = min(len(run), len(blocks) - start)
    if run[most - 1] == blocks[start + most - 1]:
        return most
    return bisect_left(range(most), x=True, key=lambda at: run[at] != blocks[start + at])
