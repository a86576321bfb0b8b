"""Traces of block ids: Mooncake's and Bailian's, one request a line.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}
    {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, "turn": 1, …}

An id stands for a block of tokens *and* all tokens before it, so what two rows share in ids they
share in tokens, and nothing else: prompts are made of segments `id/<n>`. As published, Mooncake has
milliseconds and blocks of 512, Bailian seconds and blocks of 16; in both the last, partial block
has an id, ids are global, and a row holds its whole prompt. A `session_id` (AIPerf's addition) or a
`parent_chat_id` makes rows a session; with `delta` semantics each adds to what its session said.

A row is due at its time. A row with a `delay` and no time follows its predecessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from kvbench.errors import InputError
from kvbench.workload.drafts import Draft
from kvbench.workload.plan import Message, Segment
from kvbench.workload.trace_lines import records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.workload.reading import Reading

_HINT = "expected rows with timestamp, input_length, output_length, hash_ids"

_Time = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class HashRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace; further keys are passed over."""

    input_length: _Length
    output_length: _Length
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]
    timestamp: _Time | None = None
    delay: _Time | None = None
    session_id: str | int | None = None
    chat_id: int | None = None
    parent_chat_id: int = -1


def draft_hash_rows(reading: Reading, *, bailian: bool) -> Iterator[Draft]:
    """Yield the turns of a trace, in its order.

    Raises:
        InputError: A row breaks a rule of the format.
    """
    rows = _Rows(reading, bailian)
    for count, (number, row) in enumerate(records(reading.path, HashRow, _HINT)):
        if not reading.up_to_limit(count):
            return
        if (problem := rows.problem(row)) is not None:
            raise InputError(problem, where=f"{reading.path}:{number}", hint=_HINT)
        yield rows.draft(count, row)


class _Rows:
    """What is known of the rows so far."""

    def __init__(self, reading: Reading, bailian: bool) -> None:
        options = reading.options
        self._block = options.block_size or (16 if bailian else 512)
        self._second = 1.0 if (options.time_unit or ("s" if bailian else "ms")) == "s" else 1000.0
        self._partial = options.tail != "floor"
        self._delta = options.semantics == "delta"
        self._local = options.ids == "local"
        self._reading = reading
        self._first: float | None = None
        self._before = 0.0
        self._chats: dict[int, str] = {}  # chat to its session
        self._said: dict[str, tuple[Segment, ...]] = {}
        self._full: dict[str, Segment] = {}  # most blocks occur many times: one object for each
        self._sessions: set[str] = set()
        reading.note(
            f"read as {'Bailian' if bailian else 'Mooncake'}: blocks of {self._block} tokens, "
            f"times in {'s' if self._second == 1 else 'ms'}, "
            f"{'local' if self._local else 'global'} ids, "
            f"last block {'with' if self._partial else 'without'} an id, "
            f"{'added' if self._delta else 'whole'} prompts"
        )

    def problem(self, row: HashRow) -> str | None:
        """Return what is wrong with a row, or None."""
        whole, part = divmod(row.input_length, self._block)
        expected = whole + bool(part and self._partial)
        if len(row.hash_ids) != expected:
            return (
                f"hash_ids: expected {expected} ids for {row.input_length} tokens in blocks of "
                f"{self._block}, got {len(row.hash_ids)}{self._advice(row)}"
            )
        if row.timestamp is None and (row.delay is None or row.session_id is None):
            return "timestamp: missing"
        if row.timestamp is not None and row.timestamp < self._before:
            return (
                f"timestamp: expected at least {self._before:g} as in the row before, "
                f"got {row.timestamp:g}"
            )
        return None

    def _advice(self, row: HashRow) -> str:
        """Return which block size would fit."""
        ids = len(row.hash_ids)
        for size in (16, 32, 64, 128, 256, 512, 1024):
            if ids > 1 and size != self._block and ids == -(-row.input_length // size):
                return f"; blocks of {size} would fit: --block-size {size}"
        return ""

    def draft(self, index: int, row: HashRow) -> Draft:
        """Return the turn of a row."""
        session = self._session(index, row)
        segments = self._segments(index, row, session)
        answer = f"answer/{index}"
        if self._delta and session != f"r{index}":
            segments = self._said.get(session, ()) + segments
            self._said[session] = (*segments, Segment(answer, row.output_length))
        at = None
        if row.timestamp is not None:
            self._first = row.timestamp if self._first is None else self._first
            self._before = row.timestamp
            at = (row.timestamp - self._first) / self._second
        return Draft(
            session=session,
            messages=(Message("user", segments),),
            max_tokens=row.output_length,
            answer_key=answer,
            group=segments[0].key.replace("/", "-"),
            at=at,
            think=(row.delay or 0.0) / self._second if at is None else 0.0,
        )

    def _session(self, index: int, row: HashRow) -> str:
        """Return the session of a row: that of its parent, its own id, or one for itself."""
        if row.chat_id is not None:
            session = self._chats.get(row.parent_chat_id, f"c{row.chat_id}")
            self._chats[row.chat_id] = session
            return session
        if row.session_id is None:
            return f"r{index}"
        self._reading.note(
            "rows have a session_id: their prompts are taken as "
            + ("what is new in their session" if self._delta else "whole (--semantics delta)")
        )
        return f"s{row.session_id}"

    def _segments(self, index: int, row: HashRow, session: str) -> tuple[Segment, ...]:
        """Return what the ids of a row stand for, the last block as long as it is."""
        scope = f"id/{session}/" if self._local else "id/"
        whole, part = divmod(row.input_length, self._block)
        segments = []
        for i in row.hash_ids[:whole]:
            key = f"{scope}{i}"
            segments.append(
                self._full.get(key) or self._full.setdefault(key, Segment(key, self._block))
            )
        if part:
            key = f"{scope}{row.hash_ids[-1]}" if self._partial else f"tail/{index}"
            segments.append(Segment(key, part))
        return tuple(segments)
