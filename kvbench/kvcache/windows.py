"""What an engine needs of a prefix besides the blocks of the whole context. Pure.

Theory. A model with several kinds of attention keeps its blocks in groups, and reuses a prefix as
far as all of them allow. The group over the whole context needs every block of it; a sliding window
needs the last few blocks before the place where the request goes on; a recurrent state (Mamba)
needs the one block there. Engines keep only such ends, so a prefix of 29 blocks may be usable after
29 and after 10 of them, and nowhere between.

A group's block has the same name as the block of the whole context that ends at the same token. So
a group is a set of names, translated as soon as that block is known: groups are told of in the
order of their numbers, and the one over the whole context may come last.

Groups of a kind whose need is not known are taken to need nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvbench.kvcache.blocks import BlockHash
    from kvbench.kvcache.events import BlockStored


class _Group:
    """One group of one pod."""

    __slots__ = ("copies", "held", "needed", "places", "stride")

    def __init__(self, needed: int, stride: int) -> None:
        self.needed = needed  # blocks
        self.stride = stride  # blocks of the whole context that one of these spans
        self.copies: dict[int, int] = {}  # by name
        self.places: dict[int, BlockHash] = {}  # of names that are known
        self.held: set[BlockHash] = set()

    def place(self, name: int, block_hash: BlockHash) -> None:
        """Note where a name belongs."""
        if name in self.copies:
            self.places[name] = block_hash
            self.held.add(block_hash)

    def serves(self, hashes: Sequence[BlockHash], count: int) -> bool:
        """Return whether a request may go on behind so many blocks."""
        first = max(count - 1 - self.needed * self.stride, -1)
        return all(hashes[at] in self.held for at in range(count - 1, first, -self.stride))


class Windows:
    """The groups of one pod, by number.

    Args:
        size: Tokens of a block of the whole context.
    """

    __slots__ = ("_groups", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._groups: dict[int, _Group] = {}

    def stored(
        self, event: BlockStored, names: Iterable[int], known: Mapping[int, BlockHash]
    ) -> None:
        """Note that a group holds blocks; `known` has the whole context's by name."""
        number, needed = event.group_idx, _needed(event)
        if number is None or not needed:
            return
        if number not in self._groups:
            stride = max(event.block_size // self._size, 1)
            blocks = -(-needed * event.block_size // self._size)
            self._groups[number] = _Group(needed if stride > 1 else blocks, stride)
        group = self._groups[number]
        for name in names:
            group.copies[name] = group.copies.get(name, 0) + 1
            if name in known:
                group.place(name, known[name])

    def placed(self, names: Iterable[int], known: Mapping[int, BlockHash]) -> None:
        """Note where blocks of the whole context are: groups may have told of them before."""
        for name in names:
            for group in self._groups.values():
                if name in group.copies and name in known:
                    group.place(name, known[name])

    def removed(self, number: int, names: Iterable[int]) -> None:
        """Note that a group has dropped a copy of each of these blocks."""
        group = self._groups.get(number)
        if group is None:
            return
        for name in names:
            copies = group.copies.pop(name, 0) - 1
            if copies > 0:
                group.copies[name] = copies
            elif (block_hash := group.places.pop(name, None)) is not None:
                group.held.discard(block_hash)

    def reach(self, hashes: Sequence[BlockHash], count: int) -> int:
        """Return behind how many of the first `count` blocks a request may go on."""
        groups = self._groups.values()
        return next(
            at for at in range(count, -1, -1) if all(one.serves(hashes, at) for one in groups)
        )


def _needed(event: BlockStored) -> int:
    """Return how many of its own blocks a group needs before the place; 0 if that is not known."""
    kind, window = event.kv_cache_spec_kind or "", event.kv_cache_spec_sliding_window
    if kind == "mamba":
        return 1
    if kind.startswith("sliding_window") and window is not None and event.block_size > 0:
        return max(-(-(window - 1) // event.block_size), 1)
    return 0
