"""The block hash chain: a number for "these tokens, after exactly those".

A prompt is cut into blocks of `block_size` tokens. The hash of a block covers its parent's hash,
its own token ids and its extra keys, so two blocks have the same hash if and only if everything
from the start of the prompt up to their ends is the same (up to a chance of 2⁻⁶⁰ for a pair).

Rules, as in vLLM v1:

- only full blocks have a hash; what is left over at the end has none until it fills up;
- the cache salt is part of the first block only: everything after it inherits it by the chain;
- the LoRA adapter's name is part of every block;
- a multimodal input is part of the blocks that it touches, with its offset from the start of the
  block: the same picture one token later is another block.

The chain is kvbench's own: xxh3, the upper 60 of its 64 bits. It is not, and need not be, any
engine's: what engines call their blocks is translated by `kvbench.kvcache.index`. A number of 60
bits fits the wire format of KV events and takes 32 bytes in CPython, where one of 64 takes 48: an
index holds millions.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence, Sequence

BlockHash: TypeAlias = int
ExtraKey: TypeAlias = tuple[str, str] | tuple[str, str, int]

ROOT: BlockHash = 0
"""The parent of a first block."""

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """What besides tokens decides whether two prompts may share blocks.

    Attributes:
        cache_salt: Requests with different salts share nothing.
        lora_name: Adapter, None for the base model.
        mm_hashes: (identifier, offset, length in tokens) of multimodal inputs, by offset.
    """

    cache_salt: str | None = None
    lora_name: str | None = None
    mm_hashes: tuple[tuple[str, int, int], ...] = ()

    def of_block(self, start: int, end: int) -> tuple[ExtraKey, ...]:
        """Return the extra keys of the block of tokens `start` to `end` (exclusive)."""
        keys: list[ExtraKey] = []
        if self.lora_name:
            keys.append(("lora", self.lora_name))
        keys += [
            ("mm", identifier, offset - start)
            for identifier, offset, length in self.mm_hashes
            if offset < end and start < offset + length
        ]
        if self.cache_salt and start == 0:
            keys.append(("salt", self.cache_salt))
        return tuple(keys)


PLAIN = PromptKeys()
"""Text, base model, no salt."""


def pack_tokens(token_ids: Iterable[int]) -> array[int]:
    """Return token ids as unsigned 32-bit numbers.

    Raises:
        OverflowError: A token id is negative or needs more than 32 bits.
        TypeError: A token id is not a whole number.
    """
    return array("I", token_ids)


def token_bytes(tokens: array[int], byteorder: str = sys.byteorder) -> bytes:
    """Return packed tokens as the chain hashes them: little-endian on every machine."""
    if byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


def hash_block(parent: BlockHash, tokens: bytes, extra: tuple[ExtraKey, ...] = ()) -> BlockHash:
    """Return the hash of one block.

    Args:
        parent: Hash of the block before it, `ROOT` for a first block.
        tokens: Its token ids, four bytes each, little-endian.
        extra: Its extra keys.
    """
    data = parent.to_bytes(8, "little") + tokens
    if extra:
        data += msgspec.msgpack.encode(extra)
    digest: int = xxhash.xxh3_64_intdigest(data)
    return digest >> 4


def hash_blocks(parent: BlockHash, tokens: bytes, width: int) -> list[BlockHash]:
    """Return the hashes of blocks that follow each other and have no extra keys.

    Args:
        parent: Hash of the block before the first, `ROOT` at a prompt's start.
        tokens: Their token ids as `hash_block` takes them, one block after the other.
        width: Bytes of a block.
    """
    cut, join = _of_width(width)
    digest = xxhash.xxh3_64_intdigest
    hashes: list[BlockHash] = []
    for (block,) in cut.iter_unpack(tokens):
        parent = digest(join.pack(parent, block)) >> 4
        hashes.append(parent)
    return hashes


@lru_cache(maxsize=16)
def _of_width(width: int) -> tuple[struct.Struct, struct.Struct]:
    """Return what cuts tokens into blocks of so many bytes, and what puts a hash before one."""
    return struct.Struct(f"{width}s"), struct.Struct(f"<Q{width}s")


class Chain(Protocol):
    """A growing sequence of tokens, as the pool and the engine see it: a length and hashes.

    `BlockChain` knows its tokens. A simulation may know only which tokens are the same.
    """

    @property
    def owner(self) -> str:
        """A name for whoever asks; the chain carries it and does not read it."""
        ...

    @property
    def hashes(self) -> Sequence[BlockHash]:
        """One hash per full block."""
        ...

    def __len__(self) -> int:
        """How many tokens there are."""
        ...

    def append(self, token_id: int) -> None:
        """Add one token; a block that it fills gets its hash."""
        ...

    def extend(self, token_ids: Iterable[int], count: int) -> None:
        """Add `count` tokens, which are all of `token_ids`; blocks that they fill get hashes."""
        ...


class BlockChain:
    """A growing sequence of tokens and the hashes of its full blocks.

    Attributes:
        tokens: All token ids so far.
        hashes: One hash per full block.
        owner: A name for whoever asks; the chain carries it and does not read it.
    """

    __slots__ = ("block_size", "hashes", "keys", "owner", "tokens")

    def __init__(
        self,
        token_ids: Iterable[int],
        block_size: int,
        keys: PromptKeys = PLAIN,
        *,
        owner: str = "",
    ) -> None:
        self.block_size = block_size
        self.keys = keys
        self.owner = owner
        self.tokens = pack_tokens(token_ids)
        self.hashes: list[BlockHash] = []
        self._extend_hashes()

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token_id: int) -> None:
        """Add one token; a block that it fills gets its hash."""
        self.tokens.append(token_id)
        if len(self.tokens) % self.block_size == 0:
            self._extend_hashes()

    def extend(self, token_ids: Iterable[int], count: int) -> None:  # noqa: ARG002 - see Chain
        """Add tokens; blocks that they fill get their hashes."""
        self.tokens.extend(token_ids)
        self._extend_hashes()

    def parent_of(self, block: int) -> BlockHash | None:
        """Return the hash before block number `block`, None for the first."""
        return self.hashes[block - 1] if block else None

    def _extend_hashes(self) -> None:
        """Hash the full blocks that have none yet."""
        rest = self.tokens[len(self.hashes) * self.block_size :]
        extend_hashes(self.hashes, rest, self.block_size, self.keys)


def extend_hashes(
    hashes: MutableSequence[BlockHash],
    tokens: array[int],
    block_size: int,
    keys: PromptKeys = PLAIN,
) -> None:
    """Add to a prompt's first hashes those of the full blocks behind them.

    Args:
        hashes: The first; none if the prompt begins here.
        tokens: The packed tokens behind them.
        block_size: Tokens per block.
        keys: What besides tokens decides whether the prompt may share blocks.
    """
    first, count = len(hashes), len(tokens) // block_size
    width = block_size * BYTES_PER_TOKEN
    data = token_bytes(tokens)[: count * width]
    parent = hashes[-1] if hashes else ROOT
    if keys == PLAIN:
        hashes.extend(hash_blocks(parent, data, width))
        return
    for block in range(count):
        start = (first + block) * block_size
        extra = keys.of_block(start, start + block_size)
        parent = hash_block(parent, data[block * width : (block + 1) * width], extra)
        hashes.append(parent)


def block_hashes(
    token_ids: Sequence[int], block_size: int, keys: PromptKeys = PLAIN
) -> list[BlockHash]:
    """Return the hashes of the full blocks of a prompt, from its start."""
    return BlockChain(token_ids, block_size, keys).hashes
