"""From the engine's words about its cache to the events that go out on the wire.

An `EventCollector` is the sink of an engine and collects what it says, in order, as typed KV
events, until somebody takes them: a server takes them when a step ends and publishes them as one
batch. As in vLLM, a reset is published with the next step and not before: an idle engine keeps it
to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.kvcache.blocks import PromptKeys
from kvbench.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.engine.values import EngineRequest
    from kvbench.kvcache.blocks import BlockHash, ExtraKey
    from kvbench.kvcache.events import ExtraValue

MEDIUM = "GPU"
GROUP = 0
KIND = "full_attention"


def prompt_keys(request: EngineRequest) -> PromptKeys:
    """Return what besides tokens decides what a request can share."""
    return PromptKeys(request.cache_salt, request.lora_name, request.mm_hashes)


class EventCollector:
    """A sink that keeps KV events until they are taken."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def block_stored(
        self,
        block_hashes: Sequence[BlockHash],
        parent: BlockHash | None,
        token_ids: Sequence[int],
        request: EngineRequest,
        start: int,
    ) -> None:
        """Collect a BlockStored, with the extra keys of each block as vLLM publishes them."""
        size = len(token_ids) // len(block_hashes)
        keys = prompt_keys(request)
        extra = [
            keys.of_block(first, first + size)
            for first in range(start, start + len(token_ids), size)
        ]
        self._events.append(
            BlockStored(
                block_hashes=tuple(block_hashes),
                parent_block_hash=parent,
                token_ids=tuple(token_ids),
                block_size=size,
                medium=MEDIUM,
                lora_name=request.lora_name,
                extra_keys=tuple(tuple(map(_bare, block)) or None for block in extra),
                group_idx=GROUP,
                kv_cache_spec_kind=KIND,
            )
        )

    def block_removed(self, block_hash: BlockHash) -> None:
        """Collect a BlockRemoved."""
        self._events.append(BlockRemoved((block_hash,), MEDIUM, GROUP))

    def all_blocks_cleared(self) -> None:
        """Collect an AllBlocksCleared."""
        self._events.append(AllBlocksCleared())

    def take(self) -> tuple[Event, ...]:
        """Return what was collected since the last call."""
        events, self._events = tuple(self._events), []
        return events


def _bare(key: ExtraKey) -> ExtraValue:
    """Return an extra key without its tag: a text, or (identifier, offset)."""
    return key[1] if len(key) == 2 else (key[1], key[2])
