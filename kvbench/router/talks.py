"""Conversations that begin as earlier ones did, byte for byte: only what is new of them is decoded.

To decode the 240 kB of a long conversation takes 130 µs and more, and as long again to make of it
what its template is handed. To know its bytes again takes 20.

Theory. As `kvbench.router.chats` does, whose theory this is: a body is cut into stretches of 8 KiB,
and what is known are starts, each a stretch and the start before it. Of a start it is known up to
where its messages are whole, and what these say. The rest of a body, behind the *head* that stands
before its messages, is again a body, whose messages follow those that are known; with one of ours
as its first, which must be found there, for a rest may have a second list of messages, which would
count alone.

Rules:

- A body says the same as it would alone, or is as little understood. What messages mean must not
  depend on those behind them: where it may, no start ends there (`Talk.spoken`).
- A start is found by a digest of 128 bits of all that is in it: the bytes are not kept.
- A stretch is learned when it comes for the second time, so what comes once costs a digest.
- Room is bounded: starts go in two generations, and those not used in the younger are dropped.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from kvbench.router.conversations import Chat, Messages
from kvbench.router.inputs import Responses
from kvbench.text.conversation import Spoken
from kvbench.text.digest import SECRET, digest

Talk: TypeAlias = Chat | Messages | Responses
"""The body of a conversation, in whichever API's form."""

_STRETCH: Final = 8192
_MOST_STRETCHES: Final = 64  # of a body
_MOST_KNOWN: Final = 1024  # starts in a generation: two of them take 40 MB
_MOST_SEEN: Final = 16_384
_MOST_TRIED: Final = 262_144  # bytes that are read in vain for a stretch, and the last time more
_TRY: Final = 1024  # bytes that could be read while a place is looked for
_OURS: Final = secrets.token_hex()
_MESSAGE: Final = msgspec.json.encode({"role": "user", "content": _OURS})
_KINDS: Final[tuple[type[Talk], ...]] = (Chat, Messages, Responses)
_FORMS: Final = tuple(map(msgspec.json.Decoder, _KINDS))
_NOT_KNOWN: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _Array(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()


class _Input(_Array):
    messages: msgspec.Raw = msgspec.field(name="input", default=msgspec.Raw())


_ARRAYS: Final[tuple[type[_Array], ...]] = (_Array, _Array, _Input)


@dataclass(slots=True)
class Start:
    """What bodies begin with: so many whole stretches, the same in all of them.

    Attributes:
        before: The start that is a stretch shorter, None before the first.
        at: Bytes of the body that are done with: the next is a message, or the first of all.
        head: What to put before the rest of a body.
        count: How many messages are done with.
        spoken: What those say that the start before does not have; None: it has all.
        all: What all of them say; None: no conversation is known just so far.
    """

    before: Start | None
    at: int
    head: bytes
    count: int
    spoken: Spoken | None
    all: Spoken | None = None


_NOTHING: Final = Start(None, 0, b"", 0, None)


class KnownTalks:
    """The starts of bodies that are known.

    Args:
        stretch: Bytes of a stretch.
        most: Most starts in a generation.
    """

    def __init__(self, stretch: int = _STRETCH, most: int = _MOST_KNOWN) -> None:
        self._stretch = stretch
        self._most = most
        self._younger: dict[int, Start] = {}
        self._older: dict[int, Start] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """How many starts are known."""
        return len(self._younger) + len(self._older)

    def read(self, kind: int, body: bytes) -> tuple[Talk, list[Spoken], int]:
        """Return what a body says.

        Args:
            kind: Which API's form it has: 0 for chats, 1 for messages, 2 for responses.
            body: The body.

        Returns:
            What is new of it; what was said before that; and how many of its bytes that takes.

        Raises:
            MsgspecError, UnicodeError, RecursionError: It is not understood.
        """
        if not self._stretch <= len(body) <= _MOST_STRETCHES * self._stretch:
            return _FORMS[kind].decode(body), [], 0
        start, mark, end = self.find(kind, body)
        talk = None
        if start.at:
            talk = _read_on(kind, start, body[start.at :])
        if talk is None:
            start, talk = _NOTHING, _FORMS[kind].decode(body)
        if end <= len(body):
            self._learn(kind, body, start, (mark, end), start.count + talk.length)
        return talk, _said(start), start.at

    def find(self, kind: int, body: bytes) -> tuple[Start, int, int]:
        """Return the longest start of a body that is known.

        Returns:
            The start; the digest of what the next stretch makes of it; where that stretch ends,
            behind the body if there is none.
        """
        step, length, view = self._stretch, len(body), memoryview(body)
        younger, older = self._younger, self._older
        start, mark, end = _NOTHING, SECRET ^ kind, step
        while end <= length:
            mark = digest(view[end - step : end], mark)
            known = younger.get(mark)
            if known is None:
                known = older.get(mark)
                if known is None:
                    break
                self._keep(mark, known)
                younger = self._younger
            start = known
            end += step
        return start, mark, end

    def _learn(
        self, kind: int, body: bytes, start: Start, stretch: tuple[int, int], total: int
    ) -> None:
        """Learn what a body has beyond a start, as far as that came before.

        Args:
            kind: The body's form.
            body: The body.
            start: What was known of it.
            stretch: Digest of the first stretch that is not known, and where that ends.
            total: How many messages it has.
        """
        mark, end = stretch
        step, view, made, last = self._stretch, memoryview(body), list[tuple[int, Start]](), start
        while mark in self._seen:
            last = _start(kind, body[:end], last, total)
            made.append((mark, last))
            end += step
            if end > len(body):
                break
            mark = digest(view[end - step : end], mark)
        if made and last.at:
            rest = _read_on(kind, last, body[last.at :])
            if rest is None or last.count + rest.length != total:
                return
        for name, known in made:
            self._keep(name, known)
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        while end <= len(body):
            self._seen.add(mark)
            end += step
            mark = digest(view[end - step : end], mark)

    def _keep(self, mark: int, start: Start) -> None:
        """Keep a start in the younger generation."""
        if len(self._younger) >= self._most:
            self._older, self._younger = self._younger, {}
        self._younger[mark] = start


def _said(start: Start) -> list[Spoken]:
    """Return what the messages of a start say, in one.

    That goes with the conversation: the start up to which it was known before has it no more.
    """
    if start.all is None:
        said, one = list[Spoken](), start if start.at else None
        while one is not None:
            some, one.all = one.all, None
            if some is not None:
                said.append(some)
                break
            if one.spoken is not None:
                said.append(one.spoken)
            one = one.before
        if not said:
            return []
        said.reverse()
        start.all = Spoken.joined(said)
    return [start.all]


def _start(kind: int, body: bytes, before: Start, total: int) -> Start:
    """Return the start that is these bytes: with more messages than the one before, if it has.

    Of the `total` of the body there is one behind it: what goes on elsewhere is no message.
    """
    known = None if before is _NOTHING else before
    end, tried = len(body), 0
    while tried < _MOST_TRIED:
        at = body.rfind(b'{"', before.at + 1, end)
        comma = body.rfind(b",", before.at, max(at, 0))
        if comma < 0:
            break
        talk, tried = None, tried + _TRY
        if not body[comma + 1 : at].strip(b" \t\r\n"):
            new = body[before.at : comma] + b"]}"
            tried += len(before.head) + len(new)
            talk = _read_on(kind, before, new) if before.at else _read(kind, new)
        if talk is not None and 0 < talk.length < total - before.count:
            head, spoken = before.head or _head(kind, new), _spoken(talk)
            if head and spoken is not None:
                return Start(known, at, head, before.count + talk.length, spoken)
        end = at
    return Start(known, before.at, before.head, before.count, None)


def _spoken(talk: Talk) -> Spoken | None:
    """Return what is said, whatever stands around it; None: that decides."""
    try:
        return talk.spoken()
    except _NOT_KNOWN:
        return None


def _head(kind: int, body: bytes) -> bytes:
    """Return what to put before the rest of a body; empty if it does not end with its messages."""
    try:
        array = bytes(msgspec.json.decode(body, type=_ARRAYS[kind]).messages)
    except _NOT_KNOWN:
        return b""
    if not array.startswith(b"[") or not body.endswith(array + b"}"):
        return b""
    return body[: -len(array)] + _MESSAGE + b","


def _read(kind: int, body: bytes) -> Talk | None:
    """Return what a body says; None if it is not understood."""
    try:
        return _FORMS[kind].decode(body)
    except _NOT_KNOWN:
        return None


def _read_on(kind: int, start: Start, rest: bytes) -> Talk | None:
    """Return what the rest of a body says; None if it does not go on with messages."""
    talk = _read(kind, start.head + rest)
    try:
        return talk if talk is not None and talk.unmark(_OURS) else None
    except _NOT_KNOWN:
        return None
