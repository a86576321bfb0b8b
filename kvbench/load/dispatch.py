"""The dispatcher: every turn at its time, and exactly one record for each.

It is open-loop: a turn is sent when the schedule says so. What it does beside sending is arranged
so that it makes nothing late:

- Requests are built ahead, in idle time: turns with a known time up to `HORIZON` before it, turns
  that wait for an answer as soon as they can be known. What is not ready when it is due is built
  then. At most `READY_BYTES` lie ready.
- Answers are parsed and recorded in idle time, too; at most `BACKLOG` wait for it. What has come of
  those that are still on their way is parsed when nothing else is to be done.
- Idle is when nothing is due within `GUARD`. One thing is done at a time, so a read or a send
  that comes up waits for one of them at most.
- At most `max_in_flight` turns are open. A turn that finds no room is sent as soon as there is,
  keeps its intended time, and so shows as late.

When it is stopped, turns that were sent and not answered end as "cut" (they were sent, and their
answer has no end), and all others as "not_sent".

It knows no event loop and no socket: the clock, timers, the sender and the recorder are given.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvbench.workload.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.clock import Clock
    from kvbench.load.reply import Reply
    from kvbench.load.witness import Witness
    from kvbench.workload.plan import Plan, PlannedTurn

HORIZON = 2.0  # seconds before its time that a request is built, and a connection opened
GUARD = 0.001  # seconds before a due turn in which nothing else is begun
BACKLOG = 2048  # answers that wait to be recorded; each keeps at most reply.KEEP_BYTES
LOOKED_AT = 4  # open replies that are looked at for something to parse, one after the other
READY_BYTES = 64 * 1024 * 1024
ROUNDING = 1e-9  # seconds that sums of floats may be off by
PULSE = 0.01  # seconds between two looks at the time


class Timer(Protocol):
    """A callback to come."""

    def cancel(self) -> None:
        """Do not call back."""
        ...


class Timers(Protocol):
    """Calls back at a time, never before it returns."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at `when` on the clock, at once if that has passed."""
        ...


class Sender(Protocol):
    """Sends requests: `kvbench.load.client.Client`, or a fake."""

    def post(self, request: bytes, reply: Reply, on_end: Callable[[Reply], None]) -> None:
        """Send now; call `on_end` once the reply is complete or has failed."""
        ...

    def reserve(self, count: int) -> None:
        """Be ready for `count` posts."""
        ...

    def abort(self, message: str) -> None:
        """End everything under way."""
        ...


class Desk(Protocol):
    """Writes requests and files answers: `kvbench.load.desk.Desk`, or a fake."""

    def request(self, turn: PlannedTurn) -> bytes:
        """Return the bytes to send; in "answers" history after all earlier turns were filed."""
        ...

    def reply(self) -> Reply:
        """Return an empty reply."""
        ...

    def file(self, turn: PlannedTurn, intended: float, reply: Reply | None) -> None:
        """Record what became of a turn; None: it was not sent."""
        ...


class Dispatcher:
    """Sends one plan, or one worker's part of it.

    Args:
        plan: What to send.
        start: Second 0 of the run, on the clock.
        clock: The clock.
        timers: Of the same clock.
        sender: Sends.
        desk: Builds and records.
        witness: Is told how late things were.
        max_in_flight: Most turns open at once.
        on_finished: Called once, when every turn has its record.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        start: float,
        clock: Clock,
        timers: Timers,
        sender: Sender,
        desk: Desk,
        witness: Witness,
        max_in_flight: int,
        on_finished: Callable[[], None],
    ) -> None:
        self._start = start
        self._clock = clock
        self._timers = timers
        self._sender = sender
        self._desk = desk
        self._witness = witness
        self._max_in_flight = max_in_flight
        self._on_finished = on_finished
        self._from_answers = plan.history == "answers"
        self._schedule = Schedule(plan)
        self._ahead = [(due, turn.index, turn) for due, turn in self._schedule.timed()]
        self._ready: dict[int, bytes] = {}
        self._ready_bytes = 0
        self._ready_timed = 0
        self._open: dict[int, Reply] = {}  # by index of the turn; parsed longest ago first
        self._held: deque[tuple[float, PlannedTurn]] = deque()
        self._answered: deque[tuple[float, PlannedTurn, Reply]] = deque()
        self._in_flight = 0
        self._stopped = False
        self._finished = False
        self._due_timer: Timer | None = None
        self._idle_timer: Timer | None = None
        self._pulse_timer: Timer | None = None

    def begin(self) -> None:
        """Begin: call this before the start, so that the first requests can be built."""
        self._pulse(None)
        self._arm()

    def stop(self, message: str) -> None:
        """End now; every turn without a record gets one, with `message` for those under way."""
        if self._stopped:
            return
        self._stopped = True
        self._sender.abort(message)
        while self._answered:
            self._file(*self._answered.popleft())
        for due, turn in self._held:
            self._desk.file(turn, due, None)
            self._schedule.end(turn, due)
        for due, turn in self._schedule.take_rest():
            self._desk.file(turn, due, None)
        self._finish()

    def abandon(self) -> None:
        """End now, without records: what writes them is broken."""
        self._stopped = True
        self._sender.abort("the run broke off")
        self._answered.clear()
        self._finish()

    def _now(self) -> float:
        """Return the second of the run."""
        return self._clock.now() - self._start

    # Sending.

    def _arm(self) -> None:
        """Wake up when the next turn is due."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        due = self._schedule.next_due
        if due is not None and not self._stopped:
            self._due_timer = self._timers.call_at(self._start + due, self._send_due)

    def _send_due(self) -> None:
        """Send what is due, and wake up for the next."""
        self._due_timer = None
        if self._stopped:
            return
        for due, turn in self._schedule.take(self._now() + ROUNDING):
            self._witness.due += 1
            if self._in_flight < self._max_in_flight:
                self._send(due, turn)
            else:
                self._held.append((due, turn))
                self._witness.held_back()
        self._arm()
        self._when_idle()

    def _send(self, due: float, turn: PlannedTurn) -> None:
        """Send one turn."""
        request = self._ready.pop(turn.index, None)
        if request is None:
            self._witness.built_late()
            request = self._build(turn)
        else:
            self._ready_bytes -= len(request)
            self._ready_timed -= turn.at is not None
        self._in_flight += 1
        self._witness.begun += 1
        self._witness.opened(self._in_flight)
        reply = self._open[turn.index] = self._desk.reply()
        self._sender.post(request, reply, partial(self._on_end, due, turn))
        if not self._from_answers:
            self._look_ahead(turn)

    def _build(self, turn: PlannedTurn) -> bytes:
        """Build a request that is due; the answers that its text repeats are filed first."""
        if self._from_answers:
            answers = [
                entry
                for entry in self._answered
                if entry[1].session == turn.session or entry[1].index in turn.after
            ]
            for entry in answers:
                self._answered.remove(entry)
                self._file(*entry)
        return self._desk.request(turn)

    def _look_ahead(self, turn: PlannedTurn) -> None:
        """Have the requests built that follow on `turn`: their text is known, their time is not."""
        for follower in self._schedule.followers(turn):
            if not (self._from_answers and self._schedule.waits(follower)):
                entry = (self._now() + follower.think, follower.index, follower)
                heapq.heappush(self._ahead, entry)

    def _on_end(self, due: float, turn: PlannedTurn, reply: Reply) -> None:
        """Hear that a turn has been answered, or has failed."""
        assert reply.end is not None
        self._in_flight -= 1
        del self._open[turn.index]
        self._witness.opened(self._in_flight)
        self._answered.append((due, turn, reply))
        self._schedule.end(turn, reply.end - self._start)
        if self._stopped:
            return
        if self._held:
            self._send(*self._held.popleft())
        if len(self._answered) > BACKLOG:
            self._file(*self._answered.popleft())
        self._arm()
        self._when_idle()

    # What is done in idle time.

    def _pulse(self, expected: float | None) -> None:
        """Look at the time: how late is this call, and has anything come within the horizon?"""
        now = self._clock.now()
        if expected is not None:
            self._witness.ticked(now - expected)
        if not self._finished:
            then = now + PULSE
            self._pulse_timer = self._timers.call_at(then, partial(self._pulse, then))
            self._when_idle()

    def _when_idle(self) -> None:
        """See that `_work` is called soon."""
        if self._idle_timer is None and not self._finished:
            self._idle_timer = self._timers.call_at(self._clock.now(), self._work)

    def _work(self) -> None:
        """Do one thing, if there is one and there is time for it, and come back for the next."""
        self._idle_timer = None
        if self._stopped:
            return
        due = self._schedule.next_due
        if due is not None and due - self._now() < GUARD:
            return  # sending comes first, and calls for this again
        if self._answered:
            self._file(*self._answered.popleft())
        elif not self._prepare_next():
            if not (self._in_flight or self._held or self._schedule):
                self._finish()
                return
            if not self._relieve():
                return
        self._when_idle()

    def _file(self, due: float, turn: PlannedTurn, reply: Reply) -> None:
        """Record one answer."""
        if reply.sent is not None:
            self._witness.sent(reply.sent - self._start - due)
        self._desk.file(turn, due, reply)
        if self._from_answers and not self._stopped:
            self._look_ahead(turn)

    def _relieve(self) -> bool:
        """Parse what has come of one open reply; return whether there was one with enough of it."""
        for _ in range(min(LOOKED_AT, len(self._open))):
            index = next(iter(self._open))
            reply = self._open[index] = self._open.pop(index)  # from the front to the back
            if reply.relieve():
                return True
        return False

    def _prepare_next(self) -> bool:
        """Build the next request that is due before long; return whether there was one."""
        horizon = self._now() + HORIZON
        while self._ahead and self._ahead[0][0] <= horizon and self._ready_bytes < READY_BYTES:
            _, index, turn = heapq.heappop(self._ahead)
            untimely = self._from_answers and turn.at is not None and turn.turn > 1
            if turn not in self._schedule or index in self._ready or untimely:
                continue
            request = self._desk.request(turn)
            self._ready[index] = request
            self._ready_bytes += len(request)
            if turn.at is not None:
                self._ready_timed += 1
                self._sender.reserve(self._ready_timed)
            return True
        return False

    def _finish(self) -> None:
        """Say once that it is over."""
        if self._finished:
            return
        self._finished = True
        for timer in (self._due_timer, self._idle_timer, self._pulse_timer):
            if timer is not None:
                timer.cancel()
        self._on_finished()
