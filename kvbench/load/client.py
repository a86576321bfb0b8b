"""The client: connections kept warm, requests sent the moment they are asked for.

Rules:

- `post` sends before it returns wherever a connection is idle; otherwise it opens one. How many
  may be open at once is the dispatcher's business; idle ones are kept up to a bound.
- The address is decided before (`resolve`): the first that accepts a connection.
- The connection used last is used first, so that spare ones stay spare.
- A connection may have been closed by the server while it was idle. If the request on it was lost
  before a byte of the response came, it is sent once more on a new connection, and the reply does
  not show it: `sent` stays the first time. A new connection that fails is the server's failure.
- Time limits are checked on a tick, so they are late by up to a twentieth of the shortest.
- Every request ends in exactly one call of its `on_end`.
"""

from __future__ import annotations

import asyncio
import ssl
from _socket import SOCK_STREAM
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.errors import TargetError
from kvbench.load.connection import Connection
from kvbench.load.stamps import Receiver
from kvbench.load.wire import PlainWire, TlsWire

if TYPE_CHECKING:
    from kvbench.clock import Clock
    from kvbench.load.reply import Reply
    from kvbench.load.target import Target
    from kvbench.load.wire import Address, Wire, WireOwner
    from kvbench.records.schema import ErrorKind

OnEnd = Callable[["Reply"], None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the client waits, in seconds.

    Attributes:
        connect: For a connection.
        idle: For the next byte, once the first of the body has come.
        total: For the whole answer, from the send; also for its first token.
    """

    connect: float = 10.0
    idle: float = 120.0
    total: float = 600.0


@dataclass(slots=True)
class _Exchange:
    """A request under way."""

    request: bytes
    reply: Reply
    on_end: OnEnd
    began: float  # when it was posted, or last begun anew
    warm: bool  # sent on a connection that had been idle


class Client:
    """Sends requests to one target; belongs to the event loop it is made in.

    Args:
        target: Where to.
        address: What its name resolves to.
        clock: The clock that times are given in; the loop's timers need not agree with it.
        timeouts: How long to wait.
        max_idle: Most idle connections kept.
    """

    def __init__(
        self,
        target: Target,
        address: Address,
        clock: Clock,
        timeouts: Timeouts,
        max_idle: int = 1024,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._target = target
        self._address = address
        self._clock = clock
        self._timeouts = timeouts
        self._max_idle = max_idle
        self._receiver = Receiver(clock)
        self._context = ssl.create_default_context() if target.tls else None
        self._idle: list[Connection] = []
        self._spare: set[Connection] = set()  # being opened for nobody in particular
        self._exchanges: dict[Connection, _Exchange] = {}
        self._tick = max(0.01, min(timeouts.connect, timeouts.idle, timeouts.total) / 20)
        self._timer = self._loop.call_later(self._tick, self._check_limits)

    @property
    def kernel_stamps(self) -> bool:
        """Whether arrivals carry the kernel's stamps."""
        return self._receiver.stamped

    def post(self, request: bytes, reply: Reply, on_end: OnEnd) -> None:
        """Send `request` now; `on_end` is called with `reply` once it is complete or has failed."""
        now = self._clock.now()
        if self._idle:
            connection = self._idle.pop()
            self._exchanges[connection] = _Exchange(request, reply, on_end, now, warm=True)
            connection.send(request, reply)
        else:
            exchange = _Exchange(request, reply, on_end, now, warm=False)
            self._exchanges[self._open()] = exchange

    def reserve(self, count: int) -> None:
        """Have `count` connections idle or under way, so that as many posts need not wait."""
        for _ in range(min(count, self._max_idle) - len(self._idle) - len(self._spare)):
            self._spare.add(self._open())

    def abort(self, message: str) -> None:
        """End all requests under way: those that were sent are cut, the others never were."""
        for connection, exchange in list(self._exchanges.items()):
            sent = exchange.reply.sent is not None
            self._give_up(connection, "cut" if sent else "not_sent", message)

    def close(self) -> None:
        """Close all connections."""
        self._timer.cancel()
        for connection in [*self._idle, *self._spare]:
            connection.close()
        self._idle.clear()
        self._spare.clear()

    def on_ready(self, connection: Connection) -> None:
        """Send what waits for this connection, or keep it."""
        exchange = self._exchanges.get(connection)
        if exchange is not None:
            connection.send(exchange.request, exchange.reply)
        else:
            self._spare.discard(connection)
            self._keep(connection)

    def on_over(self, connection: Connection, reply: Reply, *, reusable: bool) -> None:
        """Keep the connection, and pass on that the reply has ended."""
        exchange = self._exchanges.pop(connection)
        if reusable:
            self._keep(connection)
        exchange.on_end(reply)

    def on_gone(self, connection: Connection, reason: str) -> None:
        """Forget a connection; try once more what may be tried once more."""
        self._spare.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        exchange = self._exchanges.pop(connection, None)
        if exchange is None:
            return
        if exchange.warm:
            exchange.warm = False
            exchange.began = self._clock.now()
            self._exchanges[self._open()] = exchange
        elif connection.connected:
            self._end(exchange, "cut", f"{reason} before it answered")
        else:
            self._end(exchange, "connect", f"{self._target.authority}: {reason}")

    def _open(self) -> Connection:
        """Begin a connection."""
        return Connection(self._open_wire, self._clock, self)

    def _open_wire(self, owner: WireOwner) -> Wire:
        """Open what the target's scheme asks for."""
        if self._context is None:
            return PlainWire(self._address, self._receiver, self._clock, owner)
        host = self._target.host
        return TlsWire(self._address, self._context, host, self._clock, owner)

    def _keep(self, connection: Connection) -> None:
        """Keep an idle connection, or close it where there are enough."""
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def _give_up(self, connection: Connection, kind: ErrorKind, message: str) -> None:
        """End an exchange from our side, and its connection with it."""
        if connection.reply is not None:
            connection.fail(kind, message)  # comes back as on_over
        else:
            connection.close()
            self._end(self._exchanges.pop(connection), kind, message)

    def _end(self, exchange: _Exchange, kind: ErrorKind, message: str) -> None:
        """End an exchange that no connection carries any more."""
        exchange.reply.failure = (kind, message)
        exchange.reply.end = self._clock.now()
        exchange.on_end(exchange.reply)

    def _check_limits(self) -> None:
        """Give up what has waited too long, and look again after a tick."""
        self._timer = self._loop.call_later(self._tick, self._check_limits)
        now = self._clock.now()
        limits = self._timeouts
        for connection, exchange in list(self._exchanges.items()):
            reply = exchange.reply
            if not connection.connected:
                if now - exchange.began > limits.connect:
                    text = f"{self._target.authority}: no connection after {limits.connect:g} s"
                    self._give_up(connection, "connect", text)
            elif now - exchange.began > limits.total:
                what = "no answer" if reply.status is None else "the answer was not complete"
                self._give_up(connection, "timeout", f"{what} after {limits.total:g} s")
            elif reply.begun and now - connection.last_heard > limits.idle:
                text = f"no further byte in {limits.idle:g} s"
                self._give_up(connection, "timeout", text)


async def resolve(target: Target, connect_seconds: float) -> Address:
    """Return the first address of the target's name that accepts a connection, else the first.

    Raises:
        TargetError: The name does not resolve.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=SOCK_STREAM)
    except OSError as error:
        raise TargetError(
            f"{target.host} cannot be resolved: {error.strerror or error}",
            hint="is the host name right?",
        ) from error
    addresses = [(int(family), address) for family, _, _, _, address in found]
    for family, address in addresses if len(addresses) > 1 else []:
        name, port = str(address[0]), int(address[1])
        try:
            opening = loop.create_connection(asyncio.Protocol, name, port, family=family)
            transport, _ = await asyncio.wait_for(opening, connect_seconds)
        except OSError:
            continue
        transport.abort()
        return family, address
    return addresses[0]
