"""What rows add up to while a run is on: by turn, by pod and in all; bounded, and mergeable.

Each worker keeps a tally of what it has filed since it last told, and the master adds them up. This
is for watching (web UI, `/metrics`); what is judged is computed from the rows themselves.

Rules:

- Tokens count where `cached_tokens` is known: hit rate and ceiling are of the same turns.
- A failed turn counts as failed and has no times here. (In the judged percentiles it is infinitely
  slow; a live chart of infinities shows nothing.)
- Turns that were on their way when the run was stopped are nobody's failure: they count as rows.
- Turns from `MOST_TURNS` on are one line, and so are pods beyond `MOST_PODS`: names come from the
  other side and must not fill the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from kvbench.load.distribution import Distribution
from kvbench.load.outcome import STOPPED
from kvbench.records.schema import Context  # noqa: TC001 - msgspec reads it
from kvbench.text.degeneration import Degeneration  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from kvbench.records.schema import TurnRecord

K = TypeVar("K")

MOST_TURNS = 10
MOST_PODS = 64
OTHERS = "others"


def _distribution() -> Distribution:
    return msgspec.field(default_factory=Distribution)


class Cell(msgspec.Struct, omit_defaults=True):
    """The sums of some turns.

    Attributes:
        turns: Turns filed that were sent.
        failed: Of these, turns not answered in full.
        prompt_tokens: Of answers that say what was cached.
        cached_tokens: Of the prompt tokens.
        planned_tokens: Prompt tokens of the same answers by the plan; the server may count others.
        ceiling_tokens: What an endless cache would have had of these.
        completion_tokens: Tokens generated.
        ttft: Seconds to the first token, from the send.
        itl: Seconds between chunks.
        e2e: Seconds to the last token, from the send.
        lateness: Seconds between when a turn should have been sent and when it was.
    """

    turns: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    planned_tokens: int = 0
    ceiling_tokens: int = 0
    completion_tokens: int = 0
    ttft: Distribution = _distribution()
    itl: Distribution = _distribution()
    e2e: Distribution = _distribution()
    lateness: Distribution = _distribution()

    def add(self, row: TurnRecord) -> None:
        """Take a row of a turn that was sent."""
        self.turns += 1
        self.lateness.add(row.lateness_s or 0.0)
        if not row.ok:
            self.failed += 1
            return
        self.completion_tokens += row.completion_tokens or 0
        if row.cached_tokens is not None and row.prompt_tokens is not None:
            self.prompt_tokens += row.prompt_tokens
            self.cached_tokens += row.cached_tokens
            if row.planned_prompt_tokens is not None:
                self.planned_tokens += row.planned_prompt_tokens
                self.ceiling_tokens += row.ceiling_tokens or 0
        if row.ttft_s is not None:
            self.ttft.add(row.ttft_s)
        if row.e2e_s is not None:
            self.e2e.add(row.e2e_s)
        self.itl.add_all(row.chunk_gaps_s)

    def merge(self, other: Cell) -> None:
        """Take all turns of another."""
        self.turns += other.turns
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.planned_tokens += other.planned_tokens
        self.ceiling_tokens += other.ceiling_tokens
        self.completion_tokens += other.completion_tokens
        self.ttft.merge(other.ttft)
        self.itl.merge(other.itl)
        self.e2e.merge(other.e2e)
        self.lateness.merge(other.lateness)

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were cached, 0 to 1; None where unknown."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ceiling(self) -> float | None:
        """Share of the planned prompt tokens that an endless cache would have had."""
        return self.ceiling_tokens / self.planned_tokens if self.planned_tokens else None


class Tally(msgspec.Struct, omit_defaults=True):
    """Sums of rows.

    Attributes:
        all: Of all turns that were sent.
        turns: By number of the turn; `MOST_TURNS` stands for itself and all later ones.
        pods: By pod.
        outcomes: Rows by kind of error; "ok" for none.
        judged: Answers that were judged, by `records.schema.Context`.
        degenerate: Of these, by kind and then context, those that something is wrong with.
        due: Turns whose time has come since the run began.
        begun: Of these, turns that were sent.
        in_flight: Turns open now.
        cpu_s: CPU seconds of the process since it began.
        loop_delay_s: Latest that a timer fired since it was last told.
    """

    all: Cell = msgspec.field(default_factory=Cell)
    turns: dict[int, Cell] = msgspec.field(default_factory=dict)
    pods: dict[str, Cell] = msgspec.field(default_factory=dict)
    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    judged: dict[Context, int] = msgspec.field(default_factory=dict)
    degenerate: dict[tuple[Degeneration, Context], int] = msgspec.field(default_factory=dict)
    due: int = 0
    begun: int = 0
    in_flight: int = 0
    cpu_s: float = 0.0
    loop_delay_s: float = 0.0

    def add(self, row: TurnRecord) -> None:
        """Take a row."""
        outcome = row.error or "ok"
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if row.sent_s is None or row.error_message == STOPPED:
            return
        if row.judged:
            _count(self.judged, row.context)
        if row.degeneration is not None:
            _count(self.degenerate, (row.degeneration, row.context))
        cell = Cell()
        cell.add(row)
        self._take(cell, {min(row.turn, MOST_TURNS): cell}, {row.pod or OTHERS: cell})

    def merge(self, other: Tally) -> None:
        """Take all rows of another; what is of the moment is left to the caller."""
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        for context, count in other.judged.items():
            _count(self.judged, context, count)
        for kind, count in other.degenerate.items():
            _count(self.degenerate, kind, count)
        self._take(other.all, other.turns, other.pods)

    def _take(self, whole: Cell, turns: dict[int, Cell], pods: dict[str, Cell]) -> None:
        self.all.merge(whole)
        for turn, cell in turns.items():
            self.turns.setdefault(turn, Cell()).merge(cell)
        for pod, cell in pods.items():
            known = pod in self.pods or len(self.pods) < MOST_PODS
            self.pods.setdefault(pod if known else OTHERS, Cell()).merge(cell)

    def encode(self) -> bytes:
        """Return it as bytes, for a message to the master."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Tally:
        """Return what `encode` made bytes of."""
        return msgspec.msgpack.decode(data, type=cls)


def _count(counts: dict[K, int], key: K, by: int = 1) -> None:
    counts[key] = counts.get(key, 0) + by
