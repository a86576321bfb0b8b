"""The queue of free blocks: who is reused next.

A doubly linked list over block numbers, kept in two flat arrays (eight bytes a block), so that a
block in the middle can leave in constant time when its content is hit again. The order is the
eviction order: the front is reused first. vLLM calls it `FreeKVCacheBlockQueue`.

It holds numbers only. Whether a free block still has something worth keeping is the pool's affair.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class FreeQueue:
    """Block numbers 0 to `blocks` - 1, at the beginning all free and in order."""

    __slots__ = ("_next", "_previous", "_size")

    def __init__(self, blocks: int) -> None:
        # The last slot is the ring's knot: its next is the front, its previous the back.
        knot = blocks
        self._next = array("I", range(1, blocks + 2))
        self._next[knot] = 0
        self._previous = array("I", [knot, *range(blocks)])
        self._size = blocks

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        knot = len(self._next) - 1
        block = self._next[knot]
        while block != knot:
            yield block
            block = self._next[block]

    def pop(self, count: int) -> list[int]:
        """Take the first `count` blocks; there must be as many."""
        links, knot = self._next, len(self._next) - 1
        taken = []
        block = links[knot]
        for _ in range(count):
            taken.append(block)
            block = links[block]
        links[knot] = block
        self._previous[block] = knot
        self._size -= count
        return taken

    def remove(self, block: int) -> None:
        """Take out a block that is in the queue, wherever it stands."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._size -= 1

    def append(self, blocks: Iterable[int]) -> None:
        """Put blocks at the back, in the given order: reused last."""
        knot = len(self._next) - 1
        self._insert(self._previous[knot], blocks, knot)

    def prepend(self, blocks: Iterable[int]) -> None:
        """Put blocks at the front, in the given order: reused first."""
        knot = len(self._next) - 1
        self._insert(knot, blocks, self._next[knot])

    def _insert(self, before: int, blocks: Iterable[int], after: int) -> None:
        """Link `blocks` in between two neighbours."""
        links, previous = self._next, self._previous
        for block in blocks:
            links[before] = block
            previous[block] = before
            before = block
            self._size += 1
        links[before] = after
        previous[after] = before
