"""A plan as a file: what `kvbench import` writes of a trace, and `--trace` reads again.

One JSON object a line. The first says what the plan is; each other one is a turn, in order:

    {"kvbench": "plan", "version": 1, "name": "x", "seed": 0, "api": "chat", "history": "planned"}
    {"s": "s0", "g": "doc", "at": 0.0, "m": [["user", [["text/ab", 16]]]], "n": 64, "a": "answer/0"}
    {"s": "s0", "g": "doc", "think": 2.5, "keep": 1, "m": [["assistant", …], …], "n": 64, "a": "…"}

`keep` messages are those of the turn before it in its session, and `m` follow; `after` are the
numbers of the turns that a turn waits for, `r` its reasoning tokens, `c` the tokens of the whole
conversation. So the file of a long conversation grows with what is new in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from kvbench.errors import InputError
from kvbench.workload.drafts import Draft, assemble
from kvbench.workload.plan import Message, Plan, Segment
from kvbench.workload.trace_lines import lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kvbench.workload.plan import Role

T = TypeVar("T")

VERSION = 1

_HINT = "expected a plan file, as `kvbench import` writes it"

_Count = Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2_000_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Segment = tuple[str, _Tokens]
_Message = tuple[Literal["system", "user", "assistant"], list[_Segment]]


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    kvbench: Literal["plan"]
    version: int
    name: str
    seed: _Count = 0
    api: Literal["chat", "completions"] = "chat"
    history: Literal["planned", "answers"] = "planned"
    ids_block_size: _Tokens | None = None
    notes: list[str] = []


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn."""

    s: str
    g: str
    at: _Seconds | None = None
    think: _Seconds = 0.0
    after: list[_Count] = []
    keep: _Count = 0
    m: list[_Message]
    n: _Tokens
    a: str
    r: _Count = 0
    c: _Count = 0


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan.

    Raises:
        InputError: The file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    head = Head(
        kvbench="plan",
        version=VERSION,
        name=plan.name,
        seed=plan.seed,
        api=plan.api,
        history=plan.history,
        ids_block_size=plan.ids_block_size,
        notes=list(plan.notes),
    )
    try:
        with path.open("wb") as file:
            file.write(encoder.encode(head) + b"\n")
            for line in _written(plan):
                file.write(encoder.encode(line) + b"\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _written(plan: Plan) -> Iterator[Line]:
    """Yield the lines of a plan's turns."""
    before: dict[str, tuple[Message, ...]] = {}
    for turn in plan.turns:
        keep = _common(before.get(turn.session, ()), turn.messages)
        before[turn.session] = turn.messages
        yield Line(
            s=turn.session,
            g=turn.group,
            at=turn.at,
            think=turn.think,
            after=list(turn.after),
            keep=keep,
            m=[(m.role, [(s.key, s.tokens) for s in m.segments]) for m in turn.messages[keep:]],
            n=turn.max_tokens,
            a=turn.answer_key,
            r=turn.reasoning_tokens,
            c=turn.conversation_tokens,
        )


def _common(before: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return how many messages two prompts begin with together."""
    pairs = zip(before, messages, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(messages)))


def read_plan_file(path: Path, *, seed: int | None, limit: int | None) -> Plan:
    """Read a plan.

    Args:
        path: The file.
        seed: Root seed; None: the file's.
        limit: Read only so many turns.

    Raises:
        InputError: It cannot be read, or is no plan.
    """
    rows = lines(path, _HINT)
    number, first = next(rows, (1, b""))
    head = _decode(first, Head, f"{path}:{number}")
    if head.version != VERSION:
        raise InputError(
            f"version: expected {VERSION}, got {head.version}", where=f"{path}:1", hint=_HINT
        )
    return assemble(
        _drafts(path, rows, limit),
        name=head.name,
        seed=head.seed if seed is None else seed,
        api=head.api,
        history=head.history,
        ids_block_size=head.ids_block_size,
        notes=head.notes,
    )


def _drafts(path: Path, rows: Iterator[tuple[int, bytes]], limit: int | None) -> Iterator[Draft]:
    """Yield the drafts of the lines behind the head."""
    before: dict[str, tuple[Message, ...]] = {}
    known: dict[_Segment, Segment] = {}
    for count, (number, text) in enumerate(rows):
        if count == limit:
            return
        line = _decode(text, Line, f"{path}:{number}")
        kept = before.get(line.s, ())
        new = tuple(_message(role, segments, known) for role, segments in line.m)
        problem = None
        if line.keep > len(kept):
            problem = f"keep: expected at most {len(kept)}, got {line.keep}"
        elif not line.keep + len(new) or not all(message.segments for message in new):
            problem = "m: expected at least one token, got none"
        elif any(index >= count for index in line.after):
            problem = f"after: expected numbers below {count}, got {max(line.after)}"
        if problem:
            raise InputError(problem, where=f"{path}:{number}", hint=_HINT)
        before[line.s] = messages = kept[: line.keep] + new
        yield Draft(
            session=line.s,
            messages=messages,
            max_tokens=line.n,
            answer_key=line.a,
            group=line.g,
            at=line.at,
            think=line.think,
            after=tuple(line.after),
            reasoning_tokens=line.r,
            conversation_tokens=line.c,
        )


def _message(role: Role, segments: list[_Segment], known: dict[_Segment, Segment]) -> Message:
    """Return a message; equal segments are one object."""
    return Message(role, tuple(known.get(s) or known.setdefault(s, Segment(*s)) for s in segments))


def _decode(text: bytes, kind: type[T], where: str) -> T:
    """Return the value of a line."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(said(str(error)), where=where, hint=_HINT) from None
