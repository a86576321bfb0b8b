"""The first screen: the verdict, and the four numbers that matter, with their intervals.

The four answer the two questions in their order: do requests land where their cache is (hit rate
beside its ceiling, the busiest pod beside an even share), and what does it cost (time to first
token, time per output token). Where arms stand side by side, so do their intervals, on one scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.units import format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvbench.records.verdict import Decided, Verdict
    from kvbench.report.view import Estimate, RunView

    Arms = Mapping[str, RunView]


@dataclass(frozen=True, slots=True)
class Reading:
    """One arm's value of one number.

    Attributes:
        arm: Whose.
        value: In words.
        beside: What it must be seen beside, in words; a line each.
        left: Where its interval begins on the scale of the card, 0 to 100; None draws none.
        width: How wide it is.
        at: Where the value itself is.
    """

    arm: str
    value: str
    beside: tuple[str, ...]
    left: float | None = None
    width: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Card:
    """One number of all arms."""

    title: str
    readings: tuple[Reading, ...]


def cards(arms: Arms) -> list[Card]:
    """Return the four numbers; one that no arm knows is left out."""
    found = [
        _estimates("Hit rate", arms, lambda v: v.hit_rate, format_share, _ceiling),
        _estimates("TTFT p95", arms, lambda v: v.ttft_p95, format_seconds, _failures),
        _estimates("Time per output token, p95", arms, lambda v: v.tpot_p95, format_seconds, _none),
        _balance(arms),
    ]
    return [card for card in found if card is not None]


def _estimates(
    title: str,
    arms: Arms,
    read: Callable[[RunView], Estimate],
    text: Callable[[float], str],
    beside: Callable[[RunView], str],
) -> Card | None:
    known = {name: read(view) for name, view in arms.items()}
    if all(math.isnan(one.value) for one in known.values()):
        return None
    ends = [
        end
        for one in known.values()
        for end in (one.value, *((one.interval.low, one.interval.high) if one.interval else ()))
        if math.isfinite(end)
    ]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    readings = []
    for name, view in arms.items():
        one = known[name]
        parts = [beside(view), _interval(one, text)]
        reading = Reading(
            name,
            "unknown" if math.isnan(one.value) else text(one.value),
            tuple(part for part in parts if part),
        )
        if one.interval is not None and math.isfinite(one.value) and high > low:
            reading = _placed(reading, one, low, high)
        readings.append(reading)
    return Card(title, tuple(readings))


def _placed(reading: Reading, one: Estimate, low: float, high: float) -> Reading:
    """Return the reading with its interval on the scale from `low` to `high`."""
    assert one.interval is not None

    def place(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / (high - low), 1)

    left = place(one.interval.low)
    width = round(place(one.interval.high) - left, 1)
    return Reading(reading.arm, reading.value, reading.beside, left, width, place(one.value))


def _interval(one: Estimate, text: Callable[[float], str]) -> str:
    if one.interval is None or math.isinf(one.interval.low):
        return ""
    if math.isinf(one.interval.high):
        return f"at least {text(one.interval.low)}: too few turns for more"
    return f"{text(one.interval.low)} to {text(one.interval.high)}"


def _ceiling(view: RunView) -> str:
    ceiling = view.summary.hits.ceiling
    return "" if ceiling is None else f"of {format_share(ceiling)} possible"


def _failures(view: RunView) -> str:
    return f"{view.summary.failures} turns failed" if view.summary.failures else ""


def _none(_: RunView) -> str:
    return ""


def _balance(arms: Arms) -> Card | None:
    readings = []
    for name, view in arms.items():
        balance, pods = view.summary.turn_balance, len(view.summary.pods)
        if balance.busiest is None:
            readings.append(Reading(name, "unknown", ()))
            continue
        even = f"even is {format_share(1 / pods)}" if pods > 1 else "there is one pod"
        readings.append(Reading(name, format_share(balance.busiest), ("of the turns", even)))
    known = any(reading.value != "unknown" for reading in readings)
    return Card("Busiest pod", tuple(readings)) if known else None


@dataclass(frozen=True, slots=True)
class Line:
    """One line under the verdict.

    Attributes:
        arm: Whose.
        said: A sentence.
        gate: The gate it is about, as written; "" for none.
        decided: What that came to; "" for none.
    """

    arm: str
    said: str
    gate: str = ""
    decided: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the page says first.

    Attributes:
        kind: "invalid", "failed", "unsure", "passed" or "valid": for its colour.
        title: In a word or two.
        lead: A sentence under it.
        lines: One a reason, or a gate.
    """

    kind: str
    title: str
    lead: str
    lines: tuple[Line, ...]


_TITLES: dict[Decided, tuple[str, str, str]] = {
    "failed": ("failed", "Failed", "The measurement is valid, and misses its objectives:"),
    "invalid": ("invalid", "Not judged", "Some gates found nothing to judge:"),
    "cannot tell": ("unsure", "Cannot tell", "The measurement is valid, and too short to decide:"),
    "passed": ("passed", "Passed", "The measurement is valid, and meets its objectives:"),
}


def judgement(arms: Arms, checked: str) -> Judgement:
    """Return what the page says first: what may not be believed, else the gates, else validity."""
    reasons = [Line(name, reason) for name, view in arms.items() for reason in view.reasons]
    if reasons:
        lead = "These numbers must not be judged or compared:"
        return Judgement("invalid", "Not valid", lead, tuple(reasons))
    verdicts = {name: view.verdict for name, view in arms.items() if view.verdict is not None}
    found = {verdict.decided for verdict in verdicts.values()}
    for decided, (kind, title, lead) in _TITLES.items():
        if decided in found:
            return Judgement(kind, title, lead, tuple(_lines(verdicts)))
    failed = [
        Line(name, f"{view.summary.failures} of {view.summary.turns} turns failed")
        for name, view in arms.items()
        if view.summary.failures
    ]
    if failed:
        lead = "The measurement is valid: it shows a target that did not answer every turn."
        return Judgement("failed", "Turns failed", lead, tuple(failed))
    return Judgement("valid", "Valid", checked, ())


def _lines(verdicts: Mapping[str, Verdict]) -> list[Line]:
    """Return what did not pass, gate by gate, and how many gates did."""
    lines = []
    for name, verdict in verdicts.items():
        lines += [
            Line(name, result.said, result.gate, result.decided)
            for result in verdict.gates
            if result.decided != "passed"
        ]
        if passed := verdict.count("passed"):
            gates = "gate" if passed == 1 else "gates"
            lines.append(Line(name, f"{passed} {gates} of {len(verdict.gates)}", "", "passed"))
    return lines
