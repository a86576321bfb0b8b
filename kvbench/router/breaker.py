"""When a pod that fails is left alone, and when it is tried again. Pure; time is an argument.

Rules:

- Three failures in a row open the breaker; a success closes it.
- Open, it allows nothing for a pause: one second, twice as long after each failed trial, at most
  thirty. Failures of requests that were under way when it opened do not lengthen the pause.
- After the pause it allows one request at a time, a trial; what has been under way since before it
  opened is none, and may take long. A trial that is answered closes it on probation: until a
  request has been answered in full, one failure opens it again.

An answer of 5xx is a failure too: a pod that fails fast has nothing in flight, and would otherwise
attract all the traffic that it cannot serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FAILURES: Final = 3
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(slots=True)
class Breaker:
    """The state of one pod's breaker.

    Attributes:
        failures: In a row, so far.
        pause_s: How long it was last open for; 0 while closed.
        until: When the pause ends, seconds.
        sent: Requests that the pod had been sent when it began.
    """

    failures: int = 0
    pause_s: float = 0.0
    until: float = 0.0
    sent: int = 0

    @property
    def closed(self) -> bool:
        """Whether traffic flows."""
        return self.failures < _FAILURES

    def state(self, now: float) -> int:
        """Return 0 closed, 1 open, 2 open and ready for a trial."""
        return 0 if self.closed else 1 if now < self.until else 2

    def allows(self, now: float, in_flight: int, sent: int) -> bool:
        """Return whether another request may be sent.

        Args:
            now: Seconds.
            in_flight: Requests of the pod's under way.
            sent: Requests that it has been sent.
        """
        return self.closed or (now >= self.until and (in_flight == 0 or sent == self.sent))

    def failed(self, now: float, sent: int) -> bool:
        """Take note of a failure of a pod that has been sent so many requests.

        Return whether a pause begins with it.
        """
        self.failures += 1
        begins = not self.closed and now >= self.until
        if begins:
            self.pause_s = min(max(2 * self.pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self.until = now + self.pause_s
            self.sent = sent
        return begins

    def answered(self) -> None:
        """Take note of the beginning of an answer."""
        self.failures = min(self.failures, _FAILURES - 1)

    def succeeded(self) -> None:
        """Take note of an answer in full, or a sign of life from elsewhere: close."""
        self.failures = 0
        self.pause_s = self.until = 0.0
        self.sent = 0
