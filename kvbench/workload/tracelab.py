"""TraceLab's agent sessions: a CSV of rounds to replay, and JSON lines of rounds as recorded.

    session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms
    {"session_id": "…", "round_index": 1, "prefix_tokens": 29380, "newly_append_tokens": 6360,
     "output_tokens": 1016, "timing_events": [{"timestamp": "2026-06-01T05:40:31.696Z"}, …], …}

A round keeps the first `prefix_len` tokens of what its session had said and heard, and adds
`input_len` new ones, so prompts are cut and appended to, exactly. Where a prefix is longer than
what is known (a session that began before the trace), the missing tokens are the session's own.

Rounds of the CSV come in order; a round waits for the tools of the one before it. Times are
milliseconds. In the recorded rounds, pauses and beginnings are read from the time stamps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from kvbench.errors import InputError
from kvbench.workload.context import cut
from kvbench.workload.drafts import Draft
from kvbench.workload.number_file import parse_number
from kvbench.workload.plan import Message, Segment
from kvbench.workload.trace_lines import records, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.workload.reading import Reading

COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len")

_HINT = "expected TraceLab's columns: session_id, round_idx, prefix_len, input_len, output_len, …"
_ROUND_HINT = "expected TraceLab's rounds: session_id, round_index, prefix_tokens, … per line"

_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class _Event(msgspec.Struct, frozen=True):
    """Something that happened in a round, and when."""

    timestamp: str


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded round; further keys are passed over."""

    session_id: str
    round_index: _Count
    prefix_tokens: _Count
    newly_append_tokens: _Count
    output_tokens: _Count
    timing_events: list[_Event] = []


class _Sessions:
    """What the sessions have said and heard so far."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[Segment, ...]] = {}
        self._rounds: dict[str, int] = {}

    def __contains__(self, session: str) -> bool:
        return session in self._said

    def draft(
        self, session: str, lengths: tuple[int, int, int], at: float | None, think: float
    ) -> Draft:
        """Return the draft of a session's next round: (tokens kept, tokens added, answer)."""
        keep, add, answer = lengths
        number = self._rounds[session] = self._rounds.get(session, -1) + 1
        kept = cut(self._said.get(session, ()), keep)
        missing = keep - sum(segment.tokens for segment in kept)
        prompt = [
            *kept,
            *([Segment(f"before/{session}/{number}", missing)] if missing else []),
            *([Segment(f"user/{session}/{number}", add)] if add else []),
        ]
        key = f"answer/{session}/{number}"
        self._said[session] = (*prompt, Segment(key, answer))
        return Draft(
            session=session,
            messages=(Message("user", tuple(prompt)),),
            max_tokens=answer,
            answer_key=key,
            group=session,
            at=at,
            think=think,
        )


def draft_csv(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of a CSV of rounds.

    Raises:
        InputError: It cannot be read, a column is missing, or a value is no count.
    """
    reading.note("read as TraceLab's CSV: times in ms; a prefix is what the session said before")
    sessions = _Sessions()
    waits: dict[str, float] = {}
    starts: Iterator[float] | None = None
    for count, (line, row) in enumerate(table(reading.path, COLUMNS, _HINT)):
        if not reading.up_to_limit(count):
            return
        where = f"{reading.path}:{line}"
        session = "s" + (row.get("session_id") or row.get("id") or "0")
        keep, add = (_whole(row, name, where) for name in ("prefix_len", "input_len"))
        answer = max(_whole(row, "output_len", where), 1)
        if not keep + add:
            raise InputError("input_len: expected at least 1, got 0", where=where, hint=_HINT)
        at = None
        if session not in sessions:
            if row.get("arrival_time"):
                at = _whole(row, "arrival_time", where) / reading.second
            else:
                starts = starts or reading.starts()
                at = next(starts)
        think = 0.0 if at is not None else waits.get(session, 0.0)
        wait = row.get("tool_wait_after_ms")
        waits[session] = _whole(row, "tool_wait_after_ms", where) / 1000 if wait else 0.0
        yield sessions.draft(session, (keep, add, answer), at, think)


def draft_rounds(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of recorded rounds.

    Raises:
        InputError: The file cannot be read, or a row breaks a rule.
    """
    reading.note("read as TraceLab's rounds: a prefix is what the session said before")
    sessions = _Sessions()
    ends: dict[str, float] = {}
    first: float | None = None
    for count, (line, row) in enumerate(records(reading.path, Round, _ROUND_HINT)):
        if not reading.up_to_limit(count):
            return
        if not row.prefix_tokens + row.newly_append_tokens:
            raise InputError(
                "newly_append_tokens: expected at least 1, got 0",
                where=f"{reading.path}:{line}",
                hint=_ROUND_HINT,
            )
        times = [t for event in row.timing_events if (t := parse_number(event.timestamp))]
        begun = min(times, default=None)
        first = begun if first is None else first
        at = None
        if row.session_id not in sessions:
            at = max((begun or 0.0) - (first or 0.0), 0.0)
        think = max((begun or 0.0) - ends.get(row.session_id, begun or 0.0), 0.0)
        if times:
            ends[row.session_id] = max(times)
        lengths = (row.prefix_tokens, row.newly_append_tokens, max(row.output_tokens, 1))
        yield sessions.draft(row.session_id, lengths, at, 0.0 if at is not None else think)


def _whole(row: dict[str, str], name: str, where: str) -> int:
    """Return a count of a row; times may have decimals."""
    number = parse_number(row[name])
    if number is None or not 0 <= number <= 1e12:
        raise InputError(
            f"{name}: expected a number of at least 0, got {row[name][:40]!r}",
            where=where,
            hint=_HINT,
        )
    return round(number)
