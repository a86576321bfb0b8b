"""One client's connection: parses, queues, hands out, enforces limits.

Rules: requests are answered in the order in which they came, one at a time, however many were sent
ahead (pipelining). What cannot be served is answered in its turn (400, 408, 413, 431, 505), after
which nothing more is read. A client that asks for another protocol is answered as if it had not
asked, its body read, and the connection then closes; CONNECT is 405. What follows a chunked body
(its trailer) is no header of the request, and is dropped.

Where a request begins with a head that is known (`kvbench.http.heads`), its body is counted off and
no parser is asked; everything else is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import sys
import termios
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import httptools

from kvbench.http.exchange import Exchange, Request
from kvbench.http.heads import Form, Head, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.http.heads import Header
    from kvbench.http.server import Server

logger = logging.getLogger(__name__)

_QUEUE: Final = 32  # requests parsed ahead on one connection before reading pauses
_MOST_AHEAD: Final = 2**20  # bytes of their bodies before it does
_SMALL: Final = 2**16  # bytes of a body that is not counted in what the server holds
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_OTHER_VERSION: Final = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})  # its words
_LINGER_S: Final = 2.0  # how long a refused client may go on sending before it is cut


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask of the server.

    Attributes:
        max_body: Bytes of a request's body.
        max_held: Bytes of all bodies that are being sent or answered; small ones are not counted.
        max_header: Bytes of a request's head.
        max_unsent: Bytes of an answer that may wait for a client that does not read.
        idle_timeout: Seconds that a connection may wait between requests.
        read_timeout: Seconds that a head may take to arrive, and that a body may make no progress.
    """

    max_body: int
    max_held: int
    max_header: int
    max_unsent: int
    idle_timeout: float
    read_timeout: float


class _Refusal:
    """A request that is answered by the server itself, in its turn."""

    __slots__ = ("message", "status")

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_body", "_body_size", "_continue", "_deadline", "_dispatching", "_exchange", "_form",
        "_head", "_head_size", "_headers", "_held", "_in_head", "_key", "_known", "_latest",
        "_left", "_limits", "_mid_request", "_missing", "_now", "_over", "_parser",
        "_paused_reading", "_queue", "_server", "_slow", "_target", "_transport", "write",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self._server = server
        self._limits, self._now = server.limits, server.now
        self._transport: asyncio.Transport
        self.write: Callable[[bytes], None]  # the transport's
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request | _Refusal] = deque()
        self._exchange: Exchange | None = None
        self._dispatching = False
        self._over = False  # nothing more is read from this client
        self._continue = False  # the client waits for "100 Continue"
        self._paused_reading = False
        self._slow = False  # the client reads slower than it is written to
        self._in_head = self._mid_request = False
        self._head_size = self._body_size = 0
        self._target = b""
        self._headers: list[Header] = []
        self._head: Head
        self._body: list[bytes] = []
        self._left = -1  # bytes that the client had yet to take when that was last looked at
        self._held = 0  # bytes that the server counts of this client's bodies
        self._known: Head | None = None  # the known head whose body is being counted off
        self._missing = 0  # bytes of that body that have not come
        self._key: tuple[Form, int, int] | None = None  # of a head that is being parsed
        self._form = Form()  # of the known head that came last,
        self._latest: Head | None = None  # and that head
        self._deadline = self._now() + self._limits.idle_timeout

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; send small writes at once."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self.write = self._transport.write
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Tell the exchange under way that its client has gone."""
        self._server.forget(self)
        self._over = True
        self._queue.clear()
        self._body = []
        exchange, self._exchange = self._exchange, None
        self.recount()
        if exchange is not None:
            self._guarded(exchange.lost)

    def data_received(self, data: bytes) -> None:
        """Take what has a known head, parse the rest, and hand out what is complete."""
        if self._over:
            return
        if self._known is not None or not self._mid_request:
            data = self._take_known(data)
        if data:
            self._parse(data)
        if self._mid_request and not self._in_head:
            self._deadline = self._now() + self._limits.read_timeout
        self._dispatch()
        if self._queue and not self._paused_reading and self._far_ahead(_QUEUE):
            self._paused_reading = True
            self._transport.pause_reading()

    def _take_known(self, data: bytes) -> bytes:
        """Take requests with known heads; return the bytes behind, which are to be parsed."""
        while data:
            if self._known is None:
                length, end = self._form.read(data)
                if not end:
                    length, end = self._recognise(data)
                head = self._latest
                if not end or head is None or length > self._limits.max_body:
                    return data
                data, missing = data[end:], max(length, 0)
                if len(data) == missing <= _SMALL and self._idle():
                    self._begin(Request(head, data))
                    return b""
                self._known, self._missing = head, missing
            if len(data) < self._missing:
                self._mid_request = True
                self._missing -= len(data)
                self._take(data)
                return b""
            if self._missing <= _SMALL and not self._held:
                self._body.append(data[: self._missing])
            elif not self._take(data[: self._missing]):
                return b""
            data = data[self._missing :]
            self._mid_request = False
            self._complete(self._known)
            self._known = None
        return data

    def _recognise(self, data: bytes) -> tuple[int, int]:
        """Return the body's length and the end of the head that `data` begins with, if it is known.

        That head is the latest then. The end is 0 where none is known.
        """
        key = self._key = split(data)
        head = None if key is None else self._server.heads.get(key[0].key, key[1])
        if key is None or head is None:
            return -1, 0
        self._form, self._latest = key[0], head
        return key[1], key[2]

    def _idle(self) -> bool:
        """Return whether a request that is complete could be handed out at once."""
        return self._exchange is None and not self._queue and not self._held

    def _parse(self, data: bytes) -> None:
        """Have the parser understand it."""
        self._head_size += len(data)  # set back where a request begins, or its body comes on
        self._feed(data)
        self._key = None
        if self._mid_request and self._head_size > self._limits.max_header:
            self._refuse(431, "Request header fields too large.")  # or its trailer, or a chunk's

    def _feed(self, data: bytes) -> None:
        """Feed the parser; once more, without the question, where another protocol is asked for.

        The parser takes what follows such a head for the other protocol's, a body too.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as asked:
            if not self._over:
                plain = self._plain_head()
                self._parser = httptools.HttpRequestParser(self)
                self._feed(plain + data[asked.args[0] :])
        except httptools.HttpParserError as error:
            if str(error) in _OTHER_VERSION:
                self._refuse_version()
            else:
                self._refuse(400, "Invalid HTTP request received.")

    def _plain_head(self) -> bytes:
        """Return the head that came last as it would be if it asked for no other protocol."""
        head = self._head
        lines = [b"%b: %b" % header for header in head.headers if header[0] != b"upgrade"]
        version = b"1.0" if head.http_1_0 else b"1.1"
        first = b"%b %b HTTP/%b" % (head.method.encode(), head.target, version)
        return b"\r\n".join([first, b"connection: close", *lines, b"\r\n"])

    def pause_writing(self) -> None:
        """Tell the exchange that the client reads too slowly."""
        self._slow = True
        if self._exchange is not None and self._exchange.on_pause is not None:
            self._guarded(self._exchange.on_pause)

    def resume_writing(self) -> None:
        """Tell the exchange that the client has caught up."""
        self._slow = False
        if self._exchange is not None and self._exchange.on_resume is not None:
            self._guarded(self._exchange.on_resume)

    # The parser's calls.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._target = b""
        self._headers = []
        self._body = []
        self._head_size = self._body_size = 0
        self._in_head = self._mid_request = True
        self._deadline = self._now() + self._limits.read_timeout

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that comes behind the body is none of the request's.

        The parser leaves the blanks behind a value, which are none of it.
        """
        if self._in_head:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Refuse at once what will be too large; learn a head that came in one piece."""
        self._in_head = False
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > self._limits.max_header:
            self._refuse(431, "Request header fields too large.")
            return
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            self._refuse_version()
            return
        for name, value in self._headers:
            if name == b"content-length" and int(value) > self._limits.max_body:
                self._refuse(413, "Request body too large.")
            elif name == b"expect" and value.lower() == b"100-continue":
                self._continue = version != "1.0"
        self._head = Head(
            self._parser.get_method().decode("latin-1"),
            self._target,
            self._headers,
            keep_alive=self._parser.should_keep_alive() and not self._parser.should_upgrade(),
            http_1_0=version == "1.0",
        )
        if self._head.method == "CONNECT":
            self._refuse(405, "Method Not Allowed")
        if self._key is not None and not self._over:
            self._server.heads.learn(self._key[0].key, self._head, self._key[1])
            self._key = None

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._continue = False  # it did not wait
        self._head_size = 0
        self._body_size += len(body)
        if self._body_size > self._limits.max_body:
            self._refuse(413, "Request body too large.")
        elif not self._over:
            self._take(body)

    def on_message_complete(self) -> None:
        """Queue the request."""
        self._mid_request = self._continue = False
        if not self._over and not self._parser.should_upgrade():
            self._complete(self._head)

    # The exchange's calls.

    def send(self, data: bytes) -> None:
        """Write, or cut a client that does not read."""
        if self._slow and self._far_behind():
            logger.warning("cut %s: it does not read its answer", self.peer)
            self.cut(reset=True)
            return
        self.write(data)

    def _far_behind(self) -> bool:
        """Return whether the client has left too much unread."""
        return self._transport.get_write_buffer_size() > self._limits.max_unsent

    def finished(self, exchange: Exchange, *, keep_alive: bool) -> None:
        """Serve the next request, or hang up."""
        if exchange is not self._exchange:
            return
        self._exchange = None
        if self._held:
            self.recount()
        if not keep_alive or self._server.closing:
            self._queue.clear()
            self._hang_up()
            return
        if not self._mid_request:
            self._deadline = self._now() + self._limits.idle_timeout
        self._dispatch()

    def cut(self, *, reset: bool) -> None:
        """Drop the connection at once."""
        self._over = True
        if reset:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        self._transport.abort()

    def moves(self) -> bool:
        """Return whether what the client has yet to take has changed since this was last asked."""
        before, self._left = self._left, self._transport.get_write_buffer_size()
        with contextlib.suppress(OSError, ValueError):  # it counts what lies in the kernel, too
            sock = self._transport.get_extra_info("socket")
            queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
            self._left += int.from_bytes(queued, sys.byteorder)
        return self._left != before

    def weigh(self) -> bool:
        """Count anew what is held; return whether the server may hold so much."""
        server = self._server
        self.recount()
        if server.held > self._limits.max_held:
            for connection in server.connections:
                connection.recount()  # handlers have let go of some meanwhile
        return server.held <= self._limits.max_held

    def preamble(self) -> bytes:
        """Header lines of every answer."""
        return self._server.preamble

    @property
    def peer(self) -> str:
        """The client's address."""
        address = self._transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "?"

    # What the server asks.

    def sweep(self, now: float) -> None:
        """Close or refuse where the client has taken too long."""
        if self._exchange is not None or now < self._deadline:
            return
        if self._transport.get_write_buffer_size():  # it has not taken its answer yet
            if self.moves():
                self._deadline = now + self._limits.idle_timeout
            else:
                logger.warning("cut %s: it does not read its answer", self.peer)
                self.cut(reset=True)
        elif self._over or not self._mid_request:
            self._transport.abort()
        else:
            self._refuse(408, "Request timeout.")
            self._dispatch()

    def shut(self) -> None:
        """Close now if idle, else behind the exchange that is under way."""
        if self._exchange is None:
            self._transport.close()
        else:
            self._exchange.last_on_connection()

    # Inside.

    def _complete(self, head: Head) -> None:
        """Queue a request whose body is complete."""
        pieces, self._body = self._body, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._queue.append(Request(head, body))

    def _refuse_version(self) -> None:
        """Refuse another version of HTTP (RFC 9110 §15.6.6)."""
        self._refuse(505, "HTTP version not supported: HTTP/1.1 and HTTP/1.0 are spoken here.")

    def _refuse(self, status: int, message: str) -> None:
        """Queue an answer of the server's own; read nothing after it."""
        if not self._over:
            self._over = True
            self._body = []
            self.recount()
            self._queue.append(_Refusal(status, message))

    def _take(self, piece: bytes) -> bool:
        """Keep a piece of a body, and count it; return whether the server may hold so much."""
        self._body.append(piece)
        self._held += len(piece)
        self._server.held += len(piece)
        if self._server.held > self._limits.max_held and not self.weigh():
            self._refuse(503, "Too much is being sent at once.")
        return not self._over

    def recount(self) -> None:
        """Count anew what is held of this client's bodies."""
        held = sum(map(len, self._body))
        held += sum(len(item.body) for item in self._queue if isinstance(item, Request))
        if self._exchange is not None:
            held += len(self._exchange.request.body)
        self._server.held += held - self._held
        self._held = held

    def _far_ahead(self, most: int) -> bool:
        """Return whether more than `most` requests wait, or too much of them."""
        ahead = sum(len(item.body) for item in self._queue if isinstance(item, Request))
        return len(self._queue) > most or ahead > _MOST_AHEAD

    def _dispatch(self) -> None:
        """Hand out what waits until an exchange stays open."""
        waits = self._queue or self._paused_reading or self._continue
        if self._dispatching or not waits:
            return
        self._dispatching = True
        while self._queue and self._exchange is None and not self._transport.is_closing():
            self._begin(self._queue.popleft())
        self._dispatching = False
        if self._paused_reading and not self._far_ahead(_QUEUE // 2):
            self._paused_reading = False
            self._transport.resume_reading()
        if self._continue and self._exchange is None and not self._over:
            self._continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _begin(self, item: Request | _Refusal) -> None:
        """Open an exchange and call the handler."""
        if isinstance(item, _Refusal):
            request = Request(Head("GET", b"/", [], keep_alive=False))
            self._exchange = Exchange(request, self)
            self._exchange.respond(item.status, *self._server.refusal(item.status, item.message))
            return
        exchange = self._exchange = Exchange(item, self)
        if self._server.closing:
            exchange.last_on_connection()
        try:
            self._server.handler(exchange)
        except Exception:
            logger.exception("%s %s: the handler failed", item.method, item.path)
            if exchange.started:
                exchange.abort()
            elif not exchange.closed:
                exchange.respond(500, *self._server.refusal(500, "Internal Server Error"))

    def _hang_up(self) -> None:
        """End the connection so that a client that is still sending can read the answer."""
        if self._over and self._mid_request and self._transport.can_write_eof():
            self._transport.write_eof()
            self._deadline = self._now() + _LINGER_S
        else:
            self._over = True
            self._transport.close()

    def _guarded(self, callback: Callable[[], None]) -> None:
        """Call back, and log what goes wrong there."""
        try:
            callback()
        except Exception:
            logger.exception("%s: a callback of the handler failed", self.peer)
