"""Block hashes of prompts that begin as earlier ones did, without hashing the beginning again.

A prompt comes with *marks*: names of beginnings of it, each with its length in tokens (see
`kvbench.text.prefix_store`). What is kept under a mark are the hashes of the blocks that fill up
between the mark before it and itself, so that a conversation is kept once, not once for each turn.

Rules: a mark names the same tokens for ever, and the same marks stand before it. What decides
beside tokens whether blocks can be shared (`PromptKeys`) is part of what things are kept under, and
the size of blocks is not, for a store serves one. Prompts with multimodal inputs are not kept. The
least recently used go first, ends before beginnings.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

from kvbench.kvcache.blocks import PLAIN, BlockChain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.kvcache.blocks import BlockHash, PromptKeys

_MOST_BLOCKS = 1_000_000  # 8 MB of hashes


class ChainStore:
    """Hashes of beginnings, for one size of blocks.

    Args:
        block_size: Tokens per block.
        capacity: Most hashes that are kept.
    """

    def __init__(self, block_size: int, capacity: int = _MOST_BLOCKS) -> None:
        self.block_size = block_size
        self._capacity = capacity
        self._pieces: OrderedDict[tuple[str | None, str | None, int], array[int]] = OrderedDict()
        self._blocks = 0

    def __len__(self) -> int:
        """How many hashes are kept."""
        return self._blocks

    def hashes(
        self, ids: array[int], marks: Sequence[tuple[int, int]], keys: PromptKeys = PLAIN
    ) -> list[BlockHash]:
        """Return the hashes of the full blocks of a prompt.

        Args:
            ids: Its token ids.
            marks: Names of some of its beginnings, and their lengths in tokens, ascending.
            keys: What besides tokens decides whether it may share blocks.
        """
        if keys.mm_hashes:
            return BlockChain(ids, self.block_size, keys).hashes
        known, pieces = array("Q"), self._pieces
        salt, lora = keys.cache_salt, keys.lora_name
        found = 0
        for mark, _ in marks:
            piece = pieces.get((salt, lora, mark))
            if piece is None:
                break
            known += piece
            found += 1
        hashes = BlockChain.resumed(ids, known.tolist(), self.block_size, keys).hashes
        self._keep(hashes, marks, found, keys)
        return hashes

    def _keep(
        self,
        hashes: Sequence[BlockHash],
        marks: Sequence[tuple[int, int]],
        found: int,
        keys: PromptKeys,
    ) -> None:
        """Remember what was made, and that all of it was used, its beginning last."""
        pieces, size = self._pieces, self.block_size
        names = [(keys.cache_salt, keys.lora_name, mark) for mark, _ in marks]
        below = marks[found - 1][1] // size if found else 0
        for name, (_, end) in zip(names[found:], marks[found:], strict=True):
            self._blocks += end // size - below - len(pieces.get(name, ()))
            pieces[name] = array("Q", hashes[below : end // size])
            below = end // size
        for name in reversed(names):
            pieces.move_to_end(name)
        while pieces and (self._blocks > self._capacity or len(pieces) > self._capacity):
            _, gone = pieces.popitem(last=False)
            self._blocks -= len(gone)
