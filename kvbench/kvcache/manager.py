"""Which blocks a request holds: vLLM v1's KV cache manager for full attention.

Rules:

- **A hit is whole blocks, and never the last token**: a prompt of P tokens finds at most
  ⌊(P - 1) / B⌋ blocks, because the last token's logits must be computed in any case. A prompt that
  was cached in full therefore recomputes its whole last block.
- **Admission** asks for room for the whole prompt, though only a chunk of it may be scheduled:
  blocks that it hits count as room too if nobody else holds them.
- **Caching** happens when tokens are scheduled: another request of the same step can already hit
  them. Blocks that answers fill are cached like those of prompts, with one exception: the token
  that ends an answer is never computed, so a block that it would fill is not cached.
- **Release** gives the blocks back tail first, so that the head of a prompt outlives its tail.

What may share a block is decided by `kvbench.kvcache.blocks`; who is evicted, by the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.kvcache.blocks import Chain
    from kvbench.kvcache.pool import BlockPool


class BlockTable:
    """The blocks of one request.

    Attributes:
        chain: Its tokens and their hashes, prompt and answer.
        blocks: Its physical blocks, from the start; empty while it waits.
        cached: How many of them others can hit.
        due: With fewer tokens than these there is nothing to do: no block is lacking, and none
            would be cached.
    """

    __slots__ = ("blocks", "cached", "chain", "due")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.blocks: list[int] = []
        self.cached = 0
        self.due = 0


class CacheManager:
    """Gives requests their blocks out of a pool.

    Args:
        pool: Where blocks come from.
        block_size: Tokens per block; the chains' as well.
        enable_caching: Whether blocks are kept for reuse.
    """

    __slots__ = ("block_size", "enable_caching", "pool")

    def __init__(self, pool: BlockPool, block_size: int, *, enable_caching: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self.enable_caching = enable_caching

    def lookup(self, table: BlockTable) -> list[int]:
        """Return the blocks that a waiting request would hit; nothing is changed."""
        if not self.enable_caching:
            return []
        chain = table.chain
        return self.pool.lookup(chain.hashes, (len(chain) - 1) // self.block_size)

    def admit(self, table: BlockTable, hits: Sequence[int], new_tokens: int) -> bool:
        """Give a waiting request its hits, and blocks for its first `new_tokens` after them.

        Returns:
            False if there is no room for the request as a whole; then nothing has changed.
        """
        if not self.fits(table, hits):
            return False
        self.pool.touch(hits)
        table.blocks = list(hits)
        table.cached = len(hits)
        return self.extend(table, len(hits) * self.block_size + new_tokens)

    def fits(self, table: BlockTable, hits: Sequence[int]) -> bool:
        """Return whether there is room for a waiting request as a whole, beside its hits."""
        whole = -(-len(table.chain) // self.block_size)
        return whole - len(hits) + self.pool.idle(hits) <= self.pool.free

    def lacking(self, table: BlockTable, tokens: int) -> int:
        """Return how many blocks a request lacks for its first `tokens` tokens."""
        return max(-(-tokens // self.block_size) - len(table.blocks), 0)

    def extend(self, table: BlockTable, tokens: int) -> bool:
        """Make room for the first `tokens` tokens of a request that holds blocks.

        Returns:
            False if the pool has too few free blocks; then nothing has changed.
        """
        pool, missing = self.pool, self.lacking(table, tokens)
        if missing:
            if missing > pool.free:
                return False
            table.blocks += pool.take(missing)
        full = min(tokens, len(table.chain)) // self.block_size
        if self.enable_caching and full > table.cached:
            pool.cache(table.chain, table.blocks, table.cached, full)
            table.cached = full
        table.due = len(table.blocks) * self.block_size + 1
        if self.enable_caching:
            table.due = min(table.due, (table.cached + 1) * self.block_size)
        return True

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, tail first."""
        self.pool.release(reversed(table.blocks))
        table.blocks = []
        table.cached = table.due = 0
