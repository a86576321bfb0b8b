"""What the servers said while a run was on: one line a second and server, in `server.jsonl`.

A `Snapshot` holds the few numbers of a server's `/metrics` that gates and reports ask for, under
short words (`FAMILIES`), summed over the engines of a pod. So a verdict needs no Prometheus, and
a run folder that is copied elsewhere keeps its evidence.

Rules:

- Snapshots carry calendar time; the reader turns it into seconds of the run.
- A counter never runs backwards by itself: where it does, or where a process says that it began
  later than it did before, the server was *restarted*. What was counted before is kept and added.
- A server that does not answer leaves a line without values. What it does not expose is absent,
  never 0.
- Lines that are broken are skipped: a run that was killed is read as far as it goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from kvbench.metrics import pod, router, vllm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from kvbench.metrics.metric import Metric
    from kvbench.records.run import RunFolder

Kind = Literal["pod", "router"]


@dataclass(frozen=True, slots=True)
class Family:
    """A number that is kept.

    Attributes:
        word: What snapshots call it.
        name: What servers call it.
        counter: Whether it only grows.
        most: Whether the largest of a server's samples counts, rather than their sum.
    """

    word: str
    name: str
    counter: bool
    most: bool = False

    @classmethod
    def of(cls, word: str, metric: Metric, *, most: bool = False) -> Family:
        """Return the family of a metric."""
        return cls(word, metric.name, metric.kind == "counter", most)


FAMILIES = (
    Family.of("queries", vllm.PREFIX_CACHE_QUERIES),
    Family.of("hits", vllm.PREFIX_CACHE_HITS),
    Family.of("prompt_tokens", vllm.PROMPT_TOKENS),
    Family.of("generation_tokens", vllm.GENERATION_TOKENS),
    Family.of("preemptions", vllm.PREEMPTIONS),
    Family.of("kv_usage", vllm.KV_CACHE_USAGE, most=True),
    Family.of("running", vllm.REQUESTS_RUNNING),
    Family.of("waiting", vllm.REQUESTS_WAITING),
    Family.of("evictions", pod.EVICTIONS),
    Family.of("cached_blocks", pod.CACHED_BLOCKS),
    Family("started", "process_start_time_seconds", counter=False, most=True),
    Family.of("routed_prompt_tokens", router.PROMPT_TOKENS),
    Family.of("predicted_tokens", router.PREDICTED_TOKENS),
    Family.of("routed_cached_tokens", router.CACHED_TOKENS),
    Family.of("retries", router.RETRIES),
    Family.of("refusals", router.REFUSALS),
)
"""All that is kept, and nothing else."""

_BY_NAME = {family.name.replace(":", "_").encode(): family for family in FAMILIES}
_NAMES = b"|".join(name.replace(b"_", b"[:_]") for name in _BY_NAME)
_SAMPLE = re.compile(rb"\n(" + _NAMES + rb")(?:\{.*\})?[ \t]+(\S+)")
_COUNTERS = frozenset(family.word for family in FAMILIES if family.counter)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server at one moment.

    Attributes:
        at: Calendar time, seconds since 1970.
        server: Its name: of a pod, as in `TurnRecord.pod`.
        kind: What it is.
        values: By word of `FAMILIES`; empty where it did not answer.
    """

    at: float
    server: str
    kind: Kind = "pod"
    values: dict[str, float] = {}


def scan(exposition: bytes) -> dict[str, float]:
    """Return the numbers of `FAMILIES` in a text exposition, by their words.

    It looks at the lines it wants and at no other, for this runs every second beside a measurement;
    names are found with colons and without. What is no number is left out.
    """
    found: dict[str, float] = {}
    for name, text in _SAMPLE.findall(b"\n" + exposition):  # by `^` it takes four times as long
        family = _BY_NAME[name.replace(b":", b"_")]
        try:
            value = float(text)
        except ValueError:
            continue
        old = found.get(family.word, 0.0)
        found[family.word] = max(old, value) if family.most else old + value
    return found


@dataclass(frozen=True, slots=True)
class ServerSeries:
    """One server over the run.

    Attributes:
        kind: Pod or router.
        at_s: Moments at which it was asked, seconds of the run (negative: before the first turn).
        numbers: By word: NaN where unknown; counters continue over restarts.
        restarts: Moments at which it was found restarted.
        silent: How often it did not answer.
    """

    kind: Kind
    at_s: NDArray[np.float64]
    numbers: Mapping[str, NDArray[np.float64]]
    restarts: tuple[float, ...]
    silent: int

    def gained(self, word: str) -> float | None:
        """Return by how much a counter grew from the first look to the last; None if unknown."""
        known = self._known(word)
        return float(known[-1] - known[0]) if len(known) > 1 else None

    def rate(self, word: str) -> float | None:
        """Return a counter's growth per second, between its first and its last look."""
        gained = self.gained(word)
        if gained is None:
            return None
        moments = self.at_s[np.isfinite(self.numbers[word])]
        seconds = float(moments[-1] - moments[0])
        return gained / seconds if seconds > 0 else None

    def known(self, word: str) -> NDArray[np.float64]:
        """Return the values that a gauge had while turns were sent; empty if unknown."""
        return self._known(word, self.at_s >= 0)

    def _known(self, word: str, where: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        values = self.numbers.get(word, np.empty(0))
        if where is not None and len(values):
            values = values[where]
        return values[np.isfinite(values)]


def read_server(folder: RunFolder, started_at: str | None) -> dict[str, ServerSeries]:
    """Return what the servers said, by name in order; empty where nothing was kept.

    Args:
        folder: The run.
        started_at: The manifest's: the moment that is second 0.
    """
    snapshots: list[Snapshot] = []
    decoder = msgspec.json.Decoder(Snapshot)
    try:
        with folder.server_path.open("rb") as file:
            for line in file:
                try:
                    snapshots.append(decoder.decode(line))
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue
    except OSError:
        return {}
    return series_of(snapshots, _epoch(started_at))


def series_of(snapshots: Iterable[Snapshot], zero: float | None) -> dict[str, ServerSeries]:
    """Return snapshots as series by server; `zero` is second 0, None takes the first snapshot."""
    by_server: dict[str, list[Snapshot]] = {}
    for snapshot in sorted(snapshots, key=lambda s: s.at):
        by_server.setdefault(snapshot.server, []).append(snapshot)
    first = min((s[0].at for s in by_server.values()), default=0.0)
    return {
        name: _series(by_server[name], first if zero is None else zero)
        for name in sorted(by_server)
    }


def _series(snapshots: list[Snapshot], zero: float) -> ServerSeries:
    at = np.array([s.at - zero for s in snapshots])
    words = sorted({word for s in snapshots for word in s.values})
    values = {
        word: np.array([s.values.get(word, np.nan) for s in snapshots], dtype=np.float64)
        for word in words
    }
    restarted = np.zeros(len(at), dtype=bool)
    for word in [word for word in words if word in _COUNTERS]:
        restarted |= _falls(values[word])
        values[word] = _continued(values[word])
    if "started" in values:
        restarted |= _moves(values["started"])
    return ServerSeries(
        kind=snapshots[-1].kind,
        at_s=at,
        numbers=values,
        restarts=tuple(at[restarted].tolist()),
        silent=sum(not s.values for s in snapshots),
    )


def _before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each value, the last known one before it; NaN for the first."""
    index = np.where(np.isfinite(values), np.arange(len(values)), -1)
    last = np.maximum.accumulate(index)[:-1] if len(values) else index
    before = np.full(len(values), np.nan)
    before[1:] = np.where(last >= 0, values[last], np.nan)
    return before


def _falls(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(values < _before(values))  # comparisons with NaN are false


def _moves(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(values > _before(values) + 1.0)


def _continued(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a counter that goes on where it was when its process was restarted."""
    lost = np.where(_falls(values), _before(values), 0.0)
    return np.asarray(values + np.cumsum(lost))


def _epoch(moment: str | None) -> float | None:
    try:
        return datetime.fromisoformat(moment or "").timestamp()
    except ValueError:
        return None
