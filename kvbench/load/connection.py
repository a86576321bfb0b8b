"""HTTP/1.1 on one wire: a request out, its response in, then the next.

Rules:

- One exchange at a time; no pipelining. Bytes that nobody asked for end the connection.
- A response without length and without chunks ends with the connection, as HTTP/1.0 has it. Every
  other response that ends so is cut.
- 1xx responses are read over. Everything else is the caller's to judge.
- A read that brings several chunks is one piece of body: what tells how late a read was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import httptools

from kvbench.load.wire import CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.clock import Clock
    from kvbench.load.reply import Reply
    from kvbench.load.wire import Wire, WireOwner
    from kvbench.records.schema import ErrorKind

MAX_HEAD_BYTES = 64 * 1024
"""Longest head of a response; a longer one breaks the protocol."""


class ConnectionOwner(Protocol):
    """Who is told how a connection fares: the pool."""

    def on_ready(self, connection: Connection) -> None:
        """Learn that a new connection stands and takes a request."""
        ...

    def on_over(self, connection: Connection, reply: Reply, *, reusable: bool) -> None:
        """Learn that `reply` is complete or has failed; `reusable`: it takes the next request."""
        ...

    def on_gone(self, connection: Connection, reason: str) -> None:
        """Learn that the connection is lost, with no byte of the awaited response, if any."""
        ...


class Connection:
    """One connection to the target.

    Args:
        open_wire: Opens the wire underneath.
        clock: The clock that arrivals are given in.
        owner: Who is told.
    """

    def __init__(
        self, open_wire: Callable[[WireOwner], Wire], clock: Clock, owner: ConnectionOwner
    ) -> None:
        self._clock = clock
        self._owner = owner
        self._reply: Reply | None = None
        self._head_bytes = 0
        self._sized = False
        self._complete = False
        self._reusable = False
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self.connected = False
        self.last_heard = clock.now()
        """When bytes last came, or the request went out, or the connection was begun."""
        self._wire = open_wire(self)

    @property
    def reply(self) -> Reply | None:
        """What is awaited on it."""
        return self._reply

    def send(self, request: bytes, reply: Reply) -> None:
        """Send a request at once, and fill `reply` with what comes back."""
        assert self._reply is None
        self._reply = reply
        self.last_heard = self._clock.now()
        if reply.sent is None:
            reply.sent = self.last_heard
        self._wire.send(request)

    def fail(self, kind: ErrorKind, message: str) -> None:
        """Give the connection up; what is awaited on it ends with this error."""
        self._wire.close()
        if self._reply is not None:
            self._reply.failure = (kind, message)
            self._end(self._clock.now(), reusable=False)

    def close(self) -> None:
        """Close an idle connection."""
        self._wire.close()

    def on_connected(self) -> None:
        """Hear from the wire that it stands."""
        self.connected = True
        self._owner.on_ready(self)

    def on_data(self, stamp: float, data: bytes) -> None:
        """Hear from the wire what came."""
        reply = self._reply
        self.last_heard = stamp
        if reply is None:
            self._wire.close()
            self._owner.on_gone(self, "the server sent what nobody asked for")
            return
        had_head = reply.headers_at is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail("protocol", f"not HTTP/1.1: {error}")
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self.fail("protocol", f"head of the response longer than {MAX_HEAD_BYTES} bytes")
            return
        if reply.status is not None and not had_head:
            reply.headers_at = stamp
        if self._pieces:
            reply.add(stamp, b"".join(self._pieces))
            self._pieces.clear()
        if self._complete:
            self._finish(stamp)

    def on_lost(self, reason: str) -> None:
        """Hear from the wire that it is gone."""
        reply = self._reply
        if reply is None or (reply.status is None and self._head_bytes == 0):
            self._reply = None
            self._owner.on_gone(self, reason)
        elif reply.status is not None and not self._sized and reason == CLOSED:
            self._end(self._clock.now(), reusable=False)
        else:
            self.fail("cut", f"{reason} in the middle of the response")

    def _finish(self, stamp: float) -> None:
        """End a complete response, ready for the next."""
        reusable = self._reusable and self._wire.flushed  # it may be answered before it is read
        self._complete = False
        self._sized = False
        self._head_bytes = 0
        if not reusable:
            self._wire.close()
        self._end(stamp, reusable=reusable)

    def _end(self, stamp: float, *, reusable: bool) -> None:
        """Hand over what was awaited."""
        reply, self._reply = self._reply, None
        assert reply is not None
        reply.end = stamp
        self._owner.on_over(self, reply, reusable=reusable)

    # What httptools calls, from inside feed_data.

    def on_message_begin(self) -> None:
        """Begin a response; one after the end of the last was never asked for."""
        if self._complete:
            raise ValueError("two responses to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._head_bytes += len(name) + len(value)
        if self._reply is None or self._head_bytes > MAX_HEAD_BYTES:
            return
        key = name.decode("latin-1").lower()
        self._reply.headers[key] = value.decode("latin-1")
        self._sized |= key in {"content-length", "transfer-encoding"}

    def on_headers_complete(self) -> None:
        """Take the status of a response that is final."""
        status = self._parser.get_status_code()
        if self._reply is None:
            return
        if status >= 200:
            self._reply.status = status
        else:
            self._reply.headers.clear()
            self._sized = False

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Note the end of a final response."""
        self._complete = self._reply is not None and self._reply.status is not None
        self._reusable = self._parser.should_keep_alive()  # the parser forgets it after this
