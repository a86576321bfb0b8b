"""Blocks of prompts in order of their use, in as few pieces as there are ways that prompts part.

Keys are a chain: a block's key stands for the whole prefix that ends with it. Touching a prompt
refreshes its blocks from the last to the first, so a block is never older than one that follows it,
and the oldest to go is the end of some chain, never its middle. Therefore blocks are kept in runs,
each of blocks that were last asked for together, in a tree whose oldest run is a leaf; and since
equal keys mean equal beginnings, how far a prompt goes along a run is found by bisection. So a
prompt costs a few comparisons for each run that it passes, however long it is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class Held:
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

    def take_back(self, blocks: Sequence[int], known: int, at: float) -> None:
        """Forget those of `blocks` behind the first `known` that were last asked for at `at`."""
        run, found = self._root, 0
        while found < len(blocks) and blocks[found] in run.children:
            run = run.children[blocks[found]]
            same = _same(run.blocks, blocks, found)
            found += same
            if same < len(run.blocks):
                return
        if run.at == at and not run.children and found > known:
            self._cut(run, found - known)

    @property
    def runs(self) -> int:
        """In how many runs the blocks are."""
        return len(self._runs)

    def since(self, moments: Sequence[float]) -> list[int]:
        """Return how many blocks were last asked for at each moment or later, the latest first."""
        counts, count, runs = [], 0, reversed(self._runs)
        run = next(runs, None)
        for at in moments:
            while run is not None and run.at >= at:
                count += len(run.blocks)
                run = next(runs, None)
            counts.append(count)
        return counts

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
