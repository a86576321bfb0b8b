"""The pool of KV blocks, as vLLM v1's `BlockPool` keeps it.

A pool has a fixed number of physical blocks. Block 0 is the *null block*: it is never handed out,
so a pool of n blocks has n - 1 to use. A block is *referenced* while a request uses it and *free*
otherwise; a free block keeps its content, and its hash, until it is handed out again.

Rules:

- **What is cached**: full blocks only, as soon as they are scheduled to be filled. Nothing is ever
  evicted ahead of need: a block loses its content when it is reused, and not before.
- **Who is reused first**: the front of the free queue. A request's blocks are given back tail
  first. Those with a hash go to the back (least recently used first, and of one request the tail
  before the head); those without one go to the front, since nobody can ever ask for them.
- **A hit** takes a block out of the free queue, or adds a reference to it.
- **Duplicates**: two requests that fill the same block at the same time fill two physical blocks
  under one hash. Both stay; a lookup finds the older; each is announced when stored and when
  removed.
- **Reset** forgets every hash, and is refused while any block is referenced. The order of the free
  queue stays as it is.

The pool knows blocks and hashes, not requests: see `kvbench.kvcache.manager`. It is told about by
an observer and opens no socket.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

from kvbench.errors import InputError
from kvbench.kvcache.free_queue import FreeQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvbench.kvcache.blocks import BlockHash, Chain

NULL_BLOCK = 0


class PoolObserver(Protocol):
    """Is told what becomes of cached blocks, in the order in which it happens."""

    def stored(self, chain: Chain, first: int, last: int) -> None:
        """Blocks `first` to `last` (exclusive) of `chain` can be hit from now on."""
        ...

    def removed(self, block_hash: BlockHash) -> None:
        """A block's content made room for another."""
        ...

    def cleared(self) -> None:
        """Every hash was forgotten."""
        ...


class BlockPool:
    """Physical blocks, who references them, and what they hold.

    Attributes:
        evictions: Blocks whose content was given up for another, since the pool began.
        resident: Blocks that hold content which can be hit.
        evictable: Of those, the ones that nobody references.
    """

    __slots__ = (
        "_duplicates",
        "_free",
        "_hashes",
        "_observer",
        "_references",
        "_where",
        "evictable",
        "evictions",
        "num_blocks",
        "resident",
    )

    def __init__(self, num_blocks: int, observer: PoolObserver | None = None) -> None:
        if num_blocks < 2:
            raise InputError(
                f"num_gpu_blocks: expected at least 2, got {num_blocks}",
                hint="one block is the null block, which holds no tokens",
            )
        self.num_blocks = num_blocks
        self._observer = observer
        self._free = FreeQueue(num_blocks)
        self._free.pop(1)  # the null block
        self._references = array("I", bytes(4 * num_blocks))
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        # The oldest block of each hash, and, where there are more, those in order of age.
        self._where: dict[BlockHash, int] = {}
        self._duplicates: dict[BlockHash, dict[int, None]] = {}
        self.evictions = 0
        self.resident = 0
        self.evictable = 0

    @property
    def usable(self) -> int:
        """Blocks that can hold tokens: all but the null block."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        """Blocks that nobody references."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Referenced blocks as a fraction of the usable: vLLM's `kv_cache_usage_perc`."""
        return (self.usable - len(self._free)) / self.usable

    def contents(self) -> set[BlockHash]:
        """Return the hashes that can be hit."""
        return set(self._where)

    def free_order(self) -> list[int]:
        """Return the free blocks, the one that is reused next first."""
        return list(self._free)

    def lookup(self, hashes: Sequence[BlockHash], most: int) -> list[int]:
        """Return the blocks that hold the beginning of `hashes`, at most `most` of them.

        A lookup changes nothing: neither references nor the order of reuse.
        """
        where = self._where
        found: list[int] = []
        for index in range(min(most, len(hashes))):
            block = where.get(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """Count those of `blocks` that are free: touching them makes the queue shorter."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def touch(self, blocks: Iterable[int]) -> None:
        """Reference cached blocks once more; free ones leave the free queue."""
        references = self._references
        for block in blocks:
            if not references[block]:
                self._free.remove(block)
                self.evictable -= 1
            references[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks from the front of the free queue, evicting what they held.

        The caller has made sure that there are as many.
        """
        blocks = self._free.pop(count)
        hashes, references, observer = self._hashes, self._references, self._observer
        evicted = 0
        for block in blocks:
            references[block] = 1
            block_hash = hashes[block]
            if block_hash is None:
                continue
            hashes[block] = None
            evicted += 1
            if block_hash in self._duplicates:
                self._drop_copy(block, block_hash)
            else:
                del self._where[block_hash]
            if observer is not None:
                observer.removed(block_hash)
        self.evictions += evicted
        self.resident -= evicted
        self.evictable -= evicted
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference to each of `blocks`, given tail first."""
        hashes, references = self._hashes, self._references
        reuse_first: list[int] = []
        reuse_last: list[int] = []
        for block in blocks:
            left = references[block] - 1
            references[block] = left
            if not left:
                (reuse_first if hashes[block] is None else reuse_last).append(block)
        self._free.prepend(reuse_first)
        self._free.append(reuse_last)
        self.evictable += len(reuse_last)

    def cache(self, chain: Chain, blocks: Sequence[int], first: int, last: int) -> None:
        """Make blocks `first` to `last` (exclusive) of `chain` hits for others.

        Args:
            chain: Tokens and hashes.
            blocks: The physical blocks of `chain`, from its start, all referenced.
            first: How many of them are cached already.
            last: How many are full.
        """
        hashes, where = self._hashes, self._where
        for block, block_hash in zip(blocks[first:last], chain.hashes[first:last], strict=True):
            hashes[block] = block_hash
            if where.setdefault(block_hash, block) != block:
                self._duplicates.setdefault(block_hash, {})[block] = None
        self.resident += last - first
        if self._observer is not None:
            self._observer.stored(chain, first, last)

    def reset(self) -> bool:
        """Forget all content, unless a block is referenced; return whether it was done."""
        if len(self._free) != self.usable:
            return False
        self._where.clear()
        self._duplicates.clear()
        self._hashes = [None] * self.num_blocks
        self.resident = 0
        self.evictable = 0
        if self._observer is not None:
            self._observer.cleared()
        return True

    def _drop_copy(self, block: int, block_hash: BlockHash) -> None:
        """Forget that `block` is one of several that hold the same."""
        younger = self._duplicates[block_hash]
        heir = block
        if self._where[block_hash] == block:
            heir = next(iter(younger))
            self._where[block_hash] = heir
        del younger[heir]
        if not younger:
            del self._duplicates[block_hash]
