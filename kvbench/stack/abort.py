"""Ends a run whose gate has failed for certain: `abort_on_fail`.

While turns are sent, the rows written so far are held against the gates that ask for it. Many looks
at growing rows would sooner or later find a failure by chance, so here an interval must hold the
true number in 999 of 1,000 cases, and a gate that cannot tell never ends a run. Turns that are
under way have no row yet: the slowest are missing, which is to the run's favour.

A look at many rows takes long, and it takes time from what is measured: the next one comes no
sooner than after thirty times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import KvbenchError
from kvbench.gates.gate import Absolute
from kvbench.gates.judge import decide
from kvbench.gates.measure import measure
from kvbench.records.evidence import read_evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.clock import Clock
    from kvbench.gates.gate import Gate
    from kvbench.records.run import RunFolder

CONFIDENCE = 0.999
FIRST_SECONDS = 2.0


class GateAbortError(KvbenchError):
    """A gate has failed for certain, and ends the run."""

    exit_code = 5

    def __init__(self, gate: Gate, said: str) -> None:
        super().__init__(f"{gate.text}: {said}")
        self.gate = gate


class Abort:
    """Looks at a run while it is on.

    Args:
        gates: Those of the run; the others than `abort_on_fail` are left alone.
        folder: The run.
        clock: What time it is.
    """

    def __init__(self, gates: Iterable[Gate], folder: RunFolder, clock: Clock) -> None:
        self._gates = [gate for gate in gates if gate.abort_on_fail]
        self._folder = folder
        self._clock = clock
        self._next = clock.now() + FIRST_SECONDS

    def check(self) -> None:
        """Look, if it is time to.

        Raises:
            GateAbortError: A gate has failed for certain.
        """
        began = self._clock.now()
        if not self._gates or began < self._next:
            return
        evidence = read_evidence(self._folder)
        for gate in self._gates:
            assert isinstance(gate.bound, Absolute)
            found = measure(evidence, gate.measure, confidence=CONFIDENCE)
            result = decide(gate, found, gate.bound.comparison, gate.bound.value)
            if result.decided == "failed":
                raise GateAbortError(gate, result.said)
        self._next = began + max(FIRST_SECONDS, 30 * (self._clock.now() - began))
