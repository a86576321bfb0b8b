"""What an engine says at `/metrics`, read into the quantities of `kvbench.metrics.engines`.

Rules:

- Only lines of known families are looked at; whatever else is there costs a glance.
- Of a quantity's names the first counts that the exposition has: releases that serve an old and a
  new name serve the same number twice.
- A family that is declared and has no sample has counted nothing yet: 0. One that is not declared
  is unknown: None. A value that is no number is as if its line were not there.
- Samples of several engines behind one address are summed; of several tensor-parallel ranks the
  first speaks for all.

Refuses an exposition without a single known family, and one with more samples of known families
than any engine has: `NonsenseError`.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from kvbench.metrics import engines, vllm
from kvbench.metrics.engines import QUANTITIES, engine_of, spellings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvbench.metrics.engines import Quantity

MOST_SAMPLES = 4096
"""Samples of known families in one exposition: an engine with 32 ranks has about a thousand."""

_MOST_TOKENS = 10**12  # no cache holds more, whatever it says
_DIGITS = 15  # of a number in a label

_LATENCIES = {engines.TTFT, engines.ITL, engines.E2E, engines.QUEUE_TIME}
_READ = tuple(quantity for quantity in QUANTITIES if quantity not in _LATENCIES)
_PARTS = ("_bucket", "_sum", "_count")


def _wire_names() -> dict[bytes, str]:
    """Return the name of every sample that is read, by how it may be spelled."""
    names: dict[bytes, str] = {}
    for quantity in _READ:
        for name in quantity.names:
            parts = _PARTS if quantity.kind == "histogram" else ("",)
            for part in parts:
                names |= {wire.encode(): name + part for wire in spellings(name + part)}
    return names


def _samples(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return what finds the samples of these names in `_lines`: name, labels, value."""
    known = b"|".join(sorted(names, reverse=True))
    return re.compile(rb"\n(" + known + rb")(?:\{(.*)\})?[ \t]+(\S+)")


def _lines(exposition: bytes) -> bytes:
    """Return an exposition, each line behind a line feed.

    Looked for by that, lines are found eight times as fast as by `^`, which is tried at each byte.
    """
    return b"\n" + exposition


_NAMES = _wire_names()
_SAMPLE = _samples(_NAMES)
_UNDER_WAY = _samples(
    wire
    for wire, name in _NAMES.items()
    if name in engines.RUNNING.names or name in engines.WAITING.names
)
_SIZE = _samples(
    wire
    for wire, name in _NAMES.items()
    if name in engines.CACHE_CONFIG.names or name in engines.CAPACITY.names
)
_SLEEP = _samples(wire.encode() for wire in spellings(vllm.SLEEP_STATE.name))
_BEGAN = _samples(wire.encode() for name in engines.STARTED.names for wire in spellings(name))
_DECLARED = re.compile(rb"\n# TYPE (\S+) \S+")
_LABEL = re.compile(rb'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(rb"\d[\d.e+-]*")
_DECLARABLE = {
    wire: name
    for quantity in QUANTITIES
    for name in quantity.names
    for full in spellings(name)
    for wire in (full.encode(), full.removesuffix("_total").encode())
}


class NonsenseError(ValueError):
    """It is no exposition of an engine."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A histogram of tokens, as it stands.

    Attributes:
        bounds: Upper bounds, the last one infinite.
        counts: Observations up to each bound.
        total: Sum of what was observed.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """How many observations there were."""
        return self.counts[-1] if self.counts else 0.0

    def since(self, earlier: Lengths) -> Lengths:
        """Return what was observed since; all of it if the process began anew in between."""
        if earlier.bounds != self.bounds or earlier.count > self.count:
            return self
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Lengths(self.bounds, counts, self.total - earlier.total)

    def spread(self, most: float) -> list[tuple[float, float]]:
        """Return (tokens, how many): in each bucket one value, such that all add up to the sum.

        A bucket says only between which bounds its observations lie. They are put at the same
        share of the way through each bucket, the one that gives the engine's sum.

        Args:
            most: Upper bound of what lies in the last bucket.
        """
        lows, highs, amounts = [], [], []
        below = 0.0
        edges = [(0.0, self.bounds[0]), *pairwise(self.bounds)] if self.bounds else []
        for (low, high), upto in zip(edges, self.counts, strict=True):
            if upto > below:
                lows.append(low)
                highs.append(max(low, min(high, most)))
                amounts.append(upto - below)
            below = upto
        least = sum(low * n for low, n in zip(lows, amounts, strict=True))
        greatest = sum(high * n for high, n in zip(highs, amounts, strict=True))
        way = (self.total - least) / (greatest - least) if greatest > least else 0.0
        way = min(max(way, 0.0), 1.0)
        return [
            (low + way * (high - low), n) for low, high, n in zip(lows, highs, amounts, strict=True)
        ]


@dataclass(slots=True)
class Reading:
    """One look at one pod.

    Attributes:
        engine: "vllm", "sglang", or "" if nothing of either is there.
        model: What it says it serves; "" if it does not say.
        numbers: Gauges and counters by the quantity's word; what is unknown is not there.
        lengths: Histograms of tokens by word.
        cache: The labels of `vllm:cache_config_info`, of each engine.
        declared: Every family that the exposition declares.
    """

    engine: str = ""
    model: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    lengths: dict[str, Lengths] = field(default_factory=dict)
    cache: list[dict[str, str]] = field(default_factory=list)
    declared: frozenset[str] = frozenset()

    def get(self, quantity: Quantity) -> float | None:
        """Return a gauge or a counter, None if it is unknown."""
        return self.numbers.get(quantity.word)

    def setting(self, name: str) -> str | None:
        """Return a label of the cache's settings, None if there is none."""
        value = self.cache[0].get(name) if self.cache else None
        return None if value in {None, "None", ""} else value

    @property
    def block_tokens(self) -> int | None:
        """Tokens per block."""
        page = self.get(engines.PAGE_SIZE)
        return whole(self.setting("block_size")) or (int(page) if page else None)

    @property
    def capacity_tokens(self) -> float | None:
        """Tokens that the cache can hold: all blocks but the null block of each vLLM engine."""
        said = self.get(engines.CAPACITY)
        if said is not None:
            return said
        sizes = [_capacity(labels) for labels in self.cache]
        return sum(size for size in sizes if size) if any(sizes) else None

    @property
    def capacity_bytes(self) -> float | None:
        """Bytes of the cache, if they belong to the blocks that there are."""
        if not self.cache or self.setting("num_gpu_blocks_override"):
            return None
        sizes = [whole(labels.get("kv_cache_memory_bytes")) for labels in self.cache]
        return float(sum(size for size in sizes if size)) if all(sizes) else None

    @property
    def window_tokens(self) -> int | None:
        """Tokens of the longest request, up to a block; what /v1/models says is exact."""
        said = self.get(engines.WINDOW)
        if said:
            return int(said)
        size = whole(self.setting("kv_cache_size_tokens"))
        try:
            requests = float(self.setting("kv_cache_max_concurrency") or "0")
        except ValueError:
            return None
        return round(size / requests) if size and requests > 0 else None

    @property
    def referenced_tokens(self) -> float | None:
        """Tokens that running requests use."""
        used, usage = self.get(engines.USED_TOKENS), self.get(engines.USAGE)
        if used is not None:
            return used
        capacity = self.capacity_tokens
        return None if usage is None or capacity is None else usage * capacity


def whole(text: str | None) -> int | None:
    """Return a label that is a number above 0; None for any other."""
    if text is None or len(text) > _DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    return int(text) or None


def read(exposition: bytes) -> Reading:
    """Return what an engine's exposition says.

    Raises:
        NonsenseError: There is nothing in it that an engine says, or far too much.
    """
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    seen = 0
    lines = _lines(exposition)
    for wire, labels, text in _SAMPLE.findall(lines):
        seen += 1
        if seen > MOST_SAMPLES:
            raise NonsenseError(f"more than {MOST_SAMPLES} samples of an engine's families")
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            samples.setdefault(_NAMES[wire], []).append((_labels(labels), value))
    declared = {_DECLARABLE.get(name, "") for name in _DECLARED.findall(lines)} - {""}
    reading = Reading(declared=frozenset(declared))
    for quantity in _READ:
        _take(reading, quantity, samples)
    found = [engine_of(name) for name in (*samples, *declared)]
    reading.engine = next((engine for engine in found if engine in engines.ENGINES), "")
    if not reading.engine:
        raise NonsenseError("not a single metric of vLLM or SGLang")
    return reading


def under_way(exposition: bytes) -> float | None:
    """Return how many requests an engine has, running and waiting; None if it does not say.

    It is what `read` would say, and takes a tenth of the time: routers ask every second.
    """
    told = None
    for _, labels, text in _UNDER_WAY.findall(_lines(exposition)):
        with contextlib.suppress(ValueError):
            value = float(text)
            if math.isfinite(value) and _counts(_labels(labels)):
                told = (told or 0.0) + value
    return told


def cache_tokens(exposition: bytes) -> int | None:
    """Return how many tokens an engine's cache holds; None if it does not say.

    It is what `read` would say, and None too where several engines behind an address have a cache
    each: which of them a prompt comes to is not known.
    """
    sizes = list[float]()
    for name, labels, text in _SIZE.findall(_lines(exposition)):
        read = _labels(labels)
        if _NAMES[name] in engines.CACHE_CONFIG.names:
            sizes.append(_capacity(read) or 0.0)
        elif _counts(read):
            with contextlib.suppress(ValueError):
                sizes.append(float(text))
    return int(sizes[0]) if len(sizes) == 1 and 1 <= sizes[0] <= _MOST_TOKENS else None


def wakefulness(exposition: bytes) -> Literal["awake", "paused", "asleep"]:
    """Return whether an engine works on requests, by what it says of its sleep.

    One that is paused has kept its cache, one that is asleep has given it up; both take requests
    and leave them waiting. One that says nothing is awake. Of several behind an address the first
    that is not speaks for all: they are put to sleep together.
    """
    states = dict[str, set[float]]()
    for _, labels, text in _SLEEP.findall(_lines(exposition)):
        with contextlib.suppress(ValueError):
            states.setdefault(_labels(labels).get("sleep_state", ""), set()).add(float(text))
    if 0.0 not in states.pop("awake", ()):
        return "awake"
    return "asleep" if any(1.0 in values for values in states.values()) else "paused"


def began(exposition: bytes) -> float | None:
    """Return when the process of an engine began, calendar seconds; None if it does not say."""
    found = _BEGAN.search(_lines(exposition))
    with contextlib.suppress(ValueError):
        moment = math.nan if found is None else float(found[3])
        return moment if math.isfinite(moment) else None
    return None


def buckets(exposition: bytes, quantity: Quantity) -> tuple[float, ...]:
    """Return the bounds of a histogram's buckets, without +Inf; empty if it is not there."""
    for name in quantity.names:
        wires = "|".join(re.escape(wire) for wire in spellings(f"{name}_bucket"))
        pattern = re.compile(rf'^(?:{wires})\{{.*?\ble="([^"]+)"'.encode(), re.MULTILINE)
        found = {float(text) for text in pattern.findall(exposition) if _NUMBER.fullmatch(text)}
        if found:
            return tuple(sorted(found))
    return ()


def _take(
    reading: Reading,
    quantity: Quantity,
    samples: Mapping[str, list[tuple[dict[str, str], float]]],
) -> None:
    """Put one quantity into a reading, if it is there."""
    for name in quantity.names:
        if quantity.kind == "histogram":
            buckets = [s for s in samples.get(f"{name}_bucket", ()) if _counts(s[0])]
            if buckets:
                total = sum(value for _, value in samples.get(f"{name}_sum", ()))
                reading.lengths[quantity.word] = _lengths(buckets, total)
                return
            continue
        found = [sample for sample in samples.get(name, ()) if _counts(sample[0])]
        if quantity is engines.CACHE_CONFIG:
            reading.cache += [labels for labels, _ in found]
        elif found:
            values = [value for _, value in found]
            mean = quantity is engines.USAGE
            reading.numbers[quantity.word] = sum(values) / (len(values) if mean else 1)
            reading.model = reading.model or found[0][0].get("model_name", "")
            return
        elif name in reading.declared:
            reading.numbers.setdefault(quantity.word, 0.0)


def _counts(labels: Mapping[str, str]) -> bool:
    """Return whether a sample is to be read: other ranks repeat what the first says."""
    return labels.get("tp_rank", "0") in {"0", ""}


def _labels(text: bytes) -> dict[str, str]:
    """Return labels as they stand; escapes are kept, for nothing that is read has any."""
    return {
        name.decode(): value.decode(errors="replace") for name, value in _LABEL.findall(text or b"")
    }


def _lengths(buckets: list[tuple[dict[str, str], float]], total: float) -> Lengths:
    """Return buckets of one engine or of several as one histogram."""
    merged: dict[float, float] = {}
    for labels, value in buckets:
        try:
            bound = float(labels.get("le", ""))
        except ValueError:
            continue
        merged[bound] = merged.get(bound, 0.0) + value
    bounds = tuple(sorted(merged))
    return Lengths(bounds, tuple(merged[bound] for bound in bounds), total)


def _capacity(labels: Mapping[str, str]) -> float | None:
    """Return the tokens of one vLLM engine's cache, without its null block."""
    blocks = whole(labels.get("num_gpu_blocks"))
    said = whole(labels.get("kv_cache_size_tokens"))
    if blocks is None:
        return said
    tokens = said or blocks * (whole(labels.get("block_size")) or 0)
    return tokens * (blocks - 1) / blocks or None
