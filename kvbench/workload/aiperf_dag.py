"""AIPerf's DAG of sessions: turns that fork off, spawn and wait for other sessions.

    {"session_id": "a", "turns": [{"messages": [{"role": "user", "content": "…"}], "max_tokens": 64,
      "forks": ["b"], "spawns": ["c", {"children": ["d"], "join_at": 2}], "delay": 500}]}

After a turn has ended, its `forks` begin with the whole conversation up to its answer, its `spawns`
begin afresh. `join_at` is the index (from 0) of the turn of the parent that waits for the children.
A turn's messages are what it adds; delays are milliseconds. Sessions that nobody forks or spawns
are the roots. Texts become words of the same length, as in `kvbench.workload.transcripts`.

The whole graph is read before the first turn is made: children may stand anywhere in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from kvbench.errors import InputError
from kvbench.workload.context import merged
from kvbench.workload.drafts import Draft
from kvbench.workload.plan import Message, Segment
from kvbench.workload.trace_lines import records
from kvbench.workload.transcripts import ChatMessage, Texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.workload.reading import Reading

_HINT = 'expected AIPerf\'s DAG: {"session_id": "…", "turns": [{"messages": […], "forks": […]}]}'

_Index = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Spawn(msgspec.Struct, frozen=True, kw_only=True):
    """Children that a turn starts, and the turn that waits for them."""

    children: list[str]
    join_at: _Index | None = None


class DagTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a session of the graph; further keys are passed over."""

    messages: list[ChatMessage]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    forks: list[str] = []
    spawns: list[str | Spawn] = []
    delay: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


class DagSession(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    session_id: str
    turns: Annotated[list[DagTurn], msgspec.Meta(min_length=1)]


def draft_dag(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of a graph, each behind what it waits for.

    Raises:
        InputError: The file cannot be read, names a session that is not there, or goes in circles.
    """
    lines: dict[str, int] = {}
    sessions: dict[str, DagSession] = {}
    for number, session in records(reading.path, DagSession, _HINT):
        if session.session_id in sessions:
            raise InputError(
                f"session_id: expected once, got {session.session_id!r} twice",
                where=f"{reading.path}:{number}",
                hint=_HINT,
            )
        sessions[session.session_id], lines[session.session_id] = session, number
    reading.note("read as AIPerf's DAG: a turn's messages are what is new, delays in ms")
    graph = _Graph(reading, sessions, lines)
    children = {child for session in sessions.values() for child, _, _ in _started(session)}
    roots = [name for name in sessions if name not in children]
    if not roots:
        raise InputError(
            "expected a session that no other starts, got none", where=str(reading.path), hint=_HINT
        )
    for name, start in zip(roots, reading.starts(), strict=False):
        graph.draft(name, start, (), ())
    yield from graph.drafts


def _started(session: DagSession) -> Iterator[tuple[str, int, int | None]]:
    """Yield child, turn after which it begins, and turn that waits for it."""
    for number, turn in enumerate(session.turns):
        yield from ((child, number, None) for child in turn.forks)
        for spawn in turn.spawns:
            if isinstance(spawn, str):
                yield spawn, number, None
            else:
                yield from ((child, number, spawn.join_at) for child in spawn.children)


class _Graph:
    """The drafts of a graph."""

    def __init__(
        self, reading: Reading, sessions: dict[str, DagSession], lines: dict[str, int]
    ) -> None:
        self._reading = reading
        self._sessions = sessions
        self._lines = lines
        self._texts = Texts(reading)
        self._begun: set[str] = set()
        self.drafts: list[Draft] = []

    def draft(
        self, name: str, at: float | None, after: tuple[int, ...], said: tuple[Message, ...]
    ) -> None:
        """Draft a session and all that it starts.

        A child's turns are drafted when the parent's next turn is, so all that waits stands behind.
        """
        session = self._sessions[name]
        self._begun.add(name)
        joins: dict[int, list[int]] = {}
        for number, turn in enumerate(session.turns):
            position = self._turn(name, number, said, at=at, after=(*after, *joins.pop(number, ())))
            at, after = None, ()
            asked, answer = self.drafts[-1], self.drafts[-1].max_tokens
            reply = Message("assistant", (Segment(asked.answer_key, answer),))
            said = (*asked.messages, reply)
            for child, begun, join in _started(session):
                if begun != number:
                    continue
                self._check(child, name)
                self.draft(child, None, (position,), said if child in turn.forks else ())
                if join is not None:
                    self._check_join(name, number, join)
                    joins.setdefault(join, []).append(self._last(child))

    def _turn(
        self,
        name: str,
        number: int,
        said: tuple[Message, ...],
        *,
        at: float | None,
        after: tuple[int, ...],
    ) -> int:
        """Draft one turn; return its position."""
        turn = self._sessions[name].turns[number]
        new = [m for one in turn.messages if (m := self._texts.message(one.role, one.text))]
        messages = merged([*said, *new])
        if not messages:
            raise self._wrong(name, f"turns[{number}].messages: expected a text, got none")
        self.drafts.append(
            Draft(
                session=name,
                messages=messages,
                max_tokens=turn.max_tokens or self._reading.options.answer_tokens,
                answer_key=f"answer/{name}/{number}",
                group=messages[0].segments[0].key,
                at=at,
                think=0.0 if at is not None else turn.delay / self._reading.second,
                after=after,
            )
        )
        return len(self.drafts) - 1

    def _last(self, session: str) -> int:
        """Return the position of a session's last turn."""
        return max(i for i, draft in enumerate(self.drafts) if draft.session == session)

    def _check(self, child: str, parent: str) -> None:
        """Raise InputError where a child is not there, or has begun already."""
        if child not in self._sessions:
            raise self._wrong(parent, f"expected a session {child!r}, got none")
        if child in self._begun:
            raise self._wrong(parent, f"expected {child!r} to be started once, got twice")

    def _check_join(self, name: str, number: int, join: int) -> None:
        """Raise InputError where a join is no later turn of the parent."""
        turns = len(self._sessions[name].turns)
        if not number < join < turns:
            raise self._wrong(
                name,
                f"turns[{number}].spawns: expected join_at in {number + 1}…{turns - 1}, got {join}",
            )

    def _wrong(self, session: str, message: str) -> InputError:
        """Return an error about the line of a session."""
        where = f"{self._reading.path}:{self._lines[session]}"
        return InputError(message, where=where, hint=_HINT)
