"""What to believe of one pod's stream of KV events: a state machine over sequence numbers.

A publisher numbers its batches from 0 and keeps the last few thousand for replay. Messages may get
lost, come twice, or begin anew with 0 because the engine was restarted. The feed is told what came
in on either socket and answers with orders, in the order in which they must be carried out; it
opens no socket itself. A replay's answers belong to the order that asked for it: whoever carries
orders out uses a fresh socket for each replay, and gives up on one when the next is ordered.

- The next number in turn is applied, whatever else is under way.
- A number too high is a gap: a replay of what is missing is ordered, and what is beyond the gap
  waits. The first contact is a gap from 0, unless it is batch 0.
- The last batch before a silence may be lost too, and no gap shows it. So whoever carries orders
  out asks now and then, and at the start: `ask` orders a replay of what comes next, which brings
  nothing but its end if nothing is missing.
- A live number that does not exceed the last live one means that the engine was restarted: forget
  the pod. A live number that the replay has already brought is skipped, if it is the same batch; if
  not, it is another engine's.
- A replay with a hole in it has lost something on its way: a publisher sends as fast as it can, and
  its socket drops what it has no room for. The rest is asked for anew, as long as that gets on.
- What no replay can bring is lost for good. Then the pod is forgotten, because a lost removal would
  be believed for ever, and counts as degraded: what is known of it is true but not complete. It
  stays so until its cache is cleared: no event says what is there, and a block that was stored in
  a lost batch can be used for ever without a word, whatever becomes of those that are known.

Trust: *cold* while nothing is known, *exact* while every batch since the pod's start, or since it
last cleared its cache, was applied, *degraded* otherwise, and as long as a gap is open or a replay
was left unanswered. It comes with a reason for people.

A restart that skips straight past the last number cannot be seen in numbers alone. Whoever notices
that the connection broke calls `broken`: the next replay begins one batch early, and the engine is
the same if that batch is the one that was applied last, byte for byte (each bears its time). Until
then nothing more is applied. Whoever knows that the process is another one calls `restarted`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec
from xxhash import xxh3_64_intdigest

from kvbench.kvcache.events import END_OF_REPLAY

if TYPE_CHECKING:
    from kvbench.kvcache.events import Message

TrustLevel: TypeAlias = Literal["cold", "degraded", "exact"]

LEVELS: tuple[TrustLevel, ...] = get_args(TrustLevel)
"""From the least to the most."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How far the index may be believed about a pod, and why."""

    level: TrustLevel
    reason: str


_MOST_RECENT = 1000  # batches that are recognised when they come again

_MENDED = "until its cache is reset (POST /reset_prefix_cache) or it is restarted"
_NO_SOCKET = "it has no replay socket (replay= of --pod)"
_NOT_KEPT = "no replay brought them (buffer_steps in its --kv-events-config says how many it keeps)"

_NOTHING = Trust("exact", "nothing was published yet")
_EVERYTHING = Trust("exact", "every batch since the pod's start")


class Apply(msgspec.Struct, frozen=True, gc=False):
    """Decode this payload and apply it to the index."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop everything that the index knows of the pod.

    Attributes:
        reason: Why.
        empty: Whether the pod is known to hold nothing; else it is unknown what it holds.
    """

    reason: str
    empty: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Replay:
    """Ask the publisher for all batches from number `start` on."""

    start: int


Order: TypeAlias = Apply | Forget | Replay


class EventFeed:
    """The state of one publisher: a pod, or one data-parallel rank of it.

    Args:
        can_replay: Whether there is a replay socket. Without one every gap is a loss.
        most_pending: Live messages kept while a replay is under way; beyond that they are dropped
            and asked for again.

    Attributes:
        gaps: How often a number was missing.
        lost: Batches that no replay could bring.
        restarts: How often the engine began anew.
    """

    def __init__(self, *, can_replay: bool = True, most_pending: int = 10_000) -> None:
        self._trust = Trust("cold", "no batch yet")
        self.gaps = 0
        self.lost = 0
        self.restarts = 0
        self._can_replay = can_replay
        self._most_pending = most_pending
        self._next = 0
        self._last_live = -1
        self._last_payload: bytes | None = None
        self._pending: dict[int, bytes] = {}
        self._replay_from: int | None = None
        self._missing_until = 0
        self._unanswered = False
        self._latest: bytes | None = None  # the batch that was applied last
        # Numbers and digests of the last ones, by the number's remainder.
        self._recent: dict[int, tuple[int, int]] = {}
        self._doubted = False

    @property
    def trust(self) -> Trust:
        """How far the pod's part of the index may be believed."""
        if self._trust.level != "exact":
            return self._trust
        if self._doubted:
            return Trust("degraded", "its connection broke, and it may be another engine")
        if self._next <= self._last_live:
            return Trust("degraded", f"batch {self._next} is missing and asked for")
        if self._unanswered:
            return Trust("degraded", "the replay socket does not answer")
        return self._trust

    @property
    def replaying(self) -> bool:
        """Whether a replay was ordered and has not ended."""
        return self._replay_from is not None

    def ask(self) -> list[Order]:
        """Order a replay of whatever comes next: at the start, and after a silence."""
        if not self._can_replay or self.replaying:
            return []
        return [self._order_replay()]

    def broken(self, reason: str) -> list[Order]:
        """Take note that the connection broke: another engine may answer at the same place."""
        if self._latest is None or not self._can_replay:
            return self.restarted(reason)
        self._doubted = True
        self._replay_from = None
        return []

    def published(self, message: Message) -> list[Order]:
        """Take a message of the live stream."""
        orders: list[Order] = []
        if message.seq <= self._last_live:
            if message.payload == self._last_payload:
                return orders
            orders += self.restarted("sequence numbers began anew")
        self._last_live, self._last_payload = message.seq, message.payload
        if message.seq < self._next:
            known = self._recent.get(message.seq % _MOST_RECENT)
            if known == (message.seq, xxh3_64_intdigest(message.payload)):
                return orders
            orders += self.restarted("sequence numbers began anew")
            self._last_live, self._last_payload = message.seq, message.payload
        if len(self._pending) < self._most_pending:
            self._pending[message.seq] = message.payload
        return orders if self._doubted else orders + self._proceed()

    def replayed(self, message: Message) -> list[Order]:
        """Take a message of the replay; its end is one with the number -1."""
        if self._doubted and self.replaying:
            return self._recognize(message)
        if message.seq == END_OF_REPLAY:
            return self.replay_ended(answered=True)
        if message.seq < self._next or self._replay_from is None:
            return []
        if message.seq > self._next > self._replay_from:
            return [self._order_replay()]
        orders = self._lose_until(message.seq) if message.seq > self._next else []
        return [*orders, self._apply(message.payload)]

    def replay_ended(self, *, answered: bool = False) -> list[Order]:
        """Take note that nothing more will come: the end was reached, or waiting for it was.

        If the replay brought nothing of what was missing when it was ordered, that is lost. If it
        came to its end and there never was a batch, the pod has cached nothing yet, and that is all
        there is to know.
        """
        start, self._replay_from = self._replay_from, None
        if start is None:
            return []
        self._unanswered = not answered
        if self._doubted:
            return []
        if answered and self._next == 0 and not self._pending and self._trust.level == "cold":
            self._trust = _NOTHING
        self._pending = {seq: data for seq, data in self._pending.items() if seq >= self._next}
        orders: list[Order] = []
        if start == self._next < self._missing_until:
            orders += self._lose_until(self._missing_until)
        return orders + self._proceed()

    def _recognize(self, message: Message) -> list[Order]:
        """Tell by its first replayed message whether an engine is the one that was known."""
        if message.seq == self._next - 1 and message.payload == self._latest:
            self._doubted = False
            return []
        return [*self.restarted("another engine answers"), self._order_replay()]

    def restarted(self, reason: str = "the pod was restarted") -> list[Order]:
        """Take note that the engine is a new one: its cache is empty, its numbers begin at 0."""
        self.restarts += 1
        self._next = 0
        self._last_live = -1
        self._pending.clear()
        self._replay_from = None
        self._unanswered = self._doubted = False
        self._latest = None
        self._recent.clear()
        self._trust = Trust("cold", reason)
        return [Forget(reason, empty=True)]

    def spoiled(self, reason: str) -> list[Order]:
        """Take note that a batch could not be read: what it said is lost."""
        self.lost += 1
        self._trust = Trust("degraded", f"{reason}; {_MENDED}")
        return [Forget(reason)]

    def cleared(self) -> None:
        """Take note that the pod cleared its cache: from here on everything is known again."""
        self._trust = Trust("exact", "every batch since the cache was cleared")

    def _proceed(self) -> list[Order]:
        """Apply what waits and is in turn; order a replay of what is missing before the rest."""
        orders: list[Order] = []
        while self._next in self._pending:
            orders.append(self._apply(self._pending.pop(self._next)))
        if not self._pending or self.replaying:
            return orders
        self.gaps += 1
        if not self._can_replay:
            return orders + self._lose_until(min(self._pending)) + self._proceed()
        return [*orders, self._order_replay()]

    def _order_replay(self) -> Order:
        """Ask for all from the next batch on; note up to which of them something is missing."""
        self._replay_from = self._next - self._doubted
        self._missing_until = min(self._pending, default=self._next)
        return Replay(self._replay_from)

    def _apply(self, payload: bytes) -> Order:
        """Count a batch as applied."""
        self._recent[self._next % _MOST_RECENT] = self._next, xxh3_64_intdigest(payload)
        self._next += 1
        self._latest = payload
        if self._trust.level == "cold" or self._trust is _NOTHING:
            self._trust = _EVERYTHING
        return Apply(payload)

    def _lose_until(self, seq: int) -> list[Order]:
        """Give up the batches before number `seq`."""
        reason = f"batches {self._next} to {seq - 1} are lost"
        self.lost += seq - self._next
        self._next = seq
        self._latest = None
        why = _NOT_KEPT if self._can_replay else _NO_SOCKET
        self._trust = Trust("degraded", f"{reason} {_MENDED}: {why}")
        return [Forget(reason)]
