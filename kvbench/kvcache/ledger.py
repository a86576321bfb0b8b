"""What the pods hold by their own account: the feeds and indexes of a whole fleet. Pure; no socket.

A pod has one stream of KV events for each of its data-parallel ranks. Each stream has its feed
(`kvbench.kvcache.feed`) and its place in an index (`kvbench.kvcache.index`); this is where the
feed's orders are carried out, but for replays, which take a socket and are handed back.

Rules:

- The size of a pod's blocks is what its first event says, until one says more: what was smaller
  were parts of blocks. Pods of one size share an index.
- A pod is trusted as far as its least trusted rank.
- A pod of several ranks is expected to reuse what a rank holds on average, for it chooses the rank
  by load, not by prefix.
- A batch that cannot be read spoils its stream: the pod is forgotten, and degraded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvbench.kvcache.events import (
    AllBlocksCleared,
    BlockStored,
    EventFormatError,
    decode_batch,
    decode_frames,
)
from kvbench.kvcache.feed import LEVELS, Apply, EventFeed, Replay, Trust
from kvbench.kvcache.index import BlockIndex, IndexObserver, LargerBlocksError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvbench.kvcache.blocks import BlockHash
    from kvbench.kvcache.events import EventBatch
    from kvbench.kvcache.feed import Order


class LedgerObserver(IndexObserver, Protocol):
    """Is told what becomes of every pod's blocks, and when."""

    def cleared(self, stream: str) -> None:
        """A pod said that it cleared its cache; what it held has been told as removed."""
        ...

    def begins(self, stream: str, ts: float, *, replayed: bool) -> None:
        """What follows is of a batch that `stream` published at `ts`, its calendar's seconds."""
        ...


@dataclass(slots=True)
class Stream:
    """One publisher: a pod, or one rank of it.

    Attributes:
        pod: The pod's name.
        name: What it is called in the index: the pod's name, and the rank if there are several.
        feed: What to believe of it.
        index: Where its blocks are; None until the size of its blocks is known.
        batches: Applied.
        events: In them.
        unknown: Events of kinds that are not known, skipped.
        spoiled: Messages that could not be read.
        lag_s: Age of the latest live batch when it was applied, by the two machines' calendars.
    """

    pod: str
    name: str
    feed: EventFeed
    index: BlockIndex | None = None
    batches: int = 0
    events: int = 0
    unknown: int = 0
    spoiled: int = 0
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a pod is known to hold, in sum.

    Attributes:
        trust: How far that may be believed.
        blocks: Blocks held.
        parked: Blocks whose parent is unknown, and which are therefore not counted as held.
    """

    trust: Trust
    blocks: int
    parked: int


@dataclass(slots=True)
class Ledger:
    """All streams of all pods.

    Args:
        utc: Calendar seconds, to compare with the publishers' stamps.
        observer: Is told of every block.
        on_empty: Is told of a pod, or a rank of one, that has lost all that it held: it was
            restarted, or cleared its cache.
    """

    utc: Callable[[], float]
    observer: LedgerObserver | None = None
    on_empty: Callable[[str], None] | None = None
    streams: dict[str, list[Stream]] = field(default_factory=dict)
    _indexes: dict[int, BlockIndex] = field(default_factory=dict)

    def follow(self, pod: str, ranks: int = 1, *, can_replay: bool = True) -> list[Stream]:
        """Begin to follow a pod; return its streams, one for each data-parallel rank."""
        self.drop(pod)
        names = [pod] if ranks == 1 else [f"{pod} rank {rank}" for rank in range(ranks)]
        streams = [Stream(pod, name, EventFeed(can_replay=can_replay)) for name in names]
        self.streams[pod] = streams
        return streams

    def drop(self, pod: str) -> None:
        """Forget a pod altogether."""
        for stream in self.streams.pop(pod, ()):
            if stream.index is not None:
                stream.index.remove(stream.name)

    # What the sockets bring. Each returns the replays that must be asked for.

    def published(self, stream: Stream, frames: Sequence[bytes]) -> list[Replay]:
        """Take a message of the live stream."""
        try:
            message = decode_frames(frames)
        except EventFormatError as error:
            return self._spoil(stream, error)
        return self._carry_out(stream, stream.feed.published(message))

    def replayed(self, stream: Stream, frames: Sequence[bytes]) -> list[Replay]:
        """Take a message of the replay that was asked for last."""
        try:
            message = decode_frames(frames)
        except EventFormatError as error:
            return self._spoil(stream, error)
        return self._carry_out(stream, stream.feed.replayed(message))

    def replay_ended(self, stream: Stream) -> list[Replay]:
        """Take note that the replay has not come to its end in time."""
        return self._carry_out(stream, stream.feed.replay_ended())

    def ask(self, stream: Stream) -> list[Replay]:
        """Return the replay to ask for at the start, and after a silence."""
        return self._carry_out(stream, stream.feed.ask())

    def broken(self, stream: Stream, reason: str) -> list[Replay]:
        """Take note that the connection to a publisher broke: it may be another one from now on."""
        return self._carry_out(stream, stream.feed.broken(reason))

    def restarted(self, stream: Stream, reason: str) -> list[Replay]:
        """Take note that the publisher is another one."""
        return self._carry_out(stream, stream.feed.restarted(reason))

    def emptied(self, pod: str) -> None:
        """Take note that a pod has cleared its cache, which it will say itself with its next step.

        What it held is forgotten; how far it is trusted is not changed by that.
        """
        for stream in self.streams.get(pod, ()):
            if stream.index is not None:
                stream.index.clear(stream.name)

    # What is known.

    def trust(self, pod: str) -> Trust:
        """Return how far a pod is to be believed; one that is not followed is cold."""
        trusts = [stream.feed.trust for stream in self.streams.get(pod, ())]
        if not trusts:
            return Trust("cold", "its KV events are not followed")
        return min(trusts, key=lambda trust: LEVELS.index(trust.level))

    def holdings(self, pod: str) -> Holdings:
        """Return what a pod is known to hold, in sum."""
        streams = self.streams.get(pod, ())
        indexed = [(one.index, one.name) for one in streams if one.index is not None]
        return Holdings(
            self.trust(pod),
            sum(index.blocks(name) for index, name in indexed),
            sum(index.parked(name) for index, name in indexed),
        )

    def block_size(self, pods: Iterable[str]) -> int | None:
        """Return the size of the blocks of the first of `pods` that has told it."""
        for pod in pods:
            for stream in self.streams.get(pod, ()):
                if stream.index is not None:
                    return stream.index.block_size
        return None

    @property
    def blocks(self) -> int:
        """How many different blocks are known, over all pods."""
        return sum(len(index) for index in self._indexes.values())

    def match(
        self, hashes: Sequence[BlockHash], block_size: int, pods: Sequence[str]
    ) -> dict[str, int]:
        """Return, for each of `pods` that is exact, how many blocks of a beginning it holds.

        Blocks in CPU memory or on a disk count too: an engine loads them, and calls them cached.

        Args:
            hashes: Of the blocks that an engine might reuse, from the prompt's start.
            block_size: Their size in tokens.
            pods: Who is asked about.
        """
        index = self._indexes.get(block_size)
        found = index.match(hashes, anywhere=True) if index is not None else {}
        matched: dict[str, int] = {}
        for pod in pods:
            streams, count = self.streams.get(pod, ()), 0
            for stream in streams:
                other = stream.index is not index and stream.index is not None
                if other or stream.feed.trust.level != "exact":
                    break
                count += found.get(stream.name, 0)
            else:
                if streams:
                    matched[pod] = count // len(streams)
        return matched

    def copies(self, pod: str, block_hash: BlockHash) -> int:
        """Return how many copies of a block a pod is believed to hold, over its ranks."""
        streams = self.streams.get(pod, ())
        return sum(
            stream.index.copies(stream.name, block_hash)
            for stream in streams
            if stream.index is not None
        )

    def correct(self, pod: str, hashes: Sequence[BlockHash], held: int) -> None:
        """Take an engine's word that it held only the first `held` of these blocks."""
        streams = self.streams.get(pod, ())
        if len(streams) == 1 and (index := streams[0].index) is not None:
            index.correct(streams[0].name, hashes, held)

    # Inside.

    def _carry_out(self, stream: Stream, orders: Sequence[Order]) -> list[Replay]:
        """Carry orders out in their order; return the replays among them."""
        replays: list[Replay] = []
        for order in orders:
            if isinstance(order, Apply):
                replays += self._apply(stream, order.payload)
            elif isinstance(order, Replay):
                replays.append(order)
            else:
                self._forget(stream, empty=order.empty)
        return replays

    def _forget(self, stream: Stream, *, empty: bool) -> None:
        """Drop what a stream has told."""
        if stream.index is not None:
            stream.index.remove(stream.name)
            stream.index = None
        if empty and self.on_empty is not None:
            self.on_empty(stream.pod)

    def _apply(self, stream: Stream, payload: bytes) -> list[Replay]:
        """Decode a batch and apply it."""
        try:
            batch = decode_batch(payload)
            if stream.index is None:
                stream.index = self._index_for(batch)
            index = stream.index
            if self.observer is not None:
                self.observer.begins(stream.name, batch.ts, replayed=stream.feed.replaying)
            if index is not None:
                cleared = index.apply(stream.name, batch)
            else:
                cleared = any(isinstance(event, AllBlocksCleared) for event in batch.events)
        except LargerBlocksError as larger:
            self._forget(stream, empty=False)
            stream.index = self._index_of(larger.size)
            return self._apply(stream, payload)
        except EventFormatError as error:
            return self._spoil(stream, error)
        stream.batches += 1
        stream.events += len(batch.events)
        stream.unknown += batch.unknown
        if not stream.feed.replaying:  # a replayed batch is old, and no slower for that
            stream.lag_s = max(self.utc() - batch.ts, 0.0)
        if cleared:
            if self.observer is not None:
                self.observer.cleared(stream.name)
            stream.feed.cleared()
            if self.on_empty is not None:
                self.on_empty(stream.pod)
        return []

    def _index_for(self, batch: EventBatch) -> BlockIndex | None:
        """Return the index of the blocks that a batch stores, None if it stores none."""
        for event in batch.events:
            if isinstance(event, BlockStored) and event.counts:
                return self._index_of(event.block_size)
        return None

    def _index_of(self, size: int) -> BlockIndex:
        """Return the index of blocks of that size."""
        return self._indexes.setdefault(size, BlockIndex(size, self.observer))

    def _spoil(self, stream: Stream, error: EventFormatError) -> list[Replay]:
        """Give a stream up until it is known anew."""
        stream.spoiled += 1
        return self._carry_out(stream, stream.feed.spoiled(error.message))
