"""A byte stream to the target: sent at once, stamped on arrival.

`PlainWire` works on the socket itself. `transport.write` of asyncio and uvloop sends when the loop
comes round to it, tens of milliseconds late with a few hundred streams open; `send` here hands the
bytes to the kernel before it returns, and reading stamps what came with the kernel's own time.
`TlsWire` goes through the loop's transports, for which neither holds: measure over plain HTTP.

Both tell their owner three things, never from inside one of its own calls, and nothing after
`close`: that the connection stands, what came, and that it is lost.

Sockets are `_socket.socket`, the C class: in a process with Locust, `socket.socket` is gevent's,
whose methods belong to another event loop.
"""

from __future__ import annotations

import _socket
import asyncio
import errno
import os
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import ssl

    from kvbench.clock import Clock
    from kvbench.load.stamps import Receiver

Address = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""Address family and socket address, as getaddrinfo gives them."""

CLOSED = "the server closed the connection"


class WireOwner(Protocol):
    """Who is told."""

    def on_connected(self) -> None:
        """Learn that bytes can be sent."""
        ...

    def on_data(self, stamp: float, data: bytes) -> None:
        """Take bytes that arrived at `stamp`, on the clock."""
        ...

    def on_lost(self, reason: str) -> None:
        """Learn that the wire is gone, or never came about; `CLOSED` is an orderly end."""
        ...


class Wire(Protocol):
    """What an owner may do."""

    def send(self, data: bytes) -> None:
        """Send all of `data`; only after `on_connected`."""
        ...

    def close(self) -> None:
        """Let go of the connection; the owner hears nothing more."""
        ...

    @property
    def flushed(self) -> bool:
        """Whether everything that was sent has been handed on."""
        ...


class PlainWire:
    """TCP, on the socket itself."""

    def __init__(
        self,
        address: Address,
        receiver: Receiver,
        clock: Clock,
        owner: WireOwner,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._clock = clock
        self._owner = owner
        self._rest: memoryview = memoryview(b"")
        self._sent_at = clock.now()
        family, socket_address = address
        self._sock = _socket.socket(family, _socket.SOCK_STREAM)
        self._fd = self._sock.fileno()
        self._sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        code = self._sock.connect_ex(socket_address)
        if code in {0, errno.EINPROGRESS}:
            self._loop.add_writer(self._fd, self._on_writable_first)
        else:
            self._loop.call_soon(self._lose, os.strerror(code))

    def send(self, data: bytes) -> None:
        """Hand `data` to the kernel now; what does not fit follows as the kernel takes it."""
        self._sent_at = self._clock.now()
        self._rest = memoryview(data)
        self._push()
        if self._rest:
            self._loop.add_writer(self._fd, self._on_writable)

    def close(self) -> None:
        """Close the socket."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._sock.close()
            self._fd = -1

    @property
    def flushed(self) -> bool:
        """Whether the kernel has taken everything."""
        return not self._rest

    def _push(self) -> None:
        """Hand the kernel what it takes."""
        try:
            self._rest = self._rest[self._sock.send(self._rest) :]
        except BlockingIOError:
            return
        except OSError:  # reading tells why, after what the server may have said before
            self._rest = memoryview(b"")
            self._loop.call_soon(self._on_readable)

    def _on_writable_first(self) -> None:
        """Hear how connecting went."""
        self._loop.remove_writer(self._fd)
        code = self._sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code:
            self._lose(os.strerror(code))
            return
        self._receiver.enable(self._sock)
        self._loop.add_reader(self._fd, self._on_readable)
        self._owner.on_connected()

    def _on_writable(self) -> None:
        """Go on sending."""
        self._push()
        if not self._rest and self._fd >= 0:
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> None:
        """Read once."""
        if self._fd < 0:
            return
        try:
            stamp, data = self._receiver.read(self._sock, self._sent_at)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if data:
            self._owner.on_data(stamp, data)
        else:
            self._lose(CLOSED)

    def _lose(self, reason: str) -> None:
        """Close, and say why."""
        if self._fd >= 0:
            self.close()
            self._owner.on_lost(reason)


class TlsWire(asyncio.Protocol):
    """TLS over TCP, through the loop's transport."""

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext,
        host: str,
        clock: Clock,
        owner: WireOwner,
    ) -> None:
        self._clock = clock
        self._owner = owner
        self._open = True
        self._transport: asyncio.Transport | None = None
        self._task = asyncio.get_running_loop().create_task(self._connect(address, context, host))

    async def _connect(self, address: Address, context: ssl.SSLContext, host: str) -> None:
        """Connect and shake hands."""
        family, socket_address = address
        name, port = str(socket_address[0]), int(socket_address[1])
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self, name, port, family=family, ssl=context, server_hostname=host
            )
        except OSError as error:  # certificate errors are OSErrors, too
            if self._open:
                self._open = False
                self._owner.on_lost(str(error.strerror or error))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hear from the loop that the handshake is done."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if self._open:
            self._owner.on_connected()
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hear from the loop what came."""
        if self._open:
            self._owner.on_data(self._clock.now(), data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hear from the loop that it is over."""
        if self._open:
            self._open = False
            self._owner.on_lost(CLOSED if exc is None else str(exc))

    @property
    def flushed(self) -> bool:
        """Whether the transport has handed everything on."""
        return self._transport is None or not self._transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Give `data` to the transport."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        """Abort the connection."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()
        else:
            self._task.cancel()
