"""One request and the answer to it.

Owns: what a handler sees of a request, and the framing of what it says: the head, `content-length`
or chunks, when the connection may serve another request.

Rules: an exchange is answered once, in full (`respond`), in pieces (`start`, `write`, `end`), or
with bytes that somebody else framed (`raw_write`, `raw_end`). What is said after the client has
gone is dropped in silence; `closed` and `on_close` tell. Nothing here waits: a handler that writes
faster than the client reads is told so (`on_pause`, `on_resume`), and is cut off at the bound.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvbench.http.heads import Head, Header

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Wire(Protocol):
    """What an exchange needs of the connection that it came over."""

    def send(self, data: bytes) -> None:
        """Write bytes, in order, without waiting."""
        ...

    @property
    def write(self) -> Callable[[bytes], None]:
        """What writes them, however much waits already."""
        ...

    def finished(self, exchange: Exchange, *, keep_alive: bool) -> None:
        """Take note that the exchange is answered in full; serve the next, or close."""
        ...

    def cut(self, *, reset: bool) -> None:
        """Drop the connection at once; nothing that is still buffered is sent."""
        ...

    def moves(self) -> bool:
        """Return whether the client has taken any since this was last asked, or has more to."""
        ...

    def weigh(self) -> bool:
        """Count anew what is held of bodies; return whether the server may hold so much."""
        ...

    def preamble(self) -> bytes:
        """Return the header lines that every answer carries (date, server)."""
        ...

    @property
    def peer(self) -> str:
        """The client's address, "127.0.0.1:50124"."""
        ...


class Request:
    """A request whose body has arrived in full.

    Attributes:
        head: What stood before the body; shared with other requests that have the same.
        body: Decoded from chunks where it came in chunks.
    """

    __slots__ = ("body", "head")

    def __init__(self, head: Head, body: bytes = b"") -> None:
        self.head = head
        self.body = body

    @property
    def method(self) -> str:
        """The method, in capitals."""
        return self.head.method

    @property
    def path(self) -> str:
        """The decoded path, without the query."""
        return self.head.path

    @property
    def query(self) -> str:
        """What follows the question mark, as sent."""
        return self.head.query

    @property
    def headers(self) -> list[Header]:
        """In the order of arrival; names in lower case."""
        return self.head.headers

    def header(self, name: str) -> str | None:
        """Return the first header of that name (in lower case), or None."""
        value = self.head.named.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")


class Exchange:
    """A request and the handle to answer it.

    Attributes:
        request: What was asked.
        on_close: Called once if the client leaves before the answer has ended.
        on_pause: Called when the client reads slower than the handler writes.
        on_resume: Called when it has caught up.
        closed: Whether nothing more can be said: answered, cut, or the client has left.
        started: Whether the head of the answer has been sent.
    """

    __slots__ = (
        "_bodiless", "_chunked", "_keep_alive", "_remaining", "_wire",
        "closed", "on_close", "on_pause", "on_resume", "request", "started",
    )  # fmt: skip

    def __init__(self, request: Request, wire: Wire) -> None:
        self.request = request
        self.on_close: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.closed = False
        self.started = False
        self._wire = wire
        head = request.head
        self._keep_alive = head.keep_alive
        self._chunked = False
        self._bodiless = head.method == "HEAD"
        self._remaining: int | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._wire.peer

    def replace(self, request: Request) -> bool:
        """Put another request in this one's place, such as the same with its body unpacked.

        Returns:
            Whether the server may hold its body, beside all others.
        """
        self.request = request
        return self._wire.weigh()

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str | None = "application/json",
        headers: Iterable[Header] = (),
    ) -> None:
        """Answer in full; `content_type` None sends no such header."""
        kind = b"" if content_type is None else b"content-type: %b\r\n" % content_type.encode()
        length = b"content-length: %d\r\n" % len(body) if _may_have_body(status) else b""
        head = self._head(status, length + kind, headers)
        self.started = True
        if self._bodiless or not length:
            self._send(head)
        else:
            self._send(head + body)
        self._finish(keep_alive=self._keep_alive)

    def start(self, status: int, headers: Iterable[Header], length: int | None) -> None:
        """Send the head of an answer that comes in pieces.

        Args:
            status: HTTP status.
            headers: Without those that frame the body.
            length: Bytes of the body if known; None sends chunks (and to an HTTP/1.0 client ends
                with the connection).
        """
        framing = b""
        if not _may_have_body(status):
            self._bodiless = True
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
            self._remaining = length
        elif self.request.head.http_1_0:
            self._keep_alive = False
        else:
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = True
        self.started = True
        self._send(self._head(status, b"", headers, framing))

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if self.closed or self._bodiless or not data:
            return
        if self._remaining is not None:
            self._remaining -= len(data)
        self._wire.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """End the answer. A body shorter or longer than announced costs the connection."""
        if self.closed:
            return
        if self._chunked and not self._bodiless:
            self._send(b"0\r\n\r\n")
        as_announced = self._bodiless or not self._remaining
        self._finish(keep_alive=self._keep_alive and as_announced)

    def raw_write(self, data: bytes) -> None:
        """Send bytes that are framed already, the head included, as a proxy does."""
        self.started = True
        if not self.closed:
            self._wire.send(data)

    @property
    def sink(self) -> Callable[[bytes], None]:
        """What sends as `raw_write` does once it has begun, and shorter.

        For who calls it no more once the exchange is closed, and stops where it is told to pause.
        """
        return self._wire.write

    def moves(self) -> bool:
        """Return whether a client that reads slowly has taken any since this was last asked."""
        return self._wire.moves()

    def raw_end(self, *, keep_alive: bool) -> None:
        """End an answer that was sent raw; the caller knows whether its framing allows another."""
        self._finish(keep_alive=keep_alive and self.request.head.keep_alive)

    def abort(self, *, reset: bool = False) -> None:
        """Cut the connection, in the middle of the answer; `reset` sends RST instead of FIN."""
        if not self.closed:
            self.closed = True
            self._wire.cut(reset=reset)

    def _head(
        self, status: int, before: bytes, headers: Iterable[Header], after: bytes = b""
    ) -> bytes:
        """Return the head; framing headers stand before or after the given ones, as servers do."""
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        if not self._keep_alive:
            after += b"connection: close\r\n"
        elif self.request.head.http_1_0:
            after += b"connection: keep-alive\r\n"
        return b"%b%b%b%b%b\r\n" % (line, self._wire.preamble(), before, lines, after)

    def _send(self, data: bytes) -> None:
        """Send, unless nothing more can be said."""
        if not self.closed:
            self._wire.send(data)

    def _finish(self, *, keep_alive: bool) -> None:
        """Close the exchange, once."""
        if not self.closed:
            self.closed = True
            self._wire.finished(self, keep_alive=keep_alive)

    def last_on_connection(self) -> None:
        """Have the answer, if it has not begun, say that the connection closes behind it."""
        if not self.started:
            self._keep_alive = False

    def lost(self) -> None:
        """Take note that the client has gone; called by the connection."""
        if not self.closed:
            self.closed = True
            if self.on_close is not None:
                self.on_close()


def _may_have_body(status: int) -> bool:
    """Return whether an answer of that status has a body."""
    return status >= 200 and status not in {204, 304}
