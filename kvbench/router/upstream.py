"""Connections to pods: one `asyncio.Protocol` each, and a small pool of idle ones per pod.

A connection carries one request at a time for a `Caller`, which is told of the answer as it comes:
its head, then its body twice, as framed by the pod (to be passed on) and as decoded (to be looked
at), and its end. Nothing is kept: what has been told is gone. A body with a length is counted off;
chunks are parsed.

Rules:

- Small writes leave at once (TCP_NODELAY); nothing that arrives waits for more to arrive.
- A connection goes back to the pool only after an answer whose end is certain, on a connection that
  the pod keeps open. Idle ones are closed after four seconds, before servers commonly do (five).
- Where a caller has nothing to do with the chunks of a stream but to pass them on, those that come
  alone, as whole lines, go to its client past it (`sink`).
- A connection that breaks before the first byte of an answer says so (`BROKEN_IDLE` if it had been
  used before: it had probably been closed while idle), so that the caller may try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections import deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

import httptools

from kvbench.http.heads import Form, split
from kvbench.http.host import Host, resolve
from kvbench.router.heads import Head, parse_head, request_head, split_length
from kvbench.router.usage import KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvbench.http.address import Address

Failure = Literal[
    "connect", "connect_timeout", "stale", "reset", "protocol", "cut", "timeout", "unavailable"
]
"""How an attempt fails: no connection; an idle connection that the pod had closed; broken before
the answer; not HTTP; broken in the answer; too slow; answered that it cannot answer."""

_MOST_IDLE: Final = 256
_IDLE_S: Final = 4.0
_MOST_HEAD: Final = 64 * 2**10
_PROTOCOL: Final = b"HTTP/1."
_CHUNK: Final = re.compile(rb"(?!0)([0-9a-fA-F]{1,7})\r\n")  # its size, which is not 0
_END: Final = b"0\r\n\r\n"
_MOST_ALONE: Final = 2048


def _frames() -> tuple[bytes, ...]:
    """Return what a chunk begins with that is of so many bytes in all; of some, none can be."""
    frames = [bytes(_MOST_ALONE)] * _MOST_ALONE
    for size in range(1, _MOST_ALONE - 8):
        frame = b"%x\r\n" % size
        frames[len(frame) + size + 2] = frame
    return tuple(frames)


_FRAMES: Final = _frames()


class Caller(Protocol):
    """Who is told of an answer."""

    def answered(self, head: Head, length: int) -> None:
        """Take the head, and what it says of the body's length (-1: nothing); more follows."""
        ...

    def arrived(self, raw: bytes, pieces: tuple[bytes, ...]) -> None:
        """Take body bytes, as framed and as decoded; either may be empty.

        Called right after `answered` too, with nothing if nothing came with the head.
        """
        ...

    def completed(self) -> None:
        """Take note that the answer has ended as it should."""
        ...

    def failed(self, failure: Failure, why: str) -> None:
        """Take note that the answer will not come, or not end."""
        ...


class Upstream(asyncio.Protocol):
    """A connection to a pod.

    Attributes:
        sink: What takes chunks past the caller, who sets it; None for each new request.
        moved: Whether it has taken any since the caller set this back.
        counted: The last of these in which tokens are counted, unless the caller has taken it.
    """

    __slots__ = (
        "_aligned", "_buffer", "_caller", "_complete", "_form", "_head", "_latest", "_length",
        "_method", "_missing", "_parser", "_paused", "_pieces", "_pool", "_raw_head", "_single",
        "_transport", "counted", "idle_since", "moved", "sink", "used",
    )  # fmt: skip

    def __init__(self, pool: Pool, *, single: bool = False) -> None:
        self._pool = pool
        self._single = single  # it serves one request, and whoever asked for it closes it
        self._transport: asyncio.Transport
        self._caller: Caller | None = None
        self._parser: httptools.HttpResponseParser | None = None  # of chunks, from a cut one on
        self._raw_head = b""  # what it is to be fed first
        self._aligned = False  # whether chunks come, and none yet that was not whole
        self.sink: Callable[[bytes], None] | None = None
        self.moved = False
        self.counted = b""
        self._head: Head | None = None
        self._form = Form()  # of the last head of an answer to a POST that had a length,
        self._latest: Head | None = None  # and that head
        self._length = -1
        self._missing = 0
        self._buffer = b""
        self._pieces: list[bytes] = []
        self._method = ""
        self._complete = False
        self._paused = False
        self.used = False
        self.idle_since = 0.0

    def ask(self, caller: Caller, method: str, head: bytes, body: bytes) -> None:
        """Send a request; `caller` is told of the answer."""
        self._caller = caller
        self._method = method
        self._head = None
        self._complete = self._aligned = self.moved = False
        self.sink, self.counted = None, b""
        if len(body) < 2**14:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])

    def drop(self) -> None:
        """Close at once; the caller is told no more. So a pod learns that its client has gone."""
        self._caller = None
        self._transport.abort()

    def pause(self) -> None:
        """Read no more for now: the client reads too slowly."""
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def closing(self) -> bool:
        """Return whether the connection is gone, or about to be."""
        return self._transport.is_closing()

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Find the head and the end; hand on what has come."""
        caller = self._caller
        if caller is None:  # nobody asked
            self._transport.abort()
            return
        sink = self.sink
        if sink is not None and self._aligned and _plain(data):
            self.moved = True
            if data.rpartition(KEY)[1]:  # `in` and `find` are slower
                self.counted = data
            sink(data)
            return
        first = self._head is None
        try:
            if first:
                data = self._take_head(data)
            head = self._head
            if head is None:
                return
            pieces = self._decode(head, data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError):
            self._fail("protocol", "did not answer in HTTP")
            return
        if first:
            caller.answered(head, self._length)
            if self._caller is not caller:  # it will not have this answer
                return
        caller.arrived(data, pieces)
        if self._complete:
            self._finish(reusable=head.keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the caller, if it still waits."""
        self._pool.lost(self)
        if self._caller is None:
            return
        if self._head is None:
            stale = self.used and not self._buffer
            self._fail("stale" if stale else "reset", "closed the connection before it answered")
        elif self._head.framed or exc is not None:
            self._fail("cut", "broke off in the middle of its answer")
        else:
            self._finish(reusable=False)

    # The parser's calls.

    def on_message_begin(self) -> None:
        """Refuse a second answer where one was asked for."""
        if self._complete:
            raise ValueError

    def on_body(self, piece: bytes) -> None:
        """Keep a decoded piece until the bytes at hand are parsed."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Note the end."""
        self._complete = True

    # Inside.

    def _take_head(self, data: bytes) -> bytes:
        """Return the bytes behind the head once it is complete; until then keep them."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        length, end = self._form.read(data)
        if end and self._method == "POST":
            self._head = self._latest
            self._length = self._missing = length
            return data[end:]
        while (end := data.find(b"\r\n\r\n") + 4) >= 4:
            head, data = data[:end], data[end:]
            if head[9:10] == b"1":  # interim
                continue
            lines, self._length = split_length(head)
            self._head = parse_head(lines, self._method, counted=self._length >= 0)
            self._missing = self._length
            if self._head.chunked:
                self._aligned = self._head.has_body
                self._parser, self._raw_head = None, head
            elif self._length >= 0 and self._method == "POST" and (key := split(head)):
                self._form, self._latest = key[0], self._head
            return data
        begun = data.startswith(_PROTOCOL[: len(data)])
        if len(data) > _MOST_HEAD or not begun or b"\n\n" in data:  # a head of another kind
            raise ValueError
        self._buffer = data
        return b""

    def _decode(self, head: Head, data: bytes) -> tuple[bytes, ...]:
        """Return the pieces of the body that are in `data`, and note its end.

        Raises:
            ValueError: There is more than was announced.
        """
        if head.chunked and head.has_body:
            if self._aligned:
                data = self._take_chunks(data)
            if data:
                if self._parser is None:
                    self._parser = httptools.HttpResponseParser(self)
                    self._parser.feed_data(self._raw_head)
                self._parser.feed_data(data)
            pieces, self._pieces = tuple(self._pieces), []
            return pieces
        if head.framed:
            missing = (self._missing if head.has_body else 0) - len(data)
            if missing < 0:
                raise ValueError
            self._missing, self._complete = missing, not missing
        return (data,) if data else ()

    def _take_chunks(self, data: bytes) -> bytes:
        """Take the whole chunks that `data` begins with; return what is for the parser.

        As a stream comes, a read is a chunk or a few. The parser need not see these, nor a plain
        end; but from the first that is cut, it sees all.
        """
        at, end = 0, len(data)
        while at < end:
            found = _CHUNK.match(data, at)
            if found is None:
                break
            start = found.end()
            stop = start + int(found[1], 16)
            if data[stop : stop + 2] != b"\r\n":
                break
            self._pieces.append(data[start:stop])
            at = stop + 2
        if data[at:] == _END:
            self._complete = True
            return b""
        self._aligned = at == end
        return data[at:]

    def _finish(self, *, reusable: bool) -> None:
        """Give the connection back, then tell the caller, who may well use it at once."""
        caller, self._caller = self._caller, None
        assert caller is not None
        self.used = True
        if reusable and not self._single:
            self.resume()
            self._pool.give_back(self)
        else:
            self._transport.abort()
        caller.completed()

    def _fail(self, failure: Failure, why: str) -> None:
        """Close, and tell the caller."""
        caller, self._caller = self._caller, None
        self._buffer = b""
        self._transport.abort()
        if caller is not None:
            caller.failed(failure, why)


def _plain(data: bytes) -> bool:
    """Return whether bytes are one chunk, whole, of whole lines."""
    size = len(data)
    if size >= _MOST_ALONE or data[-3:] != b"\n\r\n":
        return False
    frame = _FRAMES[size]
    return data[: len(frame)] == frame


def in_words(error: Exception) -> str:
    """Return why a connection cannot be made, without addresses and numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return (
            f"its certificate is not trusted: {why} (SSL_CERT_FILE names a file of those that are)"
        )
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it: {(error.reason or str(error)).lower().replace('_', ' ')}"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error)


class Pool:
    """Idle connections to one pod, the most recently used first.

    Args:
        address: Where it is.
        router: What the pod is told of who asks.
        resolve: Returns the addresses of its name.

    Attributes:
        router: The same.
        request_head: Makes heads for the pod (`kvbench.router.heads.request_head`), and keeps some.
    """

    def __init__(
        self,
        address: Address,
        router: bytes = b"kvbench",
        resolve: Callable[[str, int], Awaitable[list[str]]] = resolve,
    ) -> None:
        self._address = address
        self._host = Host(address.host, address.port, resolve)
        self.router = router
        make = partial(request_head, address=address, router=router)
        self.request_head = lru_cache(256)(make)
        self._idle: deque[Upstream] = deque()
        self._loop = asyncio.get_running_loop()

    @property
    def unresolved(self) -> bool:
        """Whether the pod's name has been asked for and nobody has answered yet."""
        return self._host.asking

    def idle(self) -> Upstream | None:
        """Return an idle connection, if there is one."""
        while self._idle:
            upstream = self._idle.pop()
            if not upstream.closing():
                return upstream
        return None

    async def connect(self, timeout_s: float, *, single: bool = False) -> Upstream:
        """Return a new connection, which is given to nobody else afterwards if it is a `single`.

        Raises:
            OSError: It cannot be made (TimeoutError: not in time).
            UnicodeError: The pod's host name cannot be one.
        """
        address = self._address

        async def connect(host: str) -> Upstream:
            _, upstream = await self._loop.create_connection(
                lambda: Upstream(self, single=single),
                host,
                address.port,
                ssl=address.tls or None,
                server_hostname=address.host if address.tls else None,
            )
            return upstream

        return await self._host.reach(connect, timeout_s)

    def give_back(self, upstream: Upstream) -> None:
        """Take back a connection that can be used again."""
        upstream.idle_since = self._loop.time()
        self._idle.append(upstream)
        if len(self._idle) > _MOST_IDLE:
            self._idle.popleft().drop()

    def lost(self, upstream: Upstream) -> None:
        """Forget a connection that is gone."""
        with contextlib.suppress(ValueError):
            self._idle.remove(upstream)

    def sweep(self) -> None:
        """Close what has been idle for too long."""
        before = self._loop.time() - _IDLE_S
        while self._idle and self._idle[0].idle_since < before:
            self._idle.popleft().drop()

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.popleft().drop()
