"""A pod in virtual time: an engine, and when what it is doing will be done.

A pod does one thing at a time: a step of its engine, or a *stretch* of steps in which everybody
decodes, which is computed in one go. A request that arrives during a step is seen by the next one;
one that arrives during a stretch cuts it to the steps that have begun. So skipping changes nothing
but the time that a simulation takes.

Whoever drives it calls `begin` when it may begin something, waits until `wake`, and calls `finish`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.scheduler import Engine
from kvbench.policies.pod_state import PodState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.engine.timing import StepTime
    from kvbench.engine.values import EngineConfig, EngineRequest, TokenOutput
    from kvbench.kvcache.blocks import Chain

_SHORTEST = 4  # steps of a stretch: fewer are quicker one by one


class VirtualPod:
    """One pod.

    Args:
        name: Its name.
        config: Its engine's settings.
        time: How long its steps take.
        skip: Whether stretches are computed in one go.

    Attributes:
        engine: Its engine.
        state: What a router knows of it.
        wake: When what it does now will be done, seconds; None while it does nothing.
    """

    __slots__ = ("_outputs", "_skip", "_stretch", "_time", "engine", "state", "wake")

    def __init__(self, name: str, config: EngineConfig, time: StepTime, *, skip: bool) -> None:
        self.engine = Engine(config, time)
        self.state = PodState(name)
        self.wake: float | None = None
        self._time = time
        self._skip = skip
        self._outputs: tuple[TokenOutput, ...] = ()
        # When the stretch began, and when each of its steps ends.
        self._stretch: NDArray[np.float64] | None = None

    def add(self, request: EngineRequest, chain: Chain, now: float) -> None:
        """Queue a request; a stretch under way ends with the step that is under way."""
        self.engine.add(request, chain)
        if self._stretch is not None:
            begun = max(int(np.searchsorted(self._stretch[:-1], now)), 1)
            self._stretch = self._stretch[: begun + 1]
            self.wake = float(self._stretch[-1])

    def begin(self, now: float) -> bool:
        """Begin what is next; False if there is nothing, or something is under way."""
        if self.wake is not None or not self.engine.has_work:
            return False
        steps = self.engine.plain_steps() if self._skip else 0
        if steps >= _SHORTEST:
            self._stretch = self._ends(now, steps)
            self.wake = float(self._stretch[-1])
        else:
            result = self.engine.step(now)
            self._outputs, self.wake = result.outputs, result.ends
        return True

    def finish(self) -> tuple[TokenOutput, ...]:
        """End what was under way; return what it brought, the tokens of a stretch left out."""
        outputs, self._outputs, self.wake = self._outputs, (), None
        if self._stretch is not None:
            self.engine.decode(len(self._stretch) - 1)
            self._stretch = None
        return outputs

    def _ends(self, now: float, steps: int) -> NDArray[np.float64]:
        """Return `now`, and the ends of so many steps, added up one after the other."""
        sequences, tokens = self.engine.running, self.engine.running_tokens
        seconds = self._time.decode_seconds(sequences, tokens, steps)
        return np.add.accumulate(np.concatenate(([now], seconds)))
