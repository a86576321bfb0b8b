"""What becomes of blocks: why they were computed, how long they lived, when they are used again.

An observer of `kvbench.kvcache.ledger`: fed by KV events alone, pure. Time is what the events say;
what was published before `since`, and is heard of by a replay, fills the caches and is not counted.

Theory. Engines publish what they store and what they give up, and nothing about hits. Still:

- What is stored had to be computed. If another pod holds the same block, a better placement would
  have hit it there (*elsewhere*). If the fleet held it once, a larger or better kept cache would
  have hit it (*evicted*, or *reset*: lost when a cache was cleared, a pod restarted, or sight of
  it was lost). Only what was seen nowhere before had to be computed (*cold*). So hits and all that
  is not cold are what one endless cache for the whole fleet would have found.
- A block is *used* when blocks are stored behind it. That is another request if blocks had been
  stored behind it before; or if several come at once, `ONE_REQUEST_S` after it was stored. Else it
  may be the same request, computed in pieces, and counts as nothing.
- A block that is stored anew after an eviction is used again, too late. Of blocks that are stored
  together only the first counts, as for those that are still there: a use is one request's.

Memory is bounded: blocks that nobody holds any more are remembered in two generations of half of
`remember`, of which the older is dropped when the younger is full.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.kvcache.blocks import ROOT
from kvbench.metrics.exporter import STORED_CAUSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.kvcache.blocks import BlockHash
    from kvbench.metrics.instruments import Buckets

ONE_REQUEST_S = 1.0
"""Seconds between a block and those behind it within which they may be of one request."""

REMEMBER = 500_000
"""Blocks that are remembered after nobody holds them: about 60 MB."""

_COLD, _ELSEWHERE, _EVICTED, _RESET = range(len(STORED_CAUSES))


@dataclass(slots=True)
class PodCache:
    """What is known of one pod's blocks.

    Attributes:
        pod: Its name.
        block_tokens: Tokens per block.
        causes: Blocks stored, by `STORED_CAUSES`.
        evicted: Blocks evicted.
        stored_at: When each block that it holds was stored.
        used_at: When blocks were last used, of those that were.
    """

    pod: str
    block_tokens: int
    causes: list[int] = field(default_factory=lambda: [0] * len(STORED_CAUSES))
    evicted: int = 0
    stored_at: dict[BlockHash, float] = field(default_factory=dict)
    used_at: dict[BlockHash, float] = field(default_factory=dict)

    @property
    def known_tokens(self) -> int:
        """Tokens that were stored though the fleet holds them, or held them once."""
        return (sum(self.causes) - self.causes[_COLD]) * self.block_tokens


class CacheModel:
    """The blocks of the fleet.

    Args:
        place: Returns the pod and the block size of a stream of events.
        lifetimes: Takes the life of each evicted block, by pod.
        gaps: Takes the time between two uses of a block, by pod.
        since: From when on is counted, calendar seconds.
        remember: Blocks that are remembered after nobody holds them.

    Attributes:
        caches: By stream.
        resets: By stream, how often it cleared its cache.
        held: Tokens of different blocks, by how many streams hold them; index 0 is unused.
    """

    def __init__(
        self,
        place: Callable[[str], tuple[str, int]],
        lifetimes: Buckets,
        gaps: Buckets,
        since: float = 0.0,
        remember: int = REMEMBER,
    ) -> None:
        self.caches: dict[str, PodCache] = {}
        self.resets: Counter[str] = Counter()
        self.held = [0, 0]
        self._place = place
        self._lifetimes = lifetimes
        self._gaps = gaps
        self._since = since
        self._now = since
        self._counting = True
        self._half = max(remember // 2, 1)
        # When blocks were last used that nobody holds; below 0 if they were not evicted.
        self._gone: dict[BlockHash, float] = {}
        self._long_gone: dict[BlockHash, float] = {}

    @property
    def remembered(self) -> int:
        """Blocks that nobody holds and that are remembered."""
        return len(self._gone) + len(self._long_gone)

    @property
    def unique_tokens(self) -> int:
        """Tokens of different blocks."""
        return sum(self.held)

    @property
    def duplicate_tokens(self) -> int:
        """Tokens of blocks beyond the first copy of each."""
        return sum((pods - 1) * tokens for pods, tokens in enumerate(self.held) if pods)

    def begins(self, stream: str, ts: float, *, replayed: bool) -> None:  # noqa: ARG002 - theirs
        """Take note of the time."""
        self._now = ts
        self._counting = ts >= self._since or not replayed

    def cleared(self, stream: str) -> None:
        """Take note of a reset."""
        self.resets[stream] += self._counting

    def extended(self, pod: str, block: BlockHash, blocks: int) -> None:
        """Take note that blocks were computed behind one that is there."""
        cache, now = self.caches[pod], self._now
        before = cache.used_at.get(block)
        cache.used_at[block] = now
        if before is None:
            before = cache.stored_at.get(block, now)
            if blocks < 2 or now - before < ONE_REQUEST_S:
                return
        self._observe(self._gaps, cache.pod, now - before)

    def stored(self, pod: str, block: BlockHash, parent: BlockHash, holders: int) -> None:
        """Take note of a block that a pod now holds, and of why it had to be computed."""
        cache, now = self.caches.get(pod), self._now
        if cache is None or not cache.stored_at:
            cache = self._cache(pod)
        held, tokens = self.held, cache.block_tokens
        if holders:  # so nobody remembers it as gone
            cause = _ELSEWHERE
            held[holders] -= tokens
            if holders + 1 == len(held):
                held.append(0)
        else:
            cause = self._why_again(cache, block, parent)
        held[holders + 1] += tokens
        cache.causes[cause] += self._counting
        cache.stored_at[block] = now

    def removed(self, pod: str, block: BlockHash, holders: int, *, evicted: bool) -> None:
        """Take note of a block that a pod holds no more."""
        cache, now = self.caches[pod], self._now
        born = cache.stored_at.pop(block, now)
        used = cache.used_at.pop(block, born)
        if evicted and self._counting:
            cache.evicted += 1
            self._lifetimes.observe(cache.pod, value=now - born if now > born else 0.0)
        held, tokens = self.held, cache.block_tokens
        held[holders + 1] -= tokens
        if holders:
            held[holders] += tokens
            return
        if len(self._gone) >= self._half:
            self._long_gone, self._gone = self._gone, {}
        self._gone[block] = used if evicted else -used

    def forget(self, pod: str) -> None:
        """Forget what was counted of a pod whose streams have been dropped."""
        for stream in [name for name, cache in self.caches.items() if cache.pod == pod]:
            del self.caches[stream]
            self.resets.pop(stream, None)

    def _why_again(self, cache: PodCache, block: BlockHash, parent: BlockHash) -> int:
        """Return why a block that nobody holds had to be computed, and remember it no longer."""
        if block in self._gone:
            gone = self._gone.pop(block)
        elif block in self._long_gone:
            gone = self._long_gone.pop(block)
        else:
            return _COLD
        if parent == ROOT or cache.stored_at.get(parent) != self._now:
            self._observe(self._gaps, cache.pod, self._now - abs(gone))
        return _EVICTED if gone > 0 else _RESET

    def _observe(self, buckets: Buckets, pod: str, seconds: float) -> None:
        """Count a span; calendars of two pods may differ by more than it."""
        if self._counting:
            buckets.observe(pod, value=max(seconds, 0.0))

    def _cache(self, pod: str) -> PodCache:
        """Return the cache of a stream that holds nothing yet; it may be of another size now."""
        name, block_tokens = self._place(pod)
        cache = self.caches.setdefault(pod, PodCache(name, block_tokens))
        cache.block_tokens = block_tokens
        return cache
