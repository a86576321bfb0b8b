"""A small HTTP/1.1 server: one `asyncio.Protocol`, one handler, bounded in everything.

Owns: listening, the connections, their time limits, and ending gracefully.

Rules:

- The handler is a plain function, called in the loop's thread when a request's body is complete.
  It answers at once, or keeps the exchange and answers later; it must not block.
- A handler that raises costs its request an answer of 500 and a line in the log, never the server.
- Whatever a client sends is answered or dropped; nothing that it sends can make the server keep
  more than `Limits` allows.

Refuses: TLS, HTTP/2, trailers, files. A proxy in front has those.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from email.utils import format_datetime

from kvbench.clock import utc
from kvbench.errors import TargetError
from kvbench.http.connection import Connection, Limits
from kvbench.http.exchange import Exchange, Request
from kvbench.http.heads import Head, Header, KnownHeads

Refusal = Callable[[int, str], tuple[bytes, str]]
"""Returns body and content type of an answer that the server gives itself."""

__all__ = ["Exchange", "Head", "Header", "Limits", "Request", "Server", "serve"]


def plain_text(_status: int, message: str) -> tuple[bytes, str]:
    """Return a refusal as text, as servers do that have no form of their own."""
    return message.encode(), "text/plain; charset=utf-8"


class Server:
    """A listening server.

    Attributes:
        handler: Called with each exchange.
        refusal: Words what the server answers itself.
        limits: What a client may ask.
        connections: Those that are open.
        held: Bytes of bodies that are being sent or answered.
        closing: Whether it has stopped accepting.
        heads: Requests' heads that have been understood.
        now: Returns the loop's time, seconds.
        preamble: The header lines of every answer, renewed each second.
        host: Where it listens.
        port: Where it listens; the real one where 0 was asked.
    """

    def __init__(
        self,
        handler: Callable[[Exchange], None],
        limits: Limits,
        name: str,
        refusal: Refusal = plain_text,
    ) -> None:
        self.handler = handler
        self.refusal = refusal
        self.limits = limits
        self.connections: set[Connection] = set()
        self.held = 0
        self.closing = False
        self.heads = KnownHeads()
        self.host = ""
        self.port = 0
        self._name = name
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._listener: asyncio.Server | None = None
        self._tick = min(1.0, limits.idle_timeout / 4, limits.read_timeout / 4)
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.preamble = b""

    @property
    def url(self) -> str:
        """The address as a client writes it, "http://127.0.0.1:8000"."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def forget(self, connection: Connection) -> None:
        """Take note that a connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    async def listen(self, host: str, port: int, *, reuse_port: bool) -> None:
        """Bind and accept.

        Raises:
            TargetError: The address cannot be bound.
        """
        self._sweep()
        try:
            self._listener = await self._loop.create_server(
                lambda: Connection(self), host, port, backlog=4096, reuse_port=reuse_port or None
            )
        except OSError as error:
            self._stop_sweeping()
            raise TargetError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="choose another port; 0 takes a free one",
            ) from None
        self.host, self.port = self._listener.sockets[0].getsockname()[:2]

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, let exchanges finish for `grace_s` seconds, then cut what is left."""
        self.closing = True
        if self._listener is not None:
            self._listener.close()
        self._empty.clear()
        for connection in tuple(self.connections):
            connection.shut()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), grace_s)
        for connection in tuple(self.connections):
            connection.cut(reset=False)
        await asyncio.sleep(0)  # let the transports say that they are gone
        self._stop_sweeping()

    def _sweep(self) -> None:
        """Enforce the time limits and renew the date."""
        date = format_datetime(utc(), usegmt=True)
        self.preamble = f"date: {date}\r\nserver: {self._name}\r\n".encode()
        now = self.now()
        for connection in tuple(self.connections):
            connection.sweep(now)
        self._timer = self._loop.call_later(self._tick, self._sweep)

    def _stop_sweeping(self) -> None:
        """End the sweeping."""
        if self._timer is not None:
            self._timer.cancel()


async def serve(
    handler: Callable[[Exchange], None],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    max_body: int = 64 * 2**20,
    max_held: int = 2**30,
    max_header: int = 64 * 2**10,
    idle_timeout: float = 75.0,
    read_timeout: float = 20.0,
    max_unsent: int = 8 * 2**20,
    name: str = "kvbench",
    reuse_port: bool = False,
    refusal: Refusal = plain_text,
) -> Server:
    """Listen and answer with `handler` until closed.

    Args:
        handler: Called in the loop's thread with each complete request; must not block.
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        max_body: Bytes; larger requests get 413.
        max_held: Bytes of all bodies that are being sent or answered; what is more gets 503.
        max_header: Bytes; larger heads get 431.
        idle_timeout: Seconds between requests.
        read_timeout: Seconds for a head, and between pieces of a body, then 408.
        max_unsent: Bytes of an answer that a slow reader may leave unread before it is cut.
        name: The `server` header.
        reuse_port: Whether other processes may accept on the same port.
        refusal: Words what is answered before the handler is asked, or after it has failed.

    Returns:
        The server, listening.

    Raises:
        TargetError: The address cannot be bound.
    """
    limits = Limits(max_body, max_held, max_header, max_unsent, idle_timeout, read_timeout)
    server = Server(handler, limits, name, refusal)
    await server.listen(host, port, reuse_port=reuse_port)
    return server
