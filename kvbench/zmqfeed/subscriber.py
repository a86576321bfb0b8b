"""Hears the pods' KV events: sockets around `kvbench.kvcache.ledger`, which decides everything.

Rules:

- One SUB socket for each endpoint, connected to, or bound where pods dial out; a fresh DEALER for
  each replay. A replay that says nothing for two seconds is given up.
- When a connection to a publisher has been made, what it has published is asked for; and again
  whenever nothing has come for five seconds, since a loss that is followed by silence shows itself
  in no other way. But nothing is asked for while nobody is at the events' endpoint: a replay would
  make a pod exact that cannot be heard.
- A connection that breaks may mean another engine: that is found out when it is made again.
- All this runs on its process's own loop, in slices of a quarter of a millisecond with the rest in
  between. A thread would have to share the interpreter anyway, and take it for up to five
  milliseconds at a time; a batch of 500 blocks takes half of one. What has been read is followed by
  a rest of five milliseconds: messages that come one by one would each wake the loop, which costs
  as much as a small one. Measured: `scripts/bench_index.py`.
- ZeroMQ asks for names in the thread that moves its messages. So an ear whose endpoints are given
  by name has a context, and so a thread, of its own: a name that nobody answers for deafens no
  other, and is not waited for in the end.
- What waits to be heard is bounded, by ZeroMQ's high-water mark. What is dropped beyond is a gap.
"""

from __future__ import annotations

import asyncio
import logging
import select
import selectors
import threading
from collections import deque
from typing import TYPE_CHECKING

from zmq.constants import Event, Flag, SocketOption, SocketType
from zmq.error import Again, ZMQError
from zmq.sugar.context import Context

from kvbench.clock import WallClock
from kvbench.errors import TargetError
from kvbench.kvcache.events import replay_request
from kvbench.zmqfeed.trust_log import TrustLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zmq.sugar.socket import Socket

    from kvbench.kvcache.feed import Replay
    from kvbench.kvcache.ledger import Ledger, Stream
    from kvbench.zmqfeed.sources import EventSource

logger = logging.getLogger(__name__)

_SLICE_S = 0.00025
_REST_S = 0.005
_REPLAY_IDLE_S = 2.0
_SILENCE_S = 5.0
_MOST_WAITING = 20_000  # messages
_LARGEST = 64 * 2**20  # bytes of a message


class _Socket:
    """A ZeroMQ socket on the loop: whenever it can be read, it is read until nothing is left.

    Its file descriptor says only that something has happened to the socket, and whatever is done
    with the socket takes note of that too. So after anything but reading it must be woken by hand.
    """

    def __init__(
        self,
        home: Subscriber,
        context: Context[Socket[bytes]],
        kind: int,
        read: Callable[[list[bytes]], None],
    ) -> None:
        self._news = home.news
        self._read = read
        self.closed = False
        self.raw = context.socket(kind)
        self.raw.setsockopt(SocketOption.LINGER, 0)
        self.raw.setsockopt(SocketOption.RCVHWM, _MOST_WAITING)
        self.raw.setsockopt(SocketOption.MAXMSGSIZE, _LARGEST)
        self.fd: int = self.raw.getsockopt(SocketOption.FD)
        self._news.register(self.fd, selectors.EVENT_READ, self)

    def connect(self, endpoint: str) -> None:
        """Connect to an endpoint.

        Only an address of IPv6 is looked for there. A name may have one too, on which vLLM, that
        listens on IPv4 alone, would not be found.
        """
        self.raw.setsockopt(SocketOption.IPV6, int("[" in endpoint))
        self.raw.connect(endpoint)

    def read_one(self) -> bool:
        """Read a message; return whether there may be more."""
        if self.closed:
            return False
        try:
            frame = self.raw.recv(Flag.NOBLOCK, copy=False)
        except Again:
            return False
        frames = [frame.bytes]
        while frame.more:
            frame = self.raw.recv(Flag.NOBLOCK, copy=False)
            frames.append(frame.bytes)
        self._read(frames)
        return True

    def close(self) -> None:
        """Read no more."""
        if not self.closed:
            self.closed = True
            self._news.unregister(self.fd)
            self.raw.close(0)


class _Ear:
    """An endpoint that is listened to, and the streams that come from there, by topic."""

    def __init__(self, home: Subscriber, source: EventSource) -> None:
        self._home = home
        self.endpoint = source.events
        self.streams: dict[str, Stream] = {}
        self.peers = 0
        self.missed = True  # nobody was ever there, and that is yet to be said
        self._own = source.by_name
        self.context = Context() if self._own else home.context
        self.socket = _Socket(home, self.context, SocketType.SUB, self._heard)
        raw = self.socket.raw
        raw.setsockopt(SocketOption.RECONNECT_IVL_MAX, 2000)
        raw.setsockopt(SocketOption.HEARTBEAT_IVL, 2000)
        raw.setsockopt(SocketOption.HEARTBEAT_TIMEOUT, 6000)
        address = f"inproc://monitor-{id(self)}"
        raw.monitor(address, Event.HANDSHAKE_SUCCEEDED | Event.DISCONNECTED)
        self.monitor = _Socket(home, self.context, SocketType.PAIR, self._noticed)
        self.monitor.raw.connect(address)
        self._befell = select.poll()
        self._befell.register(self.monitor.fd, select.POLLIN)
        try:
            if source.bound:
                raw.bind(source.events)
            else:
                self.socket.connect(source.events)
        except ZMQError as error:
            self.close()
            raise TargetError(
                f"KV events: cannot open {source.events}: {error}",
                hint="an endpoint with * is bound, any other is connected to",
            ) from None

    def listen(self, topic: str, stream: Stream) -> None:
        """Hear a stream."""
        self.streams[topic] = stream
        self.socket.raw.subscribe(topic.encode())
        self._home.wake(self.monitor)
        self._home.wake(self.socket)

    def _heard(self, frames: list[bytes]) -> None:
        """Hand a message to the stream that it belongs to."""
        if self._befell.poll(0):  # what befell the connection comes before what came over it
            while self.monitor.read_one():
                pass
        stream = self.streams.get("")
        if stream is None:
            stream = self.streams.get(frames[0].decode(errors="replace"))
        if stream is not None:
            self._home.heard(stream, frames)

    def _noticed(self, frames: list[bytes]) -> None:
        """Take note of what befell the connection."""
        event = int.from_bytes(frames[0][:2], "little")
        self.peers = max(self.peers + (-1 if event == Event.DISCONNECTED else 1), 0)
        self.missed = self.missed and not self.peers
        for stream in self.streams.values():
            if event == Event.DISCONNECTED:
                self._home.broken(stream)
            else:
                self._home.ask(stream)

    def close(self) -> None:
        """Hear no more."""
        self.socket.raw.disable_monitor()
        self.monitor.close()
        self.socket.close()
        if self._own:
            threading.Thread(target=self.context.term, daemon=True).start()


class _Replaying:
    """A replay under way."""

    def __init__(
        self,
        home: Subscriber,
        context: Context[Socket[bytes]],
        stream: Stream,
        replay: tuple[str, int],
    ) -> None:
        endpoint, start = replay
        self.deadline = home.loop.time() + _REPLAY_IDLE_S
        self.socket = _Socket(
            home, context, SocketType.DEALER, lambda frames: home.replayed(stream, frames)
        )
        self.socket.connect(endpoint)
        self.socket.raw.send_multipart(replay_request(start), Flag.NOBLOCK)
        home.wake(self.socket)


class Subscriber:
    """Follows the KV events of pods.

    Make it on the loop on which it is to run; call `sweep` now and then.

    Args:
        ledger: Who is told.
        now: Seconds, to end slices by: a loop's own may count in whole milliseconds.

    Attributes:
        loop: Where it runs.
        context: Of all sockets whose endpoints are no names.
        news: Says which sockets something has happened to.
    """

    def __init__(self, ledger: Ledger, now: Callable[[], float] = WallClock.now) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = Context()
        self.news = selectors.DefaultSelector()
        self._now = now
        self._ledger = ledger
        self._ears: dict[str, _Ear] = {}
        self._sources: dict[str, EventSource] = {}  # by the stream's name
        self._replays: dict[str, _Replaying] = {}
        self._last_heard: dict[str, float] = {}
        self._awake: deque[_Socket] = deque()
        self._turn: asyncio.Handle | None = None  # the next; None while nothing happens
        self._wait()
        self._trusts = TrustLog(ledger)

    def follow(self, pod: str, source: EventSource) -> None:
        """Begin to follow a pod.

        Raises:
            TargetError: An endpoint cannot be had.
        """
        self.drop(pod)
        can_replay = source.replay is not None
        streams = self._ledger.follow(pod, source.ranks, can_replay=can_replay)
        for rank, stream in enumerate(streams):
            place = source.of_rank(rank)
            ear = self._ears.get(place.events)
            if ear is None:
                try:
                    ear = self._ears[place.events] = _Ear(self, place)
                except TargetError:
                    self.drop(pod)
                    raise
            self._sources[stream.name] = place
            self._last_heard[stream.name] = self.loop.time()
            ear.listen(place.topic, stream)

    def drop(self, pod: str) -> None:
        """Follow a pod no longer, and forget what it holds."""
        for stream in self._ledger.streams.get(pod, ()):
            source = self._sources.pop(stream.name, None)
            if source is None:  # its endpoint could not be had
                continue
            self._end_replay(stream)
            ear = self._ears[source.events]
            ear.streams.pop(source.topic, None)
            if not ear.streams:
                self._ears.pop(source.events).close()
        self._ledger.drop(pod)

    def sweep(self) -> None:
        """Give up replays that say nothing; ask where nothing has been heard for a while."""
        now = self.loop.time()
        for streams in self._ledger.streams.values():
            for stream in streams:
                replay = self._replays.get(stream.name)
                if replay is not None and replay.deadline < now:
                    self._end_replay(stream)
                    self._ask_for(stream, self._ledger.replay_ended(stream))
                elif self._last_heard[stream.name] < now - _SILENCE_S:
                    self._after_silence(stream)
        self._trusts.tell()

    def close(self) -> None:
        """Close every socket; again is no harm."""
        if self.context.closed:
            return
        for pod in tuple(self._ledger.streams):
            self.drop(pod)
        if self._turn is not None:
            self._turn.cancel()
        self.loop.remove_reader(self.news.fileno())
        self.news.close()
        self.context.destroy(0)

    # What sockets tell.

    def wake(self, socket: _Socket) -> None:
        """Read a socket soon."""
        self._awake.append(socket)
        if self._turn is None:
            self._begin()

    def heard(self, stream: Stream, frames: Sequence[bytes]) -> None:
        """Take a message of the live stream."""
        self._last_heard[stream.name] = self.loop.time()
        self._ask_for(stream, self._ledger.published(stream, frames))

    def replayed(self, stream: Stream, frames: Sequence[bytes]) -> None:
        """Take a message of a replay."""
        replay = self._replays[stream.name]
        replay.deadline = self.loop.time() + _REPLAY_IDLE_S
        orders = self._ledger.replayed(stream, frames)
        if not stream.feed.replaying or orders:
            self._end_replay(stream)
        self._ask_for(stream, orders)

    def ask(self, stream: Stream) -> None:
        """Ask for what comes next, in case it has come already."""
        self._last_heard[stream.name] = self.loop.time()
        self._ask_for(stream, self._ledger.ask(stream))

    def broken(self, stream: Stream) -> None:
        """Take note that the connection to a publisher broke: it may be another one now."""
        logger.warning("%s: the connection to its KV events broke", stream.name)
        self._end_replay(stream)
        reason = "the connection to its KV events broke"
        self._ask_for(stream, self._ledger.broken(stream, reason))

    # Inside.

    def _wait(self) -> None:
        """Do nothing until something happens."""
        self._turn = None
        self.loop.add_reader(self.news.fileno(), self._begin)

    def _begin(self) -> None:
        """Look at the sockets, now and after each rest, until nothing happens any more."""
        self.loop.remove_reader(self.news.fileno())
        self._turn = self.loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Read what there is, for as long as a slice; then let requests have their turn."""
        awake, until = self._awake, self._now() + _SLICE_S
        if not awake:
            awake.extend(key.data for key, _ in self.news.select(0))
        if not awake:
            self._wait()
            return
        while awake:
            if not awake[0].read_one():
                awake.popleft()
            elif self._now() > until:
                awake.rotate(-1)
                self._turn = self.loop.call_soon(self._drain)
                return
        self._turn = self.loop.call_later(_REST_S, self._drain)

    def _ask_for(self, stream: Stream, replays: Sequence[Replay]) -> None:
        """Carry out the last of these replays: each one makes those before it void."""
        source = self._sources[stream.name]
        if replays and source.replay is not None:
            self._end_replay(stream)
            wanted = source.replay, replays[-1].start
            context = self._ears[source.events].context
            self._replays[stream.name] = _Replaying(self, context, stream, wanted)

    def _after_silence(self, stream: Stream) -> None:
        """Ask what was missed, if anybody can be heard at all; else say once that nobody can."""
        ear = self._ears[self._sources[stream.name].events]
        if ear.peers:
            self.ask(stream)
        elif ear.missed:
            ear.missed = False
            logger.warning(
                "%s: nobody is at %s, so its KV events are not heard; of a pod and this end, one "
                "must have a * for its host, the other must not",
                stream.name,
                ear.endpoint,
            )

    def _end_replay(self, stream: Stream) -> None:
        """Hear no more of a replay."""
        replay = self._replays.pop(stream.name, None)
        if replay is not None:
            replay.socket.close()
