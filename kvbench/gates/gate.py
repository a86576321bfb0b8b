"""What a gate says, typed: a measure, a bound, and how it is to be taken.

Quantities are seconds, shares from 0 to 1, plain ratios and counts, or per second. `str()` of a
`Measure` is its canonical text: two gates that measure the same have the same, and a baseline keeps
its values under it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvbench.units import format_number, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

Quantity = Literal["seconds", "share", "number", "per second"]
Comparison = Literal["<", "<=", ">", ">="]

COMPARE: dict[Comparison, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that can be measured.

    Attributes:
        name: Its word.
        quantity: What its values are.
        statistics: Words that may follow; empty: none does. "p" stands for any percentile.
        higher_is_better: Which way is worse.
        server: Whether it is of servers, not of turns: only pods can be told apart.
        exact: Whether it is counted, not estimated: it has no interval.
        about: In a few words, for people.
    """

    name: str
    quantity: Quantity
    statistics: tuple[str, ...]
    about: str
    higher_is_better: bool = False
    server: bool = False
    exact: bool = False


_TIMES = ("p", "max")
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("ttft", "seconds", _TIMES, "time to first token, from the actual send"),
        Subject("ttft_due", "seconds", _TIMES, "the same, from when the turn was due"),
        Subject("tpot", "seconds", _TIMES, "time per output token after the first"),
        Subject("itl", "seconds", _TIMES, "gap between two chunks of an answer"),
        Subject("e2e", "seconds", _TIMES, "from the actual send to the last token"),
        Subject(
            "hit_rate", "share", (), "cached ÷ prompt tokens; `of ceiling`: ÷ what was possible",
            higher_is_better=True,
        ),
        Subject("errors", "share", (), "turns that were not answered in full"),
        Subject(
            "goodput", "share", (), "turns that met all limits in its parentheses",
            higher_is_better=True,
        ),
        Subject(
            "throughput", "per second", (), "output tokens of all turns per second",
            higher_is_better=True, exact=True,
        ),
        Subject(
            "balance", "number", ("max/mean",), "turns of the busiest pod ÷ the mean", exact=True
        ),
        Subject(
            "uncached_balance", "number", ("max/mean",),
            "uncached prompt tokens of the busiest pod ÷ the mean", exact=True,
        ),
        Subject(
            "kv_usage", "share", ("p", "max", "mean"), "referenced KV blocks, as vLLM reports them",
            server=True, exact=True,
        ),
        Subject(
            "waiting", "number", ("p", "max", "mean"), "requests in a pod's queue",
            server=True, exact=True,
        ),
        Subject("evictions", "per second", (), "cached blocks given up", server=True, exact=True),
        Subject("preemptions", "per second", (), "requests that lost their blocks", server=True,
                exact=True),
    )
}  # fmt: skip
"""All that a gate can be about, by word."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Which turns count.

    Attributes:
        key: "turn" and "context" (prompt tokens) are numbers; "session", "group" and "pod" are
            names, in which `*` stands for anything.
        comparison: A comparison, or "=" and "!=".
        value: A number or a name.
    """

    key: str
    comparison: str
    value: float | str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:g}"
        return f"{self.key}{self.comparison}{value}"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a goodput, in seconds."""

    subject: str
    comparison: Comparison
    seconds: float

    def __str__(self) -> str:
        return f"{self.subject}{self.comparison}{self.seconds:g}s"


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured.

    Attributes:
        subject: Of what.
        statistic: "p95", "max", "mean", "max/mean" or "".
        scope: Which turns, or pods, count; all conditions must hold.
        limits: Of a goodput.
        of_ceiling: Whether a hit rate is divided by its ceiling.
    """

    subject: Subject
    statistic: str = ""
    scope: tuple[Condition, ...] = ()
    limits: tuple[Limit, ...] = ()
    of_ceiling: bool = False

    @property
    def quantile(self) -> float | None:
        """The quantile, where the statistic is one; 1 is the greatest."""
        if self.statistic == "max":
            return 1.0
        return float(self.statistic[1:]) / 100 if self.statistic[:1] == "p" else None

    def __str__(self) -> str:
        limits = f"({', '.join(map(str, self.limits))})" if self.limits else ""
        scope = f"{{{', '.join(map(str, self.scope))}}}" if self.scope else ""
        statistic = f" {self.statistic}" if self.statistic else ""
        ceiling = " of ceiling" if self.of_ceiling else ""
        return f"{self.subject.name}{limits}{scope}{statistic}{ceiling}"

    def text(self, value: float) -> str:
        """Return a value of this measure for people."""
        match self.subject.quantity:
            case "seconds":
                return format_seconds(value)
            case "share":
                return "–" if value != value else f"{100 * value:.4g} %"  # noqa: PLR0124 - NaN
            case "per second":
                return f"{format_number(value)}/s"
            case _:
                return format_number(value)


@dataclass(frozen=True, slots=True)
class Absolute:
    """Held against a number."""

    comparison: Comparison
    value: float


@dataclass(frozen=True, slots=True)
class Relative:
    """Held against a baseline: not worse than baseline × factor + plus."""

    factor: float = 1.0
    plus: float = 0.0


@dataclass(frozen=True, slots=True)
class Gate:
    """One line.

    Attributes:
        text: As written.
        where: File and line, or the flag that it came from.
        measure: What is measured.
        bound: What it is held against.
        exact: Whether the number itself is judged, whatever its interval.
        abort_on_fail: Whether a run ends as soon as this has failed for certain.
    """

    text: str
    where: str | None
    measure: Measure
    bound: Absolute | Relative
    exact: bool = False
    abort_on_fail: bool = False
