"""Two arms against each other: ratios with intervals, from rounds of one run each.

A round is a run of A and a run of B of the same plan, made one after the other; the next round has
another seed and the other order (A B, B A, A B, …). So what differs between rounds is all that
chance does at once: the plan, the machine, its mood. The interval is Student's t over the rounds'
logarithmic ratios, with rounds - 1 degrees of freedom, and needs no other assumption about where
the noise comes from. With more rounds it shrinks both by √rounds and by t.

Of a single round nothing is known about the noise between runs. Then the sessions of both runs
stand in, as if they were independent, and the comparison says so.

A gate holds B against A: it fails if B is worse than `baseline` in 97.5 of 100 cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InputError
from kvbench.gates.baseline import QUESTION, Fingerprint, usual_measures
from kvbench.gates.gate import Relative
from kvbench.gates.judge import within
from kvbench.gates.measure import Measurement, measure
from kvbench.records.intervals import CONFIDENCE, EVERYWHERE, Interval, t_quantile
from kvbench.records.verdict import EXIT_CODES, Verdict, overall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvbench.gates.gate import Comparison, Gate, Measure
    from kvbench.records.evidence import Evidence

_LARGEST_LOG = 700.0  # of what a double holds
_NORMAL_975 = 1.959964
_UNKNOWN = Measurement(math.nan, missing="it was not measured")


@dataclass(frozen=True, slots=True)
class ArmRun:
    """What a comparison keeps of one run: numbers, not rows.

    Attributes:
        run: Its id.
        arm: What its arm is called.
        reasons: Why it may not be judged.
        fingerprint: Of what it is a run.
        values: By canonical text of the measure.
    """

    run: str
    arm: str
    reasons: tuple[str, ...]
    fingerprint: Fingerprint
    values: Mapping[str, Measurement]

    def value(self, name: str) -> Measurement:
        """Return what was measured under a name; NaN if nothing was."""
        return self.values.get(name, _UNKNOWN)

    @classmethod
    def of(cls, evidence: Evidence, gates: Iterable[Gate] = ()) -> ArmRun:
        """Return what is kept of a run: the usual, and what the gates measure."""
        wanted = [*usual_measures(), *(gate.measure for gate in gates)]
        summary = evidence.summary
        return cls(
            run=summary.run,
            arm=summary.arm,
            reasons=evidence.reasons,
            fingerprint=Fingerprint.of(evidence),
            values={str(what): measure(evidence, what) for what in wanted},
        )


Round = tuple[ArmRun, ArmRun]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measure of two arms.

    Attributes:
        what: What is measured.
        a: Mean over the rounds.
        b: Likewise.
        ratio: B ÷ A, the geometric mean over the rounds; NaN where one of them is 0.
        interval: Of the ratio.
        said: What that means: "better", "worse", "equal" or "not told apart".
    """

    what: Measure
    a: float
    b: float
    ratio: float
    interval: Interval
    said: str


def check_rounds(rounds: Sequence[Round]) -> list[str]:
    """Return why these rounds may not be judged; empty means that they may.

    Raises:
        InputError: There is none, or the runs of a round are of different plans.
    """
    if not rounds:
        raise InputError("expected at least one round, got none")
    for a, b in rounds:
        for name in (*QUESTION, "seed"):
            mine, other = getattr(a.fingerprint, name), getattr(b.fingerprint, name)
            if mine != other:
                raise InputError(
                    f"{name.replace('_', ' ')}: {a.run} has {mine}, {b.run} has {other}",
                    hint="the two runs of a round must be of the same plan",
                )
    return [f"{run.run}: {reason}" for pair in rounds for run in pair for reason in run.reasons]


def ratios(
    rounds: Sequence[Round], gates: Iterable[Gate] = (), confidence: float = CONFIDENCE
) -> list[Ratio]:
    """Return the ratio of every measure that all runs know."""
    wanted = {str(w): w for w in [*usual_measures(), *(gate.measure for gate in gates)]}
    found = []
    for name, what in wanted.items():
        a, b = ([pair[side].value(name) for pair in rounds] for side in (0, 1))
        if all(math.isfinite(one.value) for one in (*a, *b)):
            found.append(_ratio(what, a, b, confidence))
    return found


def _ratio(what: Measure, a: list[Measurement], b: list[Measurement], confidence: float) -> Ratio:
    left, right = (np.array([one.value for one in side]) for side in (a, b))
    means = float(left.mean()), float(right.mean())
    if (left <= 0).any() or (right <= 0).any():
        apart = right - left  # there is no ratio to nothing
        reach = (
            t_reach(apart, confidence) if len(apart) > 1 else math.hypot(_half(a[0]), _half(b[0]))
        )
        said = _said(what, float(apart.mean()), reach)
        return Ratio(what, *means, math.nan, EVERYWHERE, said)
    logs = np.log(right / left)
    middle = float(logs.mean())
    if len(logs) > 1:
        reach = t_reach(logs, confidence)
    else:
        reach = _NORMAL_975 * math.hypot(_spread(a[0]), _spread(b[0]))
    high = math.exp(middle + reach) if middle + reach < _LARGEST_LOG else math.inf
    interval = Interval(math.exp(middle - reach), high)
    return Ratio(what, *means, math.exp(middle), interval, _said(what, middle, reach))


def _said(what: Measure, more: float, reach: float) -> str:
    """Say what it means that B has so much more, give or take `reach`."""
    if more == reach == 0:
        return "equal"
    if abs(more) <= reach:
        return "not told apart"
    return "better" if (more > 0) == what.subject.higher_is_better else "worse"


def t_reach(values: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float:
    """Return half the width of the mean's interval, of two values or more."""
    t = t_quantile(1 - (1 - confidence) / 2, len(values) - 1)
    return t * float(values.std(ddof=1)) / math.sqrt(len(values))


def _spread(found: Measurement) -> float:
    """Return the standard error of a logarithm, from an interval of 95 %."""
    if found.interval is None:
        return 0.0
    low, high = found.interval.low, found.interval.high
    if low <= 0 or not math.isfinite(high):
        return math.inf
    return math.log(high / low) / (2 * _NORMAL_975)


def judge_rounds(
    rounds: Sequence[Round], gates: Sequence[Gate], confidence: float = CONFIDENCE
) -> Verdict:
    """Return what relative gates say about B, held against A.

    Raises:
        InputError: A gate is not relative, or the runs are not of the same plan.
    """
    reasons = check_rounds(rounds)
    results = []
    for gate in gates:
        if not isinstance(gate.bound, Relative):
            raise InputError(
                f"expected `no worse than baseline`, got a gate for one run\n    {gate.text}",
                where=gate.where,
                hint="here the baseline is the first arm; `kvbench gate` judges single runs",
            )
        a, b = ([pair[side].value(str(gate.measure)) for pair in rounds] for side in (0, 1))
        found, limit = _against(gate.bound, a, b, confidence)
        comparison: Comparison = ">=" if gate.measure.subject.higher_is_better else "<="
        advice = "more rounds would decide"
        results.append(within(replace(gate, exact=False), found, comparison, limit, advice))
    decided = overall(reasons, results)
    notes = ["a single round: the noise between runs is unknown"] if len(rounds) == 1 else []
    return Verdict(
        run=", ".join(b.run for _, b in rounds),
        arm=f"{rounds[0][1].arm} against {rounds[0][0].arm}",
        decided=decided,
        reasons=reasons,
        notes=notes,
        gates=results,
        confidence=confidence,
        exit_code=EXIT_CODES[decided],
    )


def _against(
    bound: Relative, a: list[Measurement], b: list[Measurement], confidence: float
) -> tuple[Measurement, float]:
    """Return B's mean, with the interval of its distance from the limit, and the limit."""
    limits = np.array([one.value * bound.factor + bound.plus for one in a])
    values = np.array([one.value for one in b])
    turns = sum(one.turns or 0 for one in b) or None
    sessions = sum(one.sessions or 0 for one in b) or None
    if not np.isfinite(limits).all() or np.isnan(values).any():
        missing = "it is unknown, or infinite, in a run"
        return Measurement(math.nan, None, turns, sessions, missing), float("nan")
    value, limit = float(values.mean()), float(limits.mean())
    if not math.isfinite(value):
        return Measurement(value, Interval(value, value), turns, sessions), limit
    if len(values) > 1:
        reach = t_reach(values - limits, confidence)
    else:
        reach = math.hypot(_half(b[0]), bound.factor * _half(a[0]))
    return Measurement(value, Interval(value - reach, value + reach), turns, sessions), limit


def _half(found: Measurement) -> float:
    if found.interval is None:
        return 0.0
    return max(found.value - found.interval.low, found.interval.high - found.value)
