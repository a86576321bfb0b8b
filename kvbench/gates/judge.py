"""From a measurement and a bound to an outcome, and from a run and its gates to a verdict.

Nothing is judged that may not be believed: a run with reasons against it is invalid, and its gates
say what was measured and no more. A gate needs turns to speak about: fewer than `FEWEST_TURNS`, or
of fewer than `FEWEST_SESSIONS` sessions, are too few for an interval, and it is invalid.

A number with an interval passes or fails with its whole interval, and cannot tell where the limit
lies inside. Intervals shrink with the square root of the turns; from that it is estimated how many
more would decide. Two exceptions keep this sensible:

- where not one turn failed (or not one missed a goodput's limits), the gate passes any limit that
  the number itself meets: nobody wants 3,700 turns to be told that 0 of 500 is below 0.1 %;
- an `exact` gate, and whatever is counted and not estimated, is judged by the number alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_struct

from kvbench.errors import InputError
from kvbench.gates.gate import COMPARE, Absolute, Relative
from kvbench.gates.measure import measure
from kvbench.records.intervals import CONFIDENCE, Interval, turns_to_bound
from kvbench.records.verdict import EXIT_CODES, GateResult, Verdict, overall
from kvbench.units import format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.gates.baseline import Baseline
    from kvbench.gates.gate import Comparison, Gate
    from kvbench.gates.measure import Measurement
    from kvbench.records.evidence import Evidence
    from kvbench.records.verdict import Decided

FEWEST_TURNS = 20
FEWEST_SESSIONS = 5
_MOST_TIMES = 100  # more turns than this many times what there is: no sensible advice


def judge(
    evidence: Evidence,
    gates: Sequence[Gate],
    *,
    baseline: Baseline | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """Return what the gates say about a run.

    Args:
        evidence: The run.
        gates: In the order in which they shall be said.
        baseline: What relative gates are held against.
        seed: Of the draws that intervals are made of.
        confidence: Share of cases in which an interval holds the true number.

    Raises:
        InputError: A gate is relative and there is no baseline, or it lacks what the gate
            measures, or it is of another plan.
    """
    reasons, notes = list(evidence.reasons), []
    if baseline is not None:
        notes = baseline.check(evidence)
    results = []
    for gate in gates:
        found = measure(evidence, gate.measure, seed=seed, confidence=confidence)
        if isinstance(gate.bound, Absolute):
            result = decide(gate, found, gate.bound.comparison, gate.bound.value)
        else:
            result = _against(gate, found, baseline, evidence, confidence)
        results.append(replace_struct(result, decided="invalid") if reasons else result)
    decided = overall(reasons, results)
    aborted = evidence.manifest.aborted
    if aborted and not reasons:
        decided = "failed"
        notes.append(f"the run was stopped when this gate had failed: {aborted}")
    return Verdict(
        run=evidence.summary.run,
        arm=evidence.summary.arm,
        decided=decided,
        reasons=reasons,
        notes=notes,
        gates=results,
        confidence=confidence,
        baseline=None if baseline is None else baseline.source,
        exit_code=EXIT_CODES[decided],
    )


def decide(gate: Gate, found: Measurement, comparison: Comparison, limit: float) -> GateResult:
    """Return what a gate says about a measurement, held against a limit."""
    if math.isnan(found.value):
        return _result(gate, found, limit, "invalid", f"nothing to judge: {found.missing}")
    if gate.exact or found.interval is None:
        return _result(gate, found, limit, *_plain(gate, found, comparison, limit))
    turns, sessions = found.turns or 0, found.sessions or 0
    if turns < FEWEST_TURNS or sessions < FEWEST_SESSIONS:
        said = (
            f"too few turns: {turns} in {sessions} sessions, at least {FEWEST_TURNS} in "
            f"{FEWEST_SESSIONS} are needed for an interval"
        )
        return _result(gate, found, limit, "invalid", said)
    if gate.measure.subject.name in {"errors", "goodput"} and found.value in {0.0, 1.0}:
        flawless = found.value == (gate.measure.subject.name == "goodput")
        if flawless and COMPARE[comparison](found.value, limit):
            return _result(gate, found, limit, *_plain(gate, found, comparison, limit))
    return within(gate, found, comparison, limit, None)


def _plain(
    gate: Gate, found: Measurement, comparison: Comparison, limit: float
) -> tuple[Decided, str]:
    text = gate.measure.text
    met = COMPARE[comparison](found.value, limit)
    said = f"{text(found.value)}, limit {text(limit)}"
    return ("passed" if met else "failed"), said


def within(
    gate: Gate, found: Measurement, comparison: Comparison, limit: float, advice: str | None
) -> GateResult:
    """Judge by the whole interval; without `advice`, say how many more turns would decide."""
    if math.isnan(found.value) or found.interval is None:
        return _result(gate, found, limit, "invalid", f"nothing to judge: {found.missing}")
    compare = COMPARE[comparison]
    low, high = compare(found.interval.low, limit), compare(found.interval.high, limit)
    said = f"{_numbers(gate, found)}, limit {gate.measure.text(limit)}"
    if low and high:
        return _result(gate, found, limit, "passed", said)
    if not low and not high:
        return _result(gate, found, limit, "failed", said)
    if advice is not None:
        return _result(gate, found, limit, "cannot tell", f"{said}: {advice}")
    more = more_turns(found, limit, gate.measure.quantile)
    if more is None:
        advice = "the number lies at the limit, and no sensible number of turns would decide"
    else:
        advice = f"about {format_number(more)} more turns would decide"
    result = _result(gate, found, limit, "cannot tell", f"{said}: {advice}")
    return replace_struct(result, more_turns=more)


def more_turns(found: Measurement, limit: float, quantile: float | None = None) -> int | None:
    """Return how many more turns would probably move the interval off the limit.

    The half of the interval that holds the limit shrinks as 1/√n. None where that would take more
    than a hundred times the turns that there are.
    """
    assert found.interval is not None
    turns = found.turns or 0
    distance = abs(found.value - limit)
    end = found.interval.high if found.value < limit else found.interval.low
    reach = abs(end - found.value)
    if not math.isfinite(found.value) or distance == 0:
        return None
    if not math.isfinite(reach):  # no upper end: how many it takes depends on how sessions differ
        return round_up(max(turns, turns_to_bound(quantile or 0.5) - turns))
    times = (reach / distance) ** 2
    if times > _MOST_TIMES:
        return None
    return round_up(max(turns * (times - 1), 1))


def round_up(turns: float) -> int:
    """Return a number of turns with two digits that mean something, not below `turns`."""
    if turns < 100:
        return math.ceil(turns)
    scale: int = 10 ** (math.floor(math.log10(turns)) - 1)
    return int(math.ceil(turns / scale - 1e-9) * scale)


def _against(
    gate: Gate, found: Measurement, baseline: Baseline | None, evidence: Evidence, confidence: float
) -> GateResult:
    """Judge against a baseline: what matters is how much runs differ from each other."""
    if baseline is None:
        raise InputError(
            f"expected a baseline for this gate, got none\n    {gate.text}",
            where=gate.where,
            hint="make one with `kvbench baseline RUN…`, and pass it with --baseline",
        )
    bound = gate.bound
    assert isinstance(bound, Relative)
    known = baseline.known(gate)
    limit = known.mean * bound.factor + bound.plus
    if (foreign := baseline.foreign(gate.measure, evidence)) is not None:
        return _result(gate, found, limit, "invalid", foreign)
    comparison: Comparison = ">=" if gate.measure.subject.higher_is_better else "<="
    if math.isnan(found.value) or gate.exact:
        return decide(gate, found, comparison, limit)
    reach = known.reach(found, bound.factor, confidence)
    widened = replace(found, interval=Interval(found.value - reach, found.value + reach))
    advice = (
        f"runs of this plan differ too much: a baseline of more than {known.runs} runs, or longer "
        "runs, would decide"
    )
    return within(gate, widened, comparison, limit, advice)


def _numbers(gate: Gate, found: Measurement) -> str:
    text, interval = gate.measure.text, found.interval
    if interval is None:
        return text(found.value)
    low = text(interval.low) if interval.low > -math.inf else "?"
    return f"{text(found.value)} ({low} to {text(interval.high)})"


def _result(
    gate: Gate, found: Measurement, limit: float, decided: Decided, said: str
) -> GateResult:
    interval = found.interval or Interval(math.nan, math.nan)
    return GateResult(
        gate=gate.text,
        where=gate.where,
        decided=decided,
        said=said,
        measured=_finite(found.value),
        low=_finite(interval.low),
        high=_finite(interval.high),
        limit=_finite(limit),
        turns=found.turns,
        sessions=found.sessions,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
