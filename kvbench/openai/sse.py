"""Server-sent events, without a socket: bytes in, events out, and back.

Owns: the event-stream format of the HTML standard (https://html.spec.whatwg.org/multipage/
server-sent-events.html). Any division of the bytes into reads gives the same events.

Rules: lines end in LF, CRLF or CR; one space after the colon belongs to the format; several `data`
lines are one event, joined by LF; comments (lines that begin with a colon, sent to keep
connections alive) and fields that are not `data` or `event` mean nothing here; an event that the
stream does not finish with an empty line never happened; a byte-order mark is skipped.

Refuses: to buffer without bound. An event of more than `max_event` bytes ends the reading.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"

MAX_EVENT = 8 * 2**20
"""Bytes of one event that a reader buffers by default."""


class EventTooLargeError(ValueError):
    """An event is larger than the reader will buffer."""


class Event(NamedTuple):
    """One event.

    Attributes:
        data: Its payload.
        name: Its kind; empty for the ordinary "message".
    """

    data: bytes
    name: bytes = b""


class EventReader:
    """Takes a stream apart, read by read."""

    __slots__ = ("_begun", "_data", "_max_event", "_name", "_size", "_skip_lf", "_tail")

    def __init__(self, *, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._tail = bytearray()  # a line that has not ended
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._size = 0  # of these lines
        self._name = b""
        self._skip_lf = False  # the last read ended in CR: an LF would be its other half
        self._begun = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes.

        Raises:
            EventTooLargeError: An event exceeds the bound; the reader is of no use any more.
        """
        lines = self._lines(data)
        events: list[Event] = []
        for line in lines:
            if line:
                self._field(line)
            else:
                if self._data:
                    events.append(Event(b"\n".join(self._data), self._name))
                    self._data = []
                    self._size = 0
                self._name = b""
        if len(self._tail) + self._size > self._max_event:
            raise EventTooLargeError(f"expected events of at most {self._max_event} bytes")
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends."""
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == 10:
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._tail += data
        if b"\n" not in data:
            return []
        lines = bytes(self._tail).split(b"\n")
        self._tail = bytearray(lines.pop())
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _field(self, line: bytes) -> None:
        """Take one line of an event."""
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._name = value.removeprefix(b" ")


def encode(data: bytes, name: bytes = b"") -> bytes:
    """Return the bytes of one event; a payload with line feeds takes several lines."""
    head = b"event: " + name + b"\n" if name else b""
    return head + b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""The event that ends an OpenAI stream."""
