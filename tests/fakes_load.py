"""Fakes of what surrounds the dispatcher: virtual time, a sender without sockets, a desk.

Nothing here waits: `VirtualTimers.run` goes from callback to callback.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvbench.clock import VirtualClock
from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment


@dataclass
class _Entry:
    """A callback to come."""

    when: float
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        """Do not call back."""
        self.callback = None


class VirtualTimers:
    """Timers of a virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, _Entry]] = []
        self._order = itertools.count()

    def call_at(self, when: float, callback: Callable[[], None]) -> _Entry:
        """Call back when the clock gets to `when`."""
        entry = _Entry(max(when, self._clock.now()), callback)
        heapq.heappush(self._heap, (entry.when, next(self._order), entry))
        return entry

    def run(self, until: float = float("inf"), most: int = 20_000) -> None:
        """Call back until nothing is left, or the time has come."""
        for _ in range(most):
            if not self._heap or self._heap[0][0] > until:
                return
            when, _, entry = heapq.heappop(self._heap)
            if entry.callback is not None:
                self._clock.advance_to(when)
                entry.callback()
        raise AssertionError("it never ends")


@dataclass
class FakeReply:
    """What the dispatcher looks at in a reply."""

    sent: float | None = None
    end: float | None = None
    failure: tuple[str, str] | None = None
    unread: int = 0
    parsed: int = 0

    def relieve(self):
        """Parse what has come, if something has."""
        found, self.unread = self.unread, 0
        self.parsed += found
        return found > 0


@dataclass
class FakeSender:
    """Answers each request after a time of its own, or never.

    Attributes:
        latency: By request: seconds until the answer, None for never.
        posted: What was posted when, in order.
        reserved: The counts that were asked for.
    """

    clock: VirtualClock
    timers: VirtualTimers
    latency: Callable[[bytes], float | None]
    posted: list[tuple[float, bytes]] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    open: dict[int, tuple[FakeReply, Callable]] = field(default_factory=dict)

    def post(self, request, reply, on_end):
        """Send at once."""
        reply.sent = self.clock.now()
        self.posted.append((reply.sent, request))
        self.open[id(reply)] = (reply, on_end)
        latency = self.latency(request)
        if latency is not None:
            self.timers.call_at(reply.sent + latency, lambda: self._end(reply))

    def reserve(self, count):
        """Note what is asked for."""
        self.reserved.append(count)

    def abort(self, message):
        """Cut everything."""
        for reply, _ in list(self.open.values()):
            reply.failure = ("cut", message)
            self._end(reply)

    def _end(self, reply):
        """End a reply that is still open."""
        if id(reply) in self.open:
            _, on_end = self.open.pop(id(reply))
            reply.end = self.clock.now()
            on_end(reply)


@dataclass
class FakeDesk:
    """Builds a request as the turn's index in bytes, and keeps what is filed."""

    clock: VirtualClock
    built: dict[int, float] = field(default_factory=dict)
    filed: list[tuple[int, float, FakeReply | None]] = field(default_factory=list)

    def request(self, turn):
        """Build."""
        self.built[turn.index] = self.clock.now()
        return str(turn.index).encode()

    def reply(self):
        """Return an empty reply."""
        return FakeReply()

    def file(self, turn, intended, reply):
        """Keep."""
        self.filed.append((turn.index, intended, reply))


def turn(
    index: int, *, session: str, number: int = 1, at: float | None = None, think: float = 0.0
) -> PlannedTurn:
    """Return a turn with a short prompt of its own."""
    return PlannedTurn(
        index=index,
        session=session,
        turn=number,
        group="g",
        at=at,
        think=think,
        messages=(Message("user", (Segment(f"s/{session}/{number}", 4),)),),
        max_tokens=4,
        answer_key=f"a/{session}/{number}",
    )


def plan(*turns: PlannedTurn, history="planned") -> Plan:
    """Return a plan of these turns."""
    return Plan("test", 0, "chat", history, turns)


def conversations(sessions: int, turns: int, *, every: float, think: float, **more) -> Plan:
    """Return a plan of conversations that begin `every` seconds; each turn repeats the others."""
    order = [(s, t) for t in range(1, turns + 1) for s in range(sessions)]
    whole = []
    said: dict[int, tuple[Message, ...]] = {}
    for i, (s, t) in enumerate(order):
        asked = turn(i, session=f"s{s}", number=t, at=s * every if t == 1 else None, think=think)
        asked = replace(asked, messages=(*said.get(s, ()), *asked.messages))
        answer = Message("assistant", (Segment(asked.answer_key, asked.max_tokens),))
        said[s] = (*asked.messages, answer)
        whole.append(asked)
    return plan(*whole, **more)
