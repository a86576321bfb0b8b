"""One pod as its scrapes show it: folds one reading after the other. Pure.

Rules:

- Counters are kept as what was added since the first look, and go on over restarts: a counter that
  fell began anew, and what it shows was added. They never run backwards.
- A pod was restarted if its process says that it began later than it did before, or, where it does
  not say, if a counter fell.
- What a pod does not tell is None, and so is everything while it cannot be read, but for what was
  counted.
- Requests that ended between two looks are seen as sums and buckets (`exposition.Lengths`), so one
  request is exact and several are exact in sum.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.metrics import engines

if TYPE_CHECKING:
    from kvbench.metrics.exporter import Length
    from kvbench.metrics.exposition import Lengths, Reading

LATELY_S = 300.0
"""Seconds for which the lengths of requests that ended are remembered."""

COUNTED = (
    engines.QUERIES,
    engines.HITS,
    engines.REQUESTS,
    engines.PREEMPTIONS,
    engines.EVICTED_TOKENS,
    engines.PROMPT_TOKENS,
    engines.GENERATION_TOKENS,
)

_MOST_REMEMBERED = 600  # looks with requests that ended: ten minutes at one a second


@dataclass(frozen=True, slots=True)
class Ended:
    """Requests that ended between two looks.

    Attributes:
        at: When the later look was.
        prompts: (tokens, how many).
        answers: (tokens, how many).
    """

    at: float
    prompts: list[tuple[float, float]]
    answers: list[tuple[float, float]]

    @property
    def count(self) -> float:
        """How many requests."""
        return sum(n for _, n in self.prompts)


@dataclass(slots=True)
class WatchedPod:
    """What is known of a pod from its `/metrics`.

    Attributes:
        name: What it is called.
        window: Tokens of its longest request; None until somebody says. Who knows better sets it.
        reading: The latest, None while it cannot be read.
        totals: By word of `COUNTED`: what was added since the first look.
        added: By word of `COUNTED`: what was added since the look before.
        restarts: How often it was found restarted.
        began: When its process began, on the clock of the looks; None if it does not say.
        busy_since: When it was first seen at work without a token since; None if it is not.
        ended: Requests that ended lately.
    """

    name: str
    window: int | None = None
    reading: Reading | None = None
    totals: dict[str, float] = field(default_factory=dict)
    added: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    began: float | None = None
    busy_since: float | None = None
    ended: deque[Ended] = field(default_factory=lambda: deque(maxlen=_MOST_REMEMBERED))
    _last: Reading | None = None

    def looked(self, now: float, calendar: float, reading: Reading | None) -> Ended | None:
        """Take a look's result, None if the pod could not be read.

        Args:
            now: When, on a clock that never runs backwards.
            calendar: The same in calendar seconds, which processes give their start in.
            reading: What it said.

        Returns:
            The requests that ended since the look before, None if there were none.
        """
        self.reading = reading
        self.added = {}
        if reading is None:
            self.busy_since = None
            return None
        last, self._last = self._last, reading
        restarted = last is not None and _restarted(last, reading)
        self.restarts += restarted
        started = reading.get(engines.STARTED)
        if started is not None:
            self.began = now - max(calendar - started, 0.0)
        elif self.began is None or restarted:
            self.began = now
        self.window = self.window or reading.window_tokens
        self._count(last, reading)
        self._mind(now, reading)
        return self._requests(now, None if restarted else last, reading)

    def headroom_sequences(self, length: Length) -> int | None:
        """Return how many more requests fit at once, of one of `exporter.LENGTHS`."""
        headroom, block = self.headroom_tokens, self.reading and self.reading.block_tokens
        tokens = self._tokens(length)
        if headroom is None or tokens is None:
            return None
        block = block or 1
        return int(headroom // (max(math.ceil(tokens / block), 1) * block))

    @property
    def headroom_tokens(self) -> float | None:
        """Tokens that further requests can take."""
        if self.reading is None:
            return None
        capacity, used = self.reading.capacity_tokens, self.reading.referenced_tokens
        return None if capacity is None or used is None else max(capacity - used, 0.0)

    def forget_old(self, now: float) -> None:
        """Forget requests that ended long ago."""
        while self.ended and self.ended[0].at < now - LATELY_S:
            self.ended.popleft()

    def _count(self, last: Reading | None, reading: Reading) -> None:
        """Add up what the counters gained."""
        for quantity in COUNTED:
            value = reading.get(quantity)
            if value is None:
                continue
            before = value if last is None else last.get(quantity)
            gained = value if before is None or before > value else value - before
            self.added[quantity.word] = gained
            self.totals[quantity.word] = self.totals.get(quantity.word, 0.0) + gained

    def _mind(self, now: float, reading: Reading) -> None:
        """Note since when requests have been there and nothing was computed."""
        there = (reading.get(engines.RUNNING) or 0.0) + (reading.get(engines.WAITING) or 0.0)
        work = (engines.QUERIES, engines.PROMPT_TOKENS, engines.GENERATION_TOKENS)
        if not there or any(self.added.get(quantity.word) for quantity in work):
            self.busy_since = None
        elif self.busy_since is None:
            self.busy_since = now

    def _requests(self, now: float, last: Reading | None, reading: Reading) -> Ended | None:
        """Return the requests that ended since the last look."""
        if last is None:
            return None
        gained: list[list[tuple[float, float]]] = []
        for quantity in (engines.PROMPT_LENGTHS, engines.ANSWER_LENGTHS):
            lengths, before = reading.lengths.get(quantity.word), last.lengths.get(quantity.word)
            gained.append(_gained(lengths, before, self.window))
        ended = Ended(now, *gained)
        if not ended.count:
            return None
        self.ended.append(ended)
        return ended

    def _tokens(self, length: Length) -> float | None:
        """Return how long a request is that counts as `length`."""
        if length == "window":
            return float(self.window) if self.window else None
        prompts = [pair for ended in self.ended for pair in ended.prompts]
        answers = [pair for ended in self.ended for pair in ended.answers]
        if not prompts:
            return None
        measure = _mean if length == "mean" else _p95
        return measure(prompts) + measure(answers)


def context_ratios(ended: Ended, window: int) -> list[tuple[float, int]]:
    """Return (share of the window, how many) of requests that ended, answers included.

    Which answer belongs to which prompt is not known; each prompt is given the mean answer.
    """
    answer = _mean(ended.answers)
    return [(min((tokens + answer) / window, 1.0), round(n)) for tokens, n in ended.prompts]


def _restarted(last: Reading, reading: Reading) -> bool:
    """Return whether the process is another one than at the last look."""
    before, after = last.get(engines.STARTED), reading.get(engines.STARTED)
    if before is not None and after is not None:
        return after > before + 1.0
    return any(
        (reading.numbers.get(q.word) or 0.0) < last.numbers.get(q.word, 0.0)
        for q in COUNTED
        if q.word in reading.numbers
    )


def _gained(
    lengths: Lengths | None, before: Lengths | None, window: int | None
) -> list[tuple[float, float]]:
    """Return what a histogram of lengths gained."""
    if lengths is None:
        return []
    gained = lengths if before is None else lengths.since(before)
    longest = max((bound for bound in lengths.bounds if bound < math.inf), default=0.0)
    return gained.spread(float(window or longest))


def _mean(values: list[tuple[float, float]]) -> float:
    """Return the mean of (value, how many); 0 of none."""
    count = sum(n for _, n in values)
    return sum(value * n for value, n in values) / count if count else 0.0


def _p95(values: list[tuple[float, float]]) -> float:
    """Return the least value that 95 % do not exceed; 0 of none."""
    left = 0.95 * sum(n for _, n in values)
    for value, n in sorted(values):
        left -= n
        if left <= 1e-9:
            return value
    return 0.0
