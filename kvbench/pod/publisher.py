"""KV events over ZeroMQ, as vLLM publishes them: a PUB socket, and a ROUTER that replays.

Rules, all vLLM's: an endpoint with a `*` (or of a transport that has no hosts) is bound, any other
is connected to; a batch per scheduler step, numbered from 0; the last `buffer_steps` batches are
kept and replayed from any number on, ended by a marker. A slow subscriber loses batches, which it
sees by the gap in the numbers; the engine never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from zmq.asyncio import Socket as AsyncSocket
from zmq.constants import Flag, SocketOption, SocketType
from zmq.error import Again, ZMQError
from zmq.sugar.context import Context

from kvbench.errors import InputError, TargetError
from kvbench.kvcache.events import (
    END_OF_REPLAY,
    EventBatch,
    encode_batch,
    published_frames,
    replayed_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zmq.sugar.socket import Socket

    from kvbench.kvcache.events import Event, Form


class EventsConfig(BaseModel):
    """`--kv-events-config`, as vLLM has it.

    Attributes:
        enable_kv_cache_events: Whether anything is published.
        publisher: "zmq"; "null" publishes nothing.
        endpoint: Of the PUB socket.
        replay_endpoint: Of the ROUTER socket; None has no replay.
        buffer_steps: Batches that are kept for replay.
        hwm: Batches that may wait for a slow subscriber.
        max_queue_size: Passed over; batches are sent when they come to be.
        topic: Of every batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = Field(default=10_000, ge=1)
    hwm: int = Field(default=100_000, ge=1)
    max_queue_size: int = 100_000
    topic: str = ""

    @property
    def publishes(self) -> bool:
        """Whether there is anything to publish, and where."""
        return self.enable_kv_cache_events and self.publisher != "null"


def parse_events_config(text: str | None) -> EventsConfig:
    """Return the settings in `text`, JSON; None turns events off.

    Raises:
        InputError: They make no sense.
    """
    if text is None:
        return EventsConfig()
    try:
        return EventsConfig.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "JSON"
        raise InputError(
            f"{place}: {first['msg']}",
            where="--kv-events-config",
            hint='for example {"enable_kv_cache_events": true, "publisher": "zmq", '
            '"endpoint": "tcp://*:5557"}; without a * the pod dials out',
        ) from None


def binds(endpoint: str) -> bool:
    """Return whether a publisher binds that endpoint; else it connects to it."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


class Publisher:
    """Publishes batches of events.

    Args:
        config: Where, and how much is kept.
        form: Encoding: "map" as vLLM from 0.24 on, "array" as before.
        utc: Calendar seconds, stamped on batches.

    Raises:
        TargetError: A socket cannot be had.

    Attributes:
        endpoint: Where it publishes; the real port where `*` was asked.
        replay_endpoint: Where it replays, None if nowhere.
    """

    def __init__(self, config: EventsConfig, form: Form, utc: Callable[[], float]) -> None:
        self._config = config
        self._form = form
        self._utc = utc
        self._next = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = Context()
        self._publishing = self._open(SocketType.PUB, config.endpoint, bind=binds(config.endpoint))
        self.endpoint = _last_endpoint(self._publishing)
        self.replay_endpoint: str | None = None
        self._replaying: asyncio.Task[None] | None = None
        if config.replay_endpoint is not None:
            router = self._open(SocketType.ROUTER, config.replay_endpoint, bind=True)
            self.replay_endpoint = _last_endpoint(router)
            self._replaying = asyncio.get_running_loop().create_task(
                self._replay(AsyncSocket.from_socket(router))
            )

    def publish(self, events: Sequence[Event], *, lost: bool = False) -> None:
        """Publish one step's events; a lost batch is numbered and kept, and not sent."""
        payload = encode_batch(EventBatch(self._utc(), tuple(events), 0), self._form)
        number, self._next = self._next, self._next + 1
        self._kept.append((number, payload))
        if not lost:
            with contextlib.suppress(Again):
                self._publishing.send_multipart(
                    published_frames(self._config.topic, number, payload), Flag.NOBLOCK
                )

    @property
    def published(self) -> int:
        """How many batches there were; the number of the next."""
        return self._next

    def restart(self) -> None:
        """Begin anew, as a restarted engine does: number 0, nothing kept."""
        self._next = 0
        self._kept.clear()

    async def close(self) -> None:
        """Close the sockets."""
        if self._replaying is not None:
            self._replaying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replaying
        self._context.destroy(linger=0)

    def _open(self, kind: int, endpoint: str, *, bind: bool) -> Socket:
        """Return a socket at the endpoint."""
        socket = self._context.socket(kind)
        socket.setsockopt(SocketOption.SNDHWM, self._config.hwm)
        socket.setsockopt(SocketOption.LINGER, 0)
        try:
            if bind:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except ZMQError as error:
            self._context.destroy(linger=0)
            raise TargetError(
                f"KV events: cannot open {endpoint}: {error}",
                hint="an endpoint with * is bound, any other is connected to",
            ) from None
        return socket

    async def _replay(self, router: AsyncSocket) -> None:
        """Answer requests for batches from a number on."""
        with router:  # the loop must forget it before the context closes what lies below
            while True:
                frames = await router.recv_multipart()
                if len(frames) != 3 or len(frames[2]) != 8:
                    continue
                client, start = frames[0], int.from_bytes(frames[2], "big")
                for number, payload in tuple(self._kept):
                    if number >= start:
                        await self._answer(router, client, number, payload)
                await self._answer(router, client, END_OF_REPLAY, b"")

    async def _answer(
        self, router: AsyncSocket, client: bytes, number: int, payload: bytes
    ) -> None:
        """Send one batch, or the marker that ends a replay."""
        topic = "" if number == END_OF_REPLAY else self._config.topic
        await router.send_multipart([client, *replayed_frames(topic, number, payload)])


def _last_endpoint(socket: Socket) -> str:
    """Return where a socket was bound or connected to."""
    return bytes(socket.getsockopt(SocketOption.LAST_ENDPOINT)).rstrip(b"\0").decode()
