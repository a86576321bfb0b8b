"""What the exporter knows of all pods, and how it becomes metrics. Pure; no socket.

Rules:

- What is not known is absent. What comes from events is absent while they are lost or unheard: a
  count of blocks that is not complete is not a count.
- Blocks that are evictable are what is resident and not in use. Which blocks are in use the engine
  does not say, only how many; all but the last block of each running request are resident. So
  evictable = resident - (referenced - running), exact to a block for each running request.
- Labels are pods, and closed sets. A model's name is a pod's word: its first 100 characters count.
- At most `MOST_PODS` pods. A pod whose events tell of twice the blocks that it can hold, as some
  engines do that announce and never take back, is forgotten and begins anew: cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.exporter.balance import Recent, jain, max_over_mean
from kvbench.exporter.cache import REMEMBER, CacheModel
from kvbench.exporter.meters import Meters
from kvbench.exporter.pod import WatchedPod, context_ratios
from kvbench.kvcache.ledger import Ledger
from kvbench.metrics import engines
from kvbench.metrics import exporter as metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvbench.exporter.gpu import Gpu
    from kvbench.http.get import FailureKind
    from kvbench.kvcache.ledger import Stream
    from kvbench.metrics.exposition import Reading

MOST_PODS = 512
BALANCE_S = 60.0
MOST_TOKENS = 64_000_000
"""Tokens that a pod may claim to hold that does not say what it can."""

_BEYOND = 2.0  # times its capacity


class Fleet:
    """All pods.

    Args:
        utc: Calendar seconds: when events are published, and processes begin.
        remember: Blocks that are remembered after nobody holds them.

    Attributes:
        pods: What scrapes say of them, by name.
        ledger: What their events say.
        cache: What becomes of their blocks.
        meters: What is shown.
    """

    def __init__(self, utc: Callable[[], float], remember: int = REMEMBER) -> None:
        self.pods: dict[str, WatchedPod] = {}
        self.meters = Meters()
        self.cache = CacheModel(
            self._place, self.meters.lifetimes, self.meters.gaps, since=utc(), remember=remember
        )
        self.ledger = Ledger(utc, self.cache)
        self._utc = utc
        self._seconds: dict[str, float] = {}
        self._work = {work: Recent(BALANCE_S) for work in metrics.WORK}

    def add(self, name: str) -> WatchedPod:
        """Begin to know a pod.

        Raises:
            InputError: There are too many.
        """
        if len(self.pods) >= MOST_PODS:
            raise InputError(f"--pod: expected at most {MOST_PODS} pods")
        return self.pods.setdefault(name, WatchedPod(name))

    def drop(self, name: str) -> None:
        """Forget a pod; its events must have been dropped before."""
        self.pods.pop(name, None)
        self._seconds.pop(name, None)
        self.meters.forget(name)
        self.cache.forget(name)

    def looked(self, name: str, now: float, seconds: float, reading: Reading | FailureKind) -> None:
        """Take the result of a scrape.

        Args:
            name: Of which pod.
            now: When, on a clock that never runs backwards.
            seconds: How long it took.
            reading: What the pod said, or why it could not be read.
        """
        pod = self.pods.get(name)
        if pod is None:
            return
        self._seconds[name] = seconds
        self._bound(pod)
        if isinstance(reading, str):
            self.meters.failures.add(name, reading)
            pod.looked(now, self._utc(), None)
            return
        ended = pod.looked(now, self._utc(), reading)
        if ended is not None and pod.window:
            for ratio, times in context_ratios(ended, pod.window):
                self.meters.contexts.observe(name, value=ratio, times=times)
        pod.forget_old(now)
        added = pod.added
        self._work["requests"].add(now, name, added.get(engines.REQUESTS.word, 0.0))
        missed = added.get(engines.QUERIES.word, 0.0) - added.get(engines.HITS.word, 0.0)
        self._work["uncached_tokens"].add(now, name, missed)

    def show(self, now: float, gpus: Iterable[Gpu]) -> None:
        """Set every metric, for a scrape."""
        self.meters.clear()
        for pod in self.pods.values():
            self._show_process(pod, now)
            self._show_counted(pod)
            self._show_events(pod)
            self._show_pool(pod)
        self._show_fleet(now)
        self._show_gpus(gpus)

    def _bound(self, pod: WatchedPod) -> None:
        """Forget what a pod's events say if that is more than it can hold."""
        capacity = pod.reading.capacity_tokens if pod.reading else None
        most = _BEYOND * capacity if capacity else MOST_TOKENS
        for stream in self.ledger.streams.get(pod.name, ()):
            if _resident(stream) > most:
                self.ledger.restarted(stream, "its events tell of more blocks than it can hold")

    def _place(self, stream: str) -> tuple[str, int]:
        """Return the pod and the block size of a stream."""
        for streams in self.ledger.streams.values():
            for one in streams:
                if one.name == stream and one.index is not None:
                    return one.pod, one.index.block_size
        raise AssertionError(f"{stream} stores blocks and is not followed")

    def _show_process(self, pod: WatchedPod, now: float) -> None:
        """Show what a pod is, and whether it works."""
        show, name, reading = self.meters.show, pod.name, pod.reading
        show(metrics.UP, name, value=float(reading is not None))
        show(metrics.SCRAPE_SECONDS, name, value=self._seconds.get(name))
        show(metrics.WINDOW_TOKENS, name, value=pod.window)
        if reading is None:
            return
        show(metrics.INFO, name, reading.engine, reading.model[:100], value=1.0)
        show(metrics.AGE, name, value=None if pod.began is None else now - pod.began)
        show(metrics.STALLED, name, value=0.0 if pod.busy_since is None else now - pod.busy_since)
        show(metrics.PROCESS_BYTES, name, value=reading.get(engines.PROCESS_BYTES))
        show(metrics.CAPACITY_TOKENS, name, value=reading.capacity_tokens)
        show(metrics.CAPACITY_BYTES, name, value=reading.capacity_bytes)
        show(metrics.BLOCK_TOKENS, name, value=reading.block_tokens)
        show(metrics.HEADROOM_TOKENS, name, value=pod.headroom_tokens)
        for length in metrics.LENGTHS:
            show(metrics.HEADROOM_SEQUENCES, name, length, value=pod.headroom_sequences(length))

    def _show_counted(self, pod: WatchedPod) -> None:
        """Show what was counted, whether the pod can be read at the moment or not."""
        show, name, totals = self.meters.show, pod.name, pod.totals
        show(metrics.QUERIED_TOKENS, name, value=totals.get(engines.QUERIES.word))
        show(metrics.HIT_TOKENS, name, value=totals.get(engines.HITS.word))
        show(metrics.REQUESTS, name, value=totals.get(engines.REQUESTS.word))
        show(metrics.PREEMPTIONS, name, value=totals.get(engines.PREEMPTIONS.word))
        show(metrics.COLD_START, name, "restart", value=float(pod.restarts))
        streams = self.ledger.streams.get(name)
        if not streams:
            show(metrics.EVICTED_TOKENS, name, value=totals.get(engines.EVICTED_TOKENS.word))
            return
        resets = self.cache.resets
        show(metrics.COLD_START, name, "reset", value=float(sum(resets[s.name] for s in streams)))
        caches = [c for s in streams if (c := self.cache.caches.get(s.name)) is not None]
        for index, cause in enumerate(metrics.STORED_CAUSES):
            tokens = sum(cache.causes[index] * cache.block_tokens for cache in caches)
            show(metrics.STORED_TOKENS, name, cause, value=float(tokens))
        evicted = sum(cache.evicted * cache.block_tokens for cache in caches)
        show(metrics.EVICTED_TOKENS, name, value=float(evicted))
        queried, hits = totals.get(engines.QUERIES.word), totals.get(engines.HITS.word)
        if queried is not None and hits is not None:
            known = sum(cache.known_tokens for cache in caches)
            show(metrics.ATTAINABLE_TOKENS, name, value=min(queried, hits + known))

    def _show_events(self, pod: WatchedPod) -> None:
        """Show how far events may be believed."""
        show, name = self.meters.show, pod.name
        streams = self.ledger.streams.get(name, [])
        level = self.ledger.trust(name).level if streams else "off"
        for known in metrics.TRUST_LEVELS:
            show(metrics.EVENTS_TRUST, name, known, value=float(known == level))
        if not streams:
            return
        show(metrics.EVENTS_BATCHES, name, value=float(sum(s.batches for s in streams)))
        show(metrics.EVENTS_GAPS, name, value=float(sum(s.feed.gaps for s in streams)))
        show(metrics.EVENTS_LOST, name, value=float(sum(s.feed.lost for s in streams)))
        if any(s.batches for s in streams):
            show(metrics.EVENTS_LAG, name, value=max(s.lag_s for s in streams))

    def _show_pool(self, pod: WatchedPod) -> None:
        """Show what the pool is made of."""
        show, name, reading = self.meters.show, pod.name, pod.reading
        if reading is None:
            return
        capacity, referenced = reading.capacity_tokens, reading.referenced_tokens
        show(metrics.REFERENCED_TOKENS, name, value=referenced)
        evictable = reading.get(engines.EVICTABLE_TOKENS)
        resident = self._resident(name)
        if capacity is None or referenced is None:
            return
        if resident is not None:
            show(metrics.RESIDENT_TOKENS, name, value=min(resident, capacity))
            open_blocks = (reading.get(engines.RUNNING) or 0.0) * (reading.block_tokens or 0)
            used = max(referenced - open_blocks, 0.0)
            evictable = min(max(resident - used, 0.0), capacity - referenced)
        show(metrics.EVICTABLE_TOKENS, name, value=evictable)
        if evictable is not None:
            show(metrics.EMPTY_TOKENS, name, value=max(capacity - referenced - evictable, 0.0))

    def _resident(self, name: str) -> float | None:
        """Return the tokens of blocks that a pod holds, copies included; None if not known."""
        streams = self.ledger.streams.get(name)
        if not streams or self.ledger.trust(name).level != "exact":
            return None
        return float(sum(map(_resident, streams)))

    def _show_fleet(self, now: float) -> None:
        """Show what is true of all pods together."""
        show = self.meters.show
        names = [name for name, pod in self.pods.items() if pod.reading is not None]
        for work, recent in self._work.items():
            amounts = recent.sums(now, names)
            show(metrics.MAX_OVER_MEAN, work, value=max_over_mean(amounts))
            show(metrics.JAIN, work, value=jain(amounts))
        if not self.ledger.streams:
            return
        show(metrics.UNIQUE_TOKENS, value=float(self.cache.unique_tokens))
        show(metrics.DUPLICATE_TOKENS, value=float(self.cache.duplicate_tokens))
        show(metrics.REMEMBERED, value=float(self.cache.remembered))
        held = dict.fromkeys(metrics.HOLDERS, 0)
        for pods, tokens in enumerate(self.cache.held):
            if pods:
                held[_holders(pods)] += tokens
        for holders, tokens in held.items():
            show(metrics.HELD_TOKENS, holders, value=float(tokens))

    def _show_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Show the GPUs of this machine."""
        for gpu in gpus:
            name = str(gpu.index)
            self.meters.show(metrics.GPU_USED_BYTES, name, value=float(gpu.used_bytes))
            self.meters.show(metrics.GPU_TOTAL_BYTES, name, value=float(gpu.total_bytes))
            self.meters.show(metrics.GPU_BUSY, name, value=gpu.busy)


def _resident(stream: Stream) -> int:
    """Return the tokens of a stream's blocks, copies included."""
    index = stream.index
    return 0 if index is None else index.physical(stream.name) * index.block_size


def _holders(pods: int) -> str:
    """Return the word of `HOLDERS` for a number of pods."""
    for word, most in zip(metrics.HOLDERS, (1, 2, 4, 8), strict=False):
        if pods <= most:
            return word
    return metrics.HOLDERS[-1]
