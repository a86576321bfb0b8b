"""The verdict: what the gates said about a run, as a value and as `verdict.json`.

Gates produce it; reports, CI and people read it. Outcomes, worst first:

- `invalid`: the measurement may not be judged at all, or a gate finds nothing to judge.
- `failed`: the whole interval lies beyond the limit (or the number itself, where it is exact).
- `cannot tell`: the interval holds the limit.
- `passed`: the whole interval lies within the limit.

A run that may not be believed is `invalid` whatever its gates say. Otherwise one failed gate makes
it `failed`: more turns would not save it. Then `invalid`, then `cannot tell`.

Exit codes: 0 passed · 5 failed · 4 cannot tell, and invalid: there is no judgement, so a pipeline
that retries or warns on 4 is not stopped by a noisy machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from kvbench.errors import GateFailedError, InputError, InvalidMeasurementError, KvbenchError

if TYPE_CHECKING:
    from kvbench.records.run import RunFolder

VERDICT_SCHEMA = 1

Decided = Literal["passed", "failed", "cannot tell", "invalid"]
"""What a gate, or a run, comes to."""

EXIT_CODES: dict[Decided, int] = {"passed": 0, "failed": 5, "cannot tell": 4, "invalid": 4}
"""What the command line ends with."""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one gate said.

    Attributes:
        gate: As it was written.
        where: File and line, or the flag that it came from.
        decided: What it comes to.
        said: The reason, a sentence with the numbers in it.
        measured: The number, in seconds, shares or per second; None is unknown or infinite.
        low: Lower end of its interval; None is unknown or infinite, or there is no interval.
        high: Upper end; likewise.
        limit: What it was held against.
        turns: Turns it was taken over; None for what servers said.
        sessions: Their sessions.
        more_turns: How many more turns would probably decide, where it cannot tell.
    """

    gate: str
    where: str | None = None
    decided: Decided
    said: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    turns: int | None = None
    sessions: int | None = None
    more_turns: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the gates said about one run.

    Attributes:
        schema: Version of this form.
        run: The run's id.
        arm: What it is called among those it is compared with.
        decided: What it comes to.
        reasons: Why it may not be judged; empty unless it is invalid as a whole.
        notes: What a person should know besides.
        gates: One by one, in their order.
        confidence: Share of cases in which an interval holds the true number.
        baseline: File that relative gates were held against.
        exit_code: What the command line ended with.
    """

    schema: int = VERDICT_SCHEMA
    run: str
    arm: str
    decided: Decided
    reasons: list[str] = []
    notes: list[str] = []
    gates: list[GateResult] = []
    confidence: float
    baseline: str | None = None
    exit_code: int = 0

    def count(self, decided: Decided) -> int:
        """Return how many gates came to `decided`."""
        return sum(result.decided == decided for result in self.gates)

    def headline(self) -> str:
        """Return the verdict in a line."""
        if self.reasons:
            return f"invalid: {self.reasons[0]}"
        counts = [
            f"{n} {decided}"
            for decided in ("failed", "invalid", "cannot tell", "passed")
            if (n := self.count(decided))
        ]
        return f"{self.decided}: {', '.join(counts) or 'no gates'}"

    def problem(self) -> KvbenchError | None:
        """Return what a command ends with, or None where the run has passed."""
        if self.decided == "passed":
            return None
        said = f"{self.arm} {self.headline()}"
        if self.decided == "failed":
            return GateFailedError(said)
        hint = {
            "invalid": "measure again before judging",
            "cannot tell": "run longer, as the table says, or mark a gate `exact` to judge it by "
            "its number",
        }[self.decided]
        return InvalidMeasurementError(said, hint=hint)


def overall(reasons: list[str], results: list[GateResult]) -> Decided:
    """Return what a run comes to."""
    if reasons:
        return "invalid"
    found = {result.decided for result in results}
    order: tuple[Decided, ...] = ("failed", "invalid", "cannot tell")
    return next((decided for decided in order if decided in found), "passed")


def write_verdict(folder: RunFolder, verdict: Verdict) -> None:
    """Write the verdict into the run's folder.

    Raises:
        InputError: The disk does not take it.
    """
    path = folder.verdict_path
    try:
        path.write_bytes(verdict_json(verdict))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def verdict_json(verdict: Verdict) -> bytes:
    """Return the verdict as JSON, for people too."""
    return msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n"


def read_verdict(folder: RunFolder) -> Verdict | None:
    """Return the last verdict about a run; None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(folder.verdict_path.read_bytes(), type=Verdict)
    except (OSError, msgspec.MsgspecError):
        return None
