"""Chats that begin as earlier ones did, byte for byte: only what is new of them is read.

A conversation's next turn repeats all that was said, and most chats share a system prompt. Reading
128 kB of JSON takes 200 µs, telling that they are the bytes of before 15.

Theory. A body is cut into stretches of 8 KiB. What is known are starts: one stretch each, and the
start before it, so they are a tree; a digest finds them, and the bytes themselves are compared. Of
each start it is known up to where its messages are whole, and what there was in that part: the
fields before `messages`, as JSON, and the chain keys. The rest of a body, with these fields put
before it, is again a chat, and its messages follow those that are known. Tools and what is said to
the system apart come first in a prompt, and may come last in a body: where they are others than
those that a start was learned with, the body is read whole.

That the bytes behind the whole messages go on in the same array is proven when a start is learned,
from a whole body of n messages. What stands before, closed with `]}`, is a chat of k messages, so
an array is open that is the value of a field. The rest, with the fields before it, is a chat of
n - k. Were the open array another than `messages`, the rest would begin with elements of it, and
there would be more than n in all. A rest may have a second `messages`, which would count alone: so
the first of its messages is put there by us, with a role that nobody can guess, and must be found.

Rules:

- A body reads the same as it would alone (`kvbench.router.keys.read_prompt`), or fails the same.
- A stretch is learned when it comes for the second time, so what comes once costs a digest.
- Room is bounded: starts go in two generations, and those not used in the younger are dropped.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from xxhash import xxh3_64_intdigest

from kvbench.router.keys import (
    PIECE,
    BodyError,
    canonical,
    chain,
    check_text,
    opening,
    plain_prompt,
    read_any,
    read_chat,
    read_prompt,
)
from kvbench.router.shapes import Opening, Start

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.router.keys import Prompt
    from kvbench.router.shapes import Agents, Beside, Plain

_STRETCH: Final = 8192
_MOST_STRETCHES: Final = 64  # of a body: what is longer is looked at first (`crowded`)
_MOST_KNOWN: Final = 1536  # starts in a generation: two of them take 30 MB
_MOST_SEEN: Final = 16_384
_NO_RAW: Final = msgspec.Raw()
_NOTHING: Final = Start(b"", None, 0, b"", _NO_RAW, _NO_RAW, 0, Opening([], 0, b""), [], 0, b"", 0)
_OURS: Final = secrets.token_hex()  # the role of a message that is ours
Digest: TypeAlias = "Callable[[memoryview, int], int]"


class KnownChats:
    """The starts of bodies that are known.

    Args:
        stretch: Bytes of a stretch.
        most: Most starts in a generation.
        digest: Of a stretch, given that of what stands before it.
    """

    def __init__(
        self, stretch: int = _STRETCH, most: int = _MOST_KNOWN, digest: Digest = xxh3_64_intdigest
    ) -> None:
        self._digest = digest
        self._stretch = stretch
        self._most = most
        self._younger: dict[int, Start] = {}
        self._older: dict[int, Start] = {}
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """How many starts are known."""
        return len(self._younger) + len(self._older)

    def read(self, body: bytes) -> Prompt:
        """Return what the body of a request says that matters for routing.

        Raises:
            BodyError: It is no JSON object, or not UTF-8.
        """
        if not self._stretch <= len(body) <= _MOST_STRETCHES * self._stretch:
            check_text(body)
            return read_prompt(body)
        start, mark, end = self.find(body)
        rest = body[start.at :]
        try:
            check_text(rest)
        except BodyError:
            check_text(body)  # which says where in the body
        plain = _read_on(start, rest)
        if plain is None:  # alone, it is no such chat; with a start that is known, it may be
            return read_prompt(body) if start.at else read_any(body)
        try:
            first = opening(plain)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return read_any(body)
        if start.at and first != start.opening:
            return read_prompt(body)
        if end <= len(body):
            self._learn(body, plain, start, (mark, end), first)
        keys, text = _go_on(start, plain, first)
        size = len(first.keys) * PIECE + start.size + len(text) - len(start.text)
        known: Start | None = start
        while known is not None:
            keys[:0] = known.keys
            known = known.before
        return plain_prompt(plain, (*first.keys, *keys), size)

    def find(self, body: bytes) -> tuple[Start, int, int]:
        """Return the longest start of a body that is known.

        Returns:
            The start; the digest of what the next stretch makes of it; where that stretch ends,
            behind the body if there is none.
        """
        step, length, view = self._stretch, len(body), memoryview(body)
        start, mark, end = _NOTHING, 0, step
        while end <= length:
            mark = self._digest(view[end - step : end], mark)
            known = self._younger.get(mark) or self._older.get(mark)
            before = None if start is _NOTHING else start
            if (
                known is None
                or known.before is not before
                or not body.startswith(known.raw, end - step)
            ):
                break
            if mark not in self._younger:
                self._keep(mark, known)
            start = known
            end += step
        return start, mark, end

    def _learn(
        self,
        body: bytes,
        plain: Plain | Agents,
        start: Start,
        stretch: tuple[int, int],
        first: Opening,
    ) -> None:
        """Learn what a body has beyond a start, as far as that came before.

        Args:
            body: The body.
            plain: Its rest.
            start: What was known of it.
            stretch: Digest of the first stretch that is not known, and where that ends.
            first: What stands before its messages.
        """
        mark, end = stretch
        step, view, made, last = self._stretch, memoryview(body), list[tuple[int, Start]](), start
        total = start.messages + len(plain.messages)
        while mark in self._seen:
            last = _start(body[:end], last, step, first, total)
            made.append((mark, last))
            end += step
            if end > len(body):
                break
            mark = self._digest(view[end - step : end], mark)
        if made:
            rest = _read_on(last, body[last.at :])
            if rest is None or last.messages + len(rest.messages) != total:
                return
            for known in made:
                self._keep(*known)
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        while end <= len(body):
            self._seen.add(mark)
            end += step
            mark = self._digest(view[end - step : end], mark)

    def _keep(self, mark: int, start: Start) -> None:
        """Keep a start in the younger generation."""
        if len(self._younger) >= self._most:
            self._older, self._younger = self._younger, {}
        self._younger[mark] = start


def _start(body: bytes, before: Start, step: int, first: Opening, total: int) -> Start:
    """Return the start that is these bytes: with more messages than the one before, if it has.

    Of the `total` of the chat there is one behind it: what goes on elsewhere is no message.
    """
    raw = body[-step:]
    known = None if before is _NOTHING else before
    at = body.rfind(b'{"', before.at + 1)
    comma = body.rfind(b",", before.at, max(at, 0))
    if comma > 0 and not body[comma + 1 : at].strip(b" \t\r\n"):
        plain = _read_on(before, body[before.at : comma] + b"]}")
        if plain is not None and before.messages + len(plain.messages) < total:
            keys, text = _go_on(before, plain, first)
            return Start(
                raw=raw,
                before=known,
                at=at,
                lead=_lead(plain),
                tools=before.tools if before.tools == plain.tools else plain.tools.copy(),
                system=before.system if before.system == plain.system else plain.system.copy(),
                messages=before.messages + len(plain.messages),
                opening=first,
                keys=keys,
                key=keys[-1] if keys else before.key if before.at else first.key,
                text=text[len(keys) * PIECE :],
                size=before.size + len(text) - len(before.text),
            )
    return msgspec.structs.replace(before, raw=raw, before=known, keys=[])


def _read_on(start: Start, rest: bytes) -> Plain | Agents | None:
    """Return what a body says whose start is known, with the messages of its rest.

    None if it is no chat of roles and texts, or has other messages instead of those of its start.
    """
    try:
        plain = read_chat(_led(start) + rest if start.at else rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if start.at and (not plain.messages or plain.messages.pop(0).role != _OURS):
        return None
    return plain


def _led(start: Start) -> bytes:
    """Return what to put before the rest of a body, so that it is JSON which says the same."""
    lead = start.lead
    if start.system:
        lead = b'{"system":%b,%b' % (start.system, lead[1:])
    if start.tools:
        lead = b'{"tools":%b,%b' % (start.tools, lead[1:])
    return lead


def _go_on(start: Start, plain: Plain | Agents, first: Opening) -> tuple[list[int], bytes]:
    """Return the keys of the pieces that end in the messages behind a start, and their text.

    The text begins with what was left of the start's.
    """
    before, key = (start.text, start.key) if start.at else (first.tail, first.key)
    text = before + canonical(plain)
    return chain(text, key), text


def _lead(plain: Beside) -> bytes:
    """Return the beginning of a chat that says the same of everything but messages."""
    fields = msgspec.structs.asdict(plain)
    for name in ("messages", "tools", "system"):
        del fields[name]
    ours = msgspec.json.encode({"role": _OURS, "content": ""})
    return msgspec.json.encode(fields)[:-1] + b',"messages":[' + ours + b","
