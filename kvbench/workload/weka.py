"""Weka's traces of coding agents (kv-cache-tester): one JSON file a conversation, or a folder.

    {"id": "trace_0021", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 19.0, "type": "n", "in": 16249, "out": 496, "hash_ids": [1, 2, …], "api_time": 11.9,
       "think_time": 11.0}, …]}

As published: seconds; ids are local to the file; the last, partial block has no id (`floor`), so
its tokens are the request's own; a request holds its whole prompt. Requests follow each other: the
pause is `think_time`, or else what lies between the end of one and the beginning of the next.

A request of type `subagent` is a list of requests of its own: a session that begins after the
request before it. The next request of the parent that begins no earlier than the sub-agent ended
waits for it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from kvbench.errors import InputError
from kvbench.workload.drafts import Draft
from kvbench.workload.plan import Message, Segment
from kvbench.workload.trace_lines import MOST_RECORD, opened, said

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbench.workload.reading import Reading

_HINT = 'expected a conversation: {"id": …, "block_size": 64, "requests": [{"in": …, "out": …, …}]}'

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a conversation, or a sub-agent with requests of its own."""

    t: _Seconds = 0.0
    type: str = "n"
    prompt: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = msgspec.field(
        default=None, name="in"
    )
    out: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 1
    hash_ids: list[int] = []
    api_time: _Seconds | None = None
    think_time: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] | None = None
    agent_id: str | None = None
    duration_ms: _Seconds | None = None
    requests: list[Request] = []

    @property
    def end(self) -> float:
        """Seconds at which it had ended."""
        if self.type == "subagent":
            own = (self.duration_ms or 0.0) / 1000
            return self.t + max(own, max((r.end - self.t for r in self.requests), default=0.0))
        return self.t + (self.api_time or 0.0)


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    id: str
    requests: Annotated[list[Request], msgspec.Meta(min_length=1)]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    hash_id_scope: Literal["local", "global"] = "local"


def draft_weka(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of a conversation, or of all in a folder, one after the other.

    Raises:
        InputError: A file cannot be read, or is no such conversation.
    """
    folder = reading.path.is_dir()
    files = sorted(reading.path.glob("*.json")) if folder else [reading.path]
    if not files:
        raise InputError("expected .json files, got none", where=str(reading.path), hint=_HINT)
    starts = reading.starts() if folder else iter([0.0])
    position = 0
    for path, start in zip(files, starts, strict=False):
        if not reading.up_to_limit(position):
            return
        talk = _Talk(_read(path), path, reading, position)
        drafts = talk.draft(start)
        yield from drafts
        position += len(drafts)


def _read(path: Path) -> Conversation:
    """Return the conversation of a file."""
    with opened(path) as file:
        content = file.read(4 * MOST_RECORD)
    try:
        return msgspec.json.decode(content, type=Conversation)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(said(str(error)), where=str(path), hint=_HINT) from None


class _Talk:
    """The drafts of one conversation."""

    def __init__(self, talk: Conversation, path: Path, reading: Reading, first: int) -> None:
        options = reading.options
        self._talk = talk
        self._path = path
        self._first = first
        self._block = options.block_size or talk.block_size
        self._ceil = options.tail == "ceil"
        local = (options.ids or talk.hash_id_scope) == "local"
        self._scope = f"id/{talk.id}/" if local else "id/"
        self._drafts: list[Draft] = []
        reading.note(
            f"read as Weka: blocks of {self._block} tokens, {'local' if local else 'global'} ids, "
            f"last block {'with' if self._ceil else 'without'} an id, whole prompts"
        )

    def draft(self, start: float) -> list[Draft]:
        """Return the drafts, the first of them due at `start`."""
        self._run(self._talk.requests, self._talk.id, start, ())
        return self._drafts

    def _run(
        self, requests: list[Request], session: str, start: float | None, after: tuple[int, ...]
    ) -> None:
        """Draft the requests of the agent or of a sub-agent."""
        before: Request | None = None
        running: list[tuple[float, int]] = []  # ends of sub-agents, and their last drafts
        last = after
        agents = 0
        for i, request in enumerate(requests):
            if request.type == "subagent":
                agents += 1
                name = f"{session}.{request.agent_id or f'a{agents}'}"
                if request.requests:
                    self._run(request.requests, name, None if last else start, last)
                    running.append((request.end, self._position))
                continue
            ended = tuple(position for end, position in running if end <= request.t)
            running = [entry for entry in running if entry[0] > request.t]
            pause = _pause(before, request) if before else 0.0
            at = start if before is None and not last else None
            waits = (*(after if before is None else ()), *ended)
            self._drafts.append(self._one(request, session, i, at=at, pause=pause, after=waits))
            last, before = (self._position,), request

    @property
    def _position(self) -> int:
        """Position of the last draft in the plan."""
        return self._first + len(self._drafts) - 1

    def _one(
        self,
        request: Request,
        session: str,
        number: int,
        *,
        at: float | None,
        pause: float,
        after: tuple[int, ...],
    ) -> Draft:
        """Return the draft of one request."""
        segments = self._segments(request, f"{session}: requests[{number}]", session, number)
        return Draft(
            session=session,
            messages=(Message("user", segments),),
            max_tokens=max(request.out, 1),
            answer_key=f"answer/{session}/{number}",
            group=self._talk.id,
            at=at,
            think=pause,
            after=after,
        )

    def _segments(
        self, request: Request, what: str, session: str, number: int
    ) -> tuple[Segment, ...]:
        """Return what the ids of a request stand for."""
        tokens = request.prompt
        if tokens is None:
            raise InputError(f"{what}.in: missing", where=str(self._path), hint=_HINT)
        whole, part = divmod(tokens, self._block)
        expected = whole + bool(part and self._ceil)
        if len(request.hash_ids) != expected:
            raise InputError(
                f"{what}.hash_ids: expected {expected} ids for {tokens} tokens in blocks of "
                f"{self._block}, got {len(request.hash_ids)}",
                where=str(self._path),
                hint="is the block size right? --block-size and --tail say otherwise",
            )
        segments = [
            Segment(f"{self._scope}{i}", self._block) for i in islice(request.hash_ids, whole)
        ]
        if part:
            key = f"{self._scope}{request.hash_ids[-1]}" if self._ceil else f"{session}/{number}"
            segments.append(Segment(key if self._ceil else f"tail/{key}", part))
        return tuple(segments)


def _pause(before: Request, request: Request) -> float:
    """Return the seconds between the end of one request and the beginning of the next."""
    between = request.t - before.end if request.think_time is None else request.think_time
    return max(between, 0.0)
