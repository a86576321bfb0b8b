"""Stretches of prompts, and how far each pod holds them, so that they are looked up as one.

Among a million blocks each look-up of a block waits for memory two or three times, and a long
conversation has thousands. What was found out about 128 of them stays true until a pod stores or
loses one of these: so each is *watched*, and its stretch forgotten when something happens to it.

Rules: since a block's hash names all that stands before it, the last block of a stretch names it. A
block is watched for one stretch; another that shares some of its blocks, being of a conversation
that went on otherwise, is looked up block by block. There is room for so many blocks, and the
oldest stretches go first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.kvcache.blocks import BlockHash

LENGTH = 128
"""Blocks of a stretch, if nothing else is said."""

_MOST_WATCHED = 200_000

Falls: TypeAlias = list[tuple[int, int]]
"""The pods, as bits, that hold no more of a stretch than so many blocks; ascending."""


class Stretches:
    """What is known of stretches.

    Args:
        length: Blocks of each.
        most: Most blocks that are watched.

    Attributes:
        length: As given.
        watched: The blocks to be told of when they change, with the last of their stretch.
    """

    __slots__ = ("_kept", "_most", "length", "watched")

    def __init__(self, length: int = LENGTH, most: int = _MOST_WATCHED) -> None:
        self.length = length
        self._most = most
        self._kept: dict[BlockHash, tuple[Sequence[BlockHash], Falls]] = {}
        self.watched: dict[BlockHash, BlockHash] = {}

    def find(self, blocks: Sequence[BlockHash], first: int = 0) -> Falls | None:
        """Return how far the stretch is held that begins at the `first` of these, if that is known.

        All that are kept have the same length.
        """
        last = first + self.length - 1
        found = self._kept.get(blocks[last]) if last < len(blocks) else None
        return None if found is None else found[1]

    def keep(self, blocks: Sequence[BlockHash], falls: Falls) -> None:
        """Remember how far a stretch is held, if it is one."""
        if len(blocks) != self.length or not self.watched.keys().isdisjoint(blocks):
            return
        while len(self.watched) + self.length > self._most and self._kept:
            self.changed(next(iter(self._kept)))
        self._kept[blocks[-1]] = (tuple(blocks), falls)
        self.watched.update(dict.fromkeys(blocks, blocks[-1]))

    def changed(self, block: BlockHash) -> None:
        """Forget the stretch for which a block is watched."""
        blocks, _ = self._kept.pop(self.watched[block])
        for one in blocks:
            del self.watched[one]

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self.watched.clear()
