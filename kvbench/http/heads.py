"""Requests' heads, understood once: clients send the same ones again and again.

A head is kept under its own bytes, the digits of its length left out, so that a client that asks
anew with another body is known. Only heads that a parser has accepted, in one piece, are kept, line
for line what it read and nothing before; only those whose body has a plain length or that have
none; at most a thousand of two kilobytes of each kind, then all are dropped and learned anew.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

Header = tuple[bytes, bytes]

LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n")
_OTHERWISE: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
_MOST_HEADS: Final = 1024
_MOST_BYTES: Final = 2048
_MOST_DIGITS: Final = 15
_ZERO: Final = 48  # the digit


class Head:
    """What stands before a body.

    Attributes:
        method: "GET", "POST", …
        target: As sent: path and query.
        path: The decoded path, without the query.
        query: What follows the question mark, as sent.
        headers: In the order of arrival; names in lower case. Shared by all requests with this
            head, whatever their `content-length`.
        keep_alive: Whether the client will take another answer over this connection.
        http_1_0: Whether the client speaks HTTP/1.0, which knows no chunks.
        named: The first value of each header, by name.
    """

    __slots__ = (
        "headers", "http_1_0", "keep_alive", "method", "named", "path", "query", "target",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: list[Header],
        *,
        keep_alive: bool = True,
        http_1_0: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.named = dict(reversed(headers))
        text = target.decode("latin-1")
        if not text.startswith("/") and "://" in text:  # the form that a forward proxy is sent
            text = "/" + text.split("://", 1)[1].partition("/")[2]
        path, _, self.query = text.partition("?")
        self.path = unquote(path) if "%" in path else path


class KnownHeads:
    """The heads that a server has seen, those of bodies with a length apart from all others."""

    __slots__ = ("_bare", "_counted")

    def __init__(self) -> None:
        self._bare: dict[bytes, Head] = {}
        self._counted: dict[bytes, Head] = {}

    def get(self, key: bytes, length: int) -> Head | None:
        """Return the head of that key, if it is known; `length` is its body's, -1 for none."""
        return (self._bare if length < 0 else self._counted).get(key)

    def learn(self, key: bytes, head: Head, length: int) -> None:
        """Keep a head whose body has `length` bytes, unless something else says where it ends.

        The key may begin with an empty line, or hold another head where lines end otherwise: it is
        the head's if it has its first line, and as many lines.
        """
        counted = b"content-length" in head.named
        if counted != (length >= 0) or not _OTHERWISE.isdisjoint(head.named):
            return
        first = b"%b %b " % (head.method.encode("latin-1"), head.target)
        if not key.startswith(first) or key.count(b"\n") != len(head.headers) + 2:
            return
        heads = self._counted if counted else self._bare
        if len(heads) >= _MOST_HEADS:
            heads.clear()
        heads[key] = head


class Form:
    """A head with a blank for the digits of its body's length.

    Whoever sends one head commonly sends it again with other digits. That is seen at once, without
    looking for its end and for its length.
    """

    __slots__ = ("_before", "_behind")

    def __init__(self, before: bytes = b"", behind: bytes = b"") -> None:
        self._before = before
        self._behind = behind

    @property
    def key(self) -> bytes:
        """The head without the digits."""
        return self._before + self._behind

    def read(self, data: bytes) -> tuple[int, int]:
        """Return the length that stands in the form with which `data` begins, and the form's end.

        The end is 0 where it does not begin so, or the form has no blank.
        """
        start = len(self._before)
        if not self._behind or data[:start] != self._before:
            return -1, 0
        length, last = 0, min(start + _MOST_DIGITS, len(data))
        for at in range(start, last):
            digit = data[at] - _ZERO
            if digit < 0 or digit > 9:
                break
            length = 10 * length + digit
        else:
            at = last
        end = at + len(self._behind)
        return (length, end) if at > start and data[at:end] == self._behind else (-1, 0)


def split(data: bytes) -> tuple[Form, int, int] | None:
    """Return the form of the head that `data` begins with, the body's length, and the head's end.

    The length is -1 where the head has none that is plain; None where the head is not complete.
    """
    end = data.find(b"\r\n\r\n", 0, _MOST_BYTES) + 4
    if end < 4:
        return None
    found = LENGTH.search(data, 0, end)
    if found is None:
        return Form(data[:end]), -1, end
    first, last = found.span(1)
    return Form(data[:first], data[last:end]), int(found[1]), end
