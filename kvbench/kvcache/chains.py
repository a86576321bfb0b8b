"""Block hashes of prompts that begin as earlier ones did, without hashing the beginning again.

A prompt comes with *marks*: names of beginnings of it, each with its length in tokens (see
`kvbench.text.prefix_store`). The hashes of the blocks that are full by then are kept under each
mark, as `kvbench.text.beginnings` keeps things: a conversation once, not once for each turn.

Rules: a mark names the same tokens for ever. What decides beside tokens whether blocks can be
shared (`PromptKeys`) is part of what things are kept under, and the size of blocks is not, for a
store serves one. Prompts with multimodal inputs are not kept. Hashes stand in arrays: a request's
are kept while it is under way, and thousands of objects each would be walked through by garbage
collections, in five milliseconds.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

from kvbench.kvcache.blocks import PLAIN, extend_hashes
from kvbench.text.beginnings import Beginnings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.kvcache.blocks import BlockHash, PromptKeys

_MOST_BLOCKS = 500_000  # 4 MB of hashes

_Name: TypeAlias = tuple[str | None, str | None, int]


class ChainStore:
    """Hashes of beginnings, for one size of blocks.

    Args:
        block_size: Tokens per block.
        capacity: Most hashes that are kept.
    """

    def __init__(self, block_size: int, capacity: int = _MOST_BLOCKS) -> None:
        self.block_size = block_size
        self._kept: Beginnings[_Name, array[BlockHash]] = Beginnings(array("Q"), capacity)

    def __len__(self) -> int:
        """How many hashes are kept."""
        return len(self._kept)

    def hashes(
        self,
        since: Callable[[int], array[int]],
        marks: Sequence[tuple[int, int]],
        keys: PromptKeys = PLAIN,
    ) -> array[BlockHash]:
        """Return the hashes of the full blocks of a prompt.

        Args:
            since: Returns its token ids from so many on.
            marks: Names of some of its beginnings, and their lengths in tokens, ascending.
            keys: What besides tokens decides whether it may share blocks.
        """
        place, names = None, []
        for mark, end in () if keys.mm_hashes else reversed(marks):
            name = (keys.cache_salt, keys.lora_name, mark)
            place = self._kept.find(name)
            if place is not None:
                break
            names.append((name, end // self.block_size))
        hashes = array("Q") + self._kept.numbers(place)  # a new object, to be added to
        known = len(hashes)
        extend_hashes(hashes, since(known * self.block_size), self.block_size, keys)
        self._kept.keep(place, hashes[known:], names[::-1])
        return hashes
