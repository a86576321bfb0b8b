"""Traces of texts: ShareGPT, OpenAI message lists, AIPerf's multi-turn lines.

    [{"id": "x", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}]
    {"messages": [{"role": "user", "content": "…"}, …], "max_tokens": 64}
    {"session_id": "s1", "turns": [{"text": "hi", "delay": 1000, "output_length": 50}, …]}

The texts themselves are not sent. Each is counted with a tokenizer and replaced by words of exactly
as many tokens, in pieces named by what the text says up to there, so texts that begin alike still
begin alike, to within a piece. Nothing private leaves the file, and every length is exact.

A conversation (ShareGPT; a message list that ends with an answer) becomes a session with one turn
for each answer, which asks for as many tokens as it had. A message list that ends with a question
is one request. System and developer messages are the system's; what tools return, the user says.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from kvbench.errors import InputError
from kvbench.workload.context import merged
from kvbench.workload.drafts import Draft
from kvbench.workload.plan import Message, Role, Segment
from kvbench.workload.trace_lines import records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvbench.workload.reading import Reading

PIECES = (16,) * 16 + (64,)
"""Tokens of the first pieces of a text; the last length holds for all that follow."""

_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "tool": "user",
    "function": "user", "observation": "user", "assistant": "assistant", "gpt": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "function_call": "assistant",
}  # fmt: skip

_SHARE_GPT = 'expected ShareGPT: [{"conversations": [{"from": "human", "value": "…"}, …]}, …]'
_MESSAGES = 'expected message lists: {"messages": [{"role": "user", "content": "…"}, …]}'
_AIPERF = 'expected AIPerf\'s lines: {"session_id": "…", "turns": [{"text": "…"}, …]}'

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class _Part(msgspec.Struct, frozen=True):
    """A part of a content; only its text is kept."""

    text: str = ""


Content: TypeAlias = str | list[_Part] | None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as OpenAI's API has it."""

    role: str
    content: Content = None
    tool_calls: list[object] | None = None

    @property
    def text(self) -> str:
        """Its text: the parts of the content, and the tool calls as JSON."""
        parts = self.content if isinstance(self.content, list) else []
        text = self.content if isinstance(self.content, str) else "".join(p.text for p in parts)
        calls = json.dumps(self.tool_calls) if self.tool_calls else ""
        return text + calls


class _ShareGptTurn(msgspec.Struct, frozen=True):
    """What somebody said."""

    who: str = msgspec.field(name="from")
    value: str | None = None


class _ShareGpt(msgspec.Struct, frozen=True):
    """One conversation of ShareGPT."""

    conversations: list[_ShareGptTurn]


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request to OpenAI's API."""

    messages: list[ChatMessage]
    max_tokens: _Length | None = None
    max_completion_tokens: _Length | None = None


class _MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """One message list, by itself or as the body of a batch file's line."""

    messages: list[ChatMessage] = []
    body: _Body | None = None  # as a batch file has it
    max_tokens: _Length | None = None
    max_completion_tokens: _Length | None = None
    timestamp: _Milliseconds | None = None


class _AiperfTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of AIPerf: what is new in it."""

    text: str | None = None
    texts: list[str] = []
    delay: _Milliseconds = 0.0
    timestamp: _Milliseconds | None = None
    output_length: _Length | None = None
    role: str = "user"


class _AiperfSession(msgspec.Struct, frozen=True, kw_only=True):
    """One line of AIPerf."""

    turns: Annotated[list[_AiperfTurn], msgspec.Meta(min_length=1)]
    session_id: str | int | None = None


class Texts:
    """Turns texts into segments."""

    def __init__(self, reading: Reading) -> None:
        self._tokenizer = reading.tokenizer
        self._known: dict[str, Segment] = {}

    def segments(self, text: str) -> tuple[Segment, ...]:
        """Return what stands for a text: as many tokens, equal where it begins like another."""
        ids = self._tokenizer.encode(text)
        digest, place = hashlib.sha256(), 0
        found: list[Segment] = []
        while place < len(ids):
            length = PIECES[min(len(found), len(PIECES) - 1)]
            piece = ids[place : place + length]
            digest.update(",".join(map(str, piece)).encode() + b";")
            key = f"text/{digest.hexdigest()[:20]}"
            segment = Segment(key, len(piece))
            found.append(self._known.setdefault(key, segment))
            place += length
        return tuple(found)

    def message(self, role: str, text: str) -> Message | None:
        """Return a message; None where there is no text. An unknown role is the user's."""
        segments = self.segments(text)
        return Message(_ROLES.get(role, "user"), segments) if segments else None


def draft_share_gpt(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of ShareGPT's conversations.

    Raises:
        InputError: The file cannot be read, or an item is no conversation.
    """
    texts = Texts(reading)
    reading.note("read as ShareGPT: a session of several turns for each conversation")
    starts, position = reading.starts(), 0
    for _, item in records(reading.path, _ShareGpt, _SHARE_GPT):
        said = [texts.message(turn.who, turn.value or "") for turn in item.conversations]
        drafts = _conversation([m for m in said if m], f"s{position}", reading)
        for draft in _timed(drafts, starts, reading):
            if not reading.up_to_limit(position):
                return
            yield draft
            position += 1


def draft_messages(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of message lists, in lines or in an array.

    Raises:
        InputError: The file cannot be read, or an item is no message list.
    """
    texts = Texts(reading)
    reading.note(
        "read as message lists: one that ends with an answer is a conversation, one that ends with "
        "a question is a request"
    )
    position, first = 0, None
    starts: Iterator[float] | None = None
    for number, item in records(reading.path, _MessageList, _MESSAGES):
        body = item.body or _Body(messages=item.messages, max_tokens=item.max_tokens)
        said = [m for one in body.messages if (m := texts.message(one.role, one.text))]
        if not said:
            raise InputError(
                "messages: expected at least one with a text, got none",
                where=f"{reading.path}:{number}",
                hint=_MESSAGES,
            )
        wanted = body.max_tokens or body.max_completion_tokens or item.max_completion_tokens
        drafts = _conversation(said, f"s{position}", reading, wanted)
        if item.timestamp is None:
            starts = starts or reading.starts()
            begins: Iterator[float] = starts
        else:
            first = item.timestamp if first is None else first
            begins = iter([max(item.timestamp - first, 0.0) / reading.second])
        for draft in _timed(drafts, begins, reading):
            if not reading.up_to_limit(position):
                return
            yield draft
            position += 1


def draft_aiperf(reading: Reading) -> Iterator[Draft]:
    """Yield the turns of AIPerf's multi-turn sessions; times and delays are milliseconds.

    Raises:
        InputError: The file cannot be read, or a line is no session.
    """
    texts = Texts(reading)
    reading.note("read as AIPerf's sessions: a turn's text is what is new, times in ms")
    count, first = 0, None
    starts: Iterator[float] | None = None
    for number, item in records(reading.path, _AiperfSession, _AIPERF):
        session = f"s{number if item.session_id is None else item.session_id}"
        said: tuple[Message, ...] = ()
        for turn in item.turns:
            if not reading.up_to_limit(count):
                return
            new = texts.message(turn.role, turn.text or " ".join(turn.texts))
            if new is None:
                raise InputError(
                    "turns: expected a text, got none",
                    where=f"{reading.path}:{number}",
                    hint=_AIPERF,
                )
            at = None
            if turn.timestamp is not None:
                first = turn.timestamp if first is None else first
                at = max(turn.timestamp - first, 0.0) / reading.second
            elif not said:
                starts = starts or reading.starts()
                at = next(starts)
            said = merged([*said, new])
            draft = Draft(
                session=session,
                messages=said,
                max_tokens=turn.output_length or reading.options.answer_tokens,
                answer_key=f"answer/{session}/{count}",
                group=said[0].segments[0].key,
                at=at,
                think=0.0 if at is not None else turn.delay / reading.second,
            )
            yield draft
            count += 1
            said = (*said, Message("assistant", (Segment(draft.answer_key, draft.max_tokens),)))


def _conversation(
    said: Sequence[Message], session: str, reading: Reading, wanted: int | None = None
) -> list[Draft]:
    """Return a draft for each answer, and one for a question at the end that has none."""
    drafts = []
    asked = range(1, len(said) + 1)
    for end in asked:
        answered = end < len(said) and said[end].role == "assistant"
        if said[end - 1].role == "assistant" or not (answered or end == len(said)):
            continue
        answer = said[end].tokens if answered else wanted or reading.options.answer_tokens
        drafts.append(
            Draft(
                session=session,
                messages=merged(said[:end]),
                max_tokens=answer,
                answer_key=f"answer/{session}/{end}",
                group=said[0].segments[0].key,
                think=reading.options.think,
            )
        )
    return drafts


def _timed(drafts: list[Draft], starts: Iterator[float], reading: Reading) -> Iterator[Draft]:
    """Yield the drafts of a session; the first begins at the next start."""
    if not drafts:
        reading.note("conversations without a question are left out")
        return
    first, *rest = drafts
    yield replace(first, at=next(starts), think=0.0)
    yield from rest
