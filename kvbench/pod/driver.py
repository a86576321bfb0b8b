"""Runs an engine against the clock: a step begins, its time passes, its tokens are handed out.

Rules:

- Steps follow one another on the engine's own time line: each begins where the one before ended,
  whatever the machine did meanwhile. What is late is handed out at once, and the next step is not
  later for it: errors do not add up.
- A time line that is more than `MAX_BEHIND` behind the clock (the machine slept, or cannot keep
  up) jumps forward, and the jump is counted.
- A pod that cannot keep up says so: `Lateness` holds how far behind tokens were handed out.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.clock import Clock
    from kvbench.engine.scheduler import Engine
    from kvbench.engine.values import EngineRequest, StepResult, TokenOutput

    Receiver = Callable[[TokenOutput, float], None]

logger = logging.getLogger(__name__)

MAX_BEHIND = 1.0
"""Seconds that the time line may be behind the clock."""

_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(slots=True)
class Lateness:
    """How late steps were handed out.

    Attributes:
        steps: How many there were.
        total_s: Sum of their lateness.
        worst_s: The latest.
        jumps: How often the time line was moved forward.
        within: Steps that were at most so many seconds late, by bound.
    """

    steps: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0
    jumps: int = 0
    within: dict[float, int] = field(default_factory=lambda: dict.fromkeys(_BOUNDS, 0))

    def add(self, late_s: float) -> None:
        """Count a step."""
        self.steps += 1
        self.total_s += late_s
        self.worst_s = max(self.worst_s, late_s)
        for bound in _BOUNDS:
            if late_s <= bound:
                self.within[bound] += 1
                return

    def summary(self) -> dict[str, object]:
        """Return it for people: how many steps, and how late they were."""
        mean = self.total_s / self.steps if self.steps else 0.0
        return {
            "steps": self.steps,
            "mean_s": round(mean, 6),
            "worst_s": round(self.worst_s, 6),
            "jumps": self.jumps,
            "steps_by_lateness_s": {str(bound): count for bound, count in self.within.items()},
        }


class StepObserver(Protocol):
    """Is told about steps."""

    def step_began(self, result: StepResult) -> None:
        """Take note of what a step will do; its tokens are not due yet."""
        ...

    def step_done(self, result: StepResult) -> None:
        """Take note of a step whose tokens have been handed out."""
        ...


class Driver:
    """Drives one engine.

    Args:
        engine: What is driven.
        clock: Against what.
        observer: Who is told about each step.
    """

    def __init__(self, engine: Engine, clock: Clock, observer: StepObserver) -> None:
        self.engine = engine
        self.lateness = Lateness()
        self._clock = clock
        self._observer = observer
        self._receivers: dict[str, Receiver] = {}
        self._wake = asyncio.Event()

    def submit(self, request: EngineRequest, receive: Receiver) -> None:
        """Queue a request; `receive` gets its outputs, and when they were due.

        Raises:
            InputError: The engine refuses it.
        """
        self.engine.add(request)
        self._receivers[request.id] = receive
        self._wake.set()

    def cancel(self, request_id: str) -> None:
        """End a request now; its receiver hears nothing more, and it keeps no blocks."""
        self._receivers.pop(request_id, None)
        self.engine.abort(request_id)
        self._wake.set()

    async def run(self) -> None:
        """Drive until cancelled."""
        now = self._clock.now()
        while True:
            if not self.engine.has_work:
                self._wake.clear()
                await self._wake.wait()
                now = self._clock.now()
            result = self.engine.step(now)
            if not result.scheduled_tokens:  # nothing fits until something changes
                self._wake.clear()
                await self._wake.wait()
                now = self._clock.now()
                continue
            self._observer.step_began(result)
            await self._until(result.ends)
            self._hand_out(result)
            now = self._next_begin(result.ends)

    async def _until(self, moment: float) -> None:
        """Let other work run until `moment`, and once in any case."""
        await asyncio.sleep(max(0.0, moment - self._clock.now()))

    def _hand_out(self, result: StepResult) -> None:
        """Give each request its tokens."""
        for output in result.outputs:
            receive = self._receivers.get(output.request_id)
            if receive is None:
                continue
            if output.finish_reason is not None:
                del self._receivers[output.request_id]
            try:
                receive(output, result.ends)
            except Exception:
                logger.exception("request %s: its answer could not be sent", output.request_id)
                self.cancel(output.request_id)
        self._observer.step_done(result)

    def _next_begin(self, ends: float) -> float:
        """Return where the next step begins, and count how late this one was."""
        late = max(0.0, self._clock.now() - ends)
        self.lateness.add(late)
        if late <= MAX_BEHIND:
            return ends
        self.lateness.jumps += 1
        return self._clock.now()
