"""From a line of text to a `Gate`, or to an error that points at the character.

The grammar, in EBNF. Blanks may stand between any two symbols; words are written as here.

    gate       = measure bound { "exact" | "abort_on_fail" } ;

    measure    = subject [ limits ] [ scope ] [ statistic ] [ "of" "ceiling" ] ;
    subject    = "ttft" | "ttft_due" | "tpot" | "itl" | "e2e"                    (seconds)
               | "hit_rate" | "errors" | "goodput"                               (shares)
               | "throughput" | "balance" | "uncached_balance"
               | "kv_usage" | "waiting" | "evictions" | "preemptions" ;          (of servers)
    limits     = "(" limit { "," limit } ")" ;                                   (goodput only)
    limit      = ( "ttft" | "ttft_due" | "tpot" | "e2e" ) ( "<" | "<=" ) duration ;
    scope      = "{" condition { "," condition } "}" ;
    condition  = ( "turn" | "context" ) ( comparison | "=" | "!=" ) number [ "k" ]
               | ( "session" | "group" | "pod" ) ( "=" | "!=" ) name ;           (* is any text)
    statistic  = "p" number | "max" | "mean" | "max/mean" ;

    bound      = comparison amount [ "of" "ceiling" ]
               | "no" "worse" "than" "baseline" [ ( "+" | "-" ) amount ] ;
    comparison = "<" | "<=" | ">" | ">=" ;
    amount     = number [ "%" | "ms" | "us" | "s" | "min" | "/s" | "/min" ] ;

An amount has the unit of its subject: a duration for seconds, `0.95` or `95%` for shares, `/s` or
`/min` for rates. After `baseline`, `%` is a share of the baseline's value, whatever the subject.

The parser is one function a rule. Every error names what was expected, what was found, and where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn, cast

from kvbench.errors import InputError
from kvbench.gates.gate import SUBJECTS, Absolute, Condition, Gate, Limit, Measure, Relative
from kvbench.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.gates.gate import Comparison, Quantity, Subject

HINT = "gates are described in docs/gates.md"
_COMPARISONS = ("<=", ">=", "<", ">")
_LIMITED = ("ttft", "ttft_due", "tpot", "e2e")
_NUMBERS, _NAMES = ("turn", "context"), ("session", "group", "pod")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)(?P<unit>%|/s\b|/min\b|[a-z]+\b)?"
    r"|(?P<word>[A-Za-z_][\w.]*(?:/mean)?)|(?P<symbol><=|>=|!=|==|[<>={}(),+\-−]))"  # noqa: RUF001
)
_NAME = re.compile(r'\s*("[^"]*"|[^\s,}]+)')


@dataclass(frozen=True, slots=True)
class _Token:
    """A symbol of the line: `text` at `start`; `unit` of a number."""

    kind: str
    text: str
    start: int
    unit: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.text) + len(self.unit)


def parse_gate(text: str, where: str | None = None) -> Gate:
    """Return the gate that a line says.

    Args:
        text: The line.
        where: File and line, or the flag, for errors.

    Raises:
        InputError: It is none; with the line and a mark under the character.
    """
    return _Parser(text, where).gate()


def parse_gates(lines: Iterable[tuple[str, str]]) -> list[Gate]:
    """Return the gates of (where, line) pairs, in their order."""
    return [parse_gate(text, where) for where, text in lines]


class _Parser:
    """Reads one line from left to right."""

    def __init__(self, text: str, where: str | None) -> None:
        self._text = text
        self._where = where
        self._at = 0

    def gate(self) -> Gate:
        """Read the whole line."""
        measure = self._measure()
        bound, of_ceiling = self._bound(measure)
        if of_ceiling:
            measure = Measure(
                measure.subject, measure.statistic, measure.scope, measure.limits, of_ceiling=True
            )
        words: set[str] = set()
        while (token := self._peek()) is not None:
            if token.text not in {"exact", "abort_on_fail"} or token.text in words:
                self._fail("the end, `exact` or `abort_on_fail`", token)
            words.add(self._next().text)
        if "abort_on_fail" in words and (measure.subject.server or isinstance(bound, Relative)):
            self._fail("`abort_on_fail` only where turns are held against a number", self._last)
        return Gate(
            self._text, self._where, measure, bound,
            exact="exact" in words or measure.subject.exact, abort_on_fail="abort_on_fail" in words,
        )  # fmt: skip

    # ── measure ──────────────────────────────────────────────────────────────────────────────

    def _measure(self) -> Measure:
        token = self._word("what is measured")
        subject = SUBJECTS.get(token.text)
        if subject is None:
            near = get_close_matches(token.text, SUBJECTS, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(SUBJECTS)}"
            self._fail("what is measured", token, hint=hint)
        limits = self._limits() if subject.name == "goodput" else ()
        scope = self._scope(subject) if self._is("{") else ()
        statistic = self._statistic(subject)
        of_ceiling = self._ceiling(subject)
        return Measure(subject, statistic, scope, limits, of_ceiling)

    def _limits(self) -> tuple[Limit, ...]:
        self._symbol("(")
        limits = [self._limit()]
        while self._is(","):
            self._next()
            limits.append(self._limit())
        self._symbol(")")
        return tuple(limits)

    def _limit(self) -> Limit:
        token = self._word("one of " + ", ".join(_LIMITED))
        if token.text not in _LIMITED:
            self._fail("one of " + ", ".join(_LIMITED), token)
        comparison = self._next_of(("<", "<="), "< or <=")
        return Limit(token.text, cast("Comparison", comparison), self._amount("seconds"))

    def _scope(self, subject: Subject) -> tuple[Condition, ...]:
        self._symbol("{")
        conditions = [self._condition(subject)]
        while self._is(","):
            self._next()
            conditions.append(self._condition(subject))
        self._symbol("}")
        return tuple(conditions)

    def _condition(self, subject: Subject) -> Condition:
        keys = ("pod",) if subject.server else (*_NUMBERS, *_NAMES)
        expected = "one of " + ", ".join(keys) if len(keys) > 1 else "pod"
        key = self._word(expected)
        if key.text not in keys:
            hint = (
                f"{subject.name} is told by servers: only pods can be told apart" * subject.server
            )
            self._fail(expected, key, hint=hint or None)
        if key.text in _NAMES:
            return Condition(key.text, self._next_of(("=", "!="), "= or !="), self._name())
        sign = self._next_of((*_COMPARISONS, "=", "!="), "a comparison")
        number = self._peek()
        if number is None or number.kind != "number" or number.unit not in {"", "k"}:
            self._fail("a number such as 3 or 8k", number)
        self._next()
        return Condition(key.text, sign, float(number.text) * (1000 if number.unit else 1))

    def _statistic(self, subject: Subject) -> str:
        allowed = subject.statistics
        if not allowed:
            return ""
        examples = {"p": "p95", "max": "max", "mean": "mean", "max/mean": "max/mean"}
        expected = " or ".join(examples[word] for word in allowed)
        token = self._word(f"{expected} after {subject.name}")
        percentile = re.fullmatch(r"p(\d+(?:\.\d+)?)", token.text)
        if percentile and "p" in allowed:
            if not 0 < float(percentile[1]) < 100:
                self._fail("a percentile between 0 and 100", token)
            return f"p{float(percentile[1]):g}"
        if token.text not in allowed or token.text == "p":
            self._fail(f"{expected} after {subject.name}", token)
        return token.text

    def _ceiling(self, subject: Subject) -> bool:
        if not self._is("of"):
            return False
        token = self._next()
        if subject.name != "hit_rate":
            self._fail("no ceiling here", token, hint="only hit_rate has a ceiling")
        self._literal("ceiling")
        return True

    # ── bound ────────────────────────────────────────────────────────────────────────────────

    def _bound(self, measure: Measure) -> tuple[Absolute | Relative, bool]:
        """Return the bound, and whether the measure is one of the ceiling."""
        if self._is("no"):
            return self._relative(measure), measure.of_ceiling
        comparison = self._next_of(_COMPARISONS, "a comparison, or `no worse than baseline`")
        better = (">", ">=") if measure.subject.higher_is_better else ("<", "<=")
        if comparison not in better:
            way = "higher" if measure.subject.higher_is_better else "lower"
            self._fail(
                " or ".join(better), self._last, hint=f"of {measure.subject.name} {way} is better"
            )
        value = self._amount(measure.subject.quantity)
        of_ceiling = self._ceiling(measure.subject) or measure.of_ceiling
        return Absolute(cast("Comparison", comparison), value), of_ceiling

    def _relative(self, measure: Measure) -> Relative:
        for word in ("no", "worse", "than", "baseline"):
            self._literal(word)
        if not (self._is("+") or self._is("-") or self._is("−")):  # noqa: RUF001 - typographic
            return Relative()
        sign = 1.0 if self._next().text == "+" else -1.0
        token = self._peek()
        if token is not None and token.kind == "number" and token.unit == "%":
            self._next()
            return Relative(factor=1 + sign * float(token.text) / 100)
        return Relative(plus=sign * self._amount(measure.subject.quantity))

    def _amount(self, quantity: Quantity) -> float:
        """Read an amount in the unit of `quantity`."""
        expected = {
            "seconds": "a duration such as 400ms or 2s",
            "share": "a share such as 0.95 or 95%",
            "per second": "a rate such as 1/s or 30/min",
            "number": "a plain number",
        }[quantity]
        token = self._peek()
        if token is None or token.kind != "number":
            self._fail(expected, token)
        self._next()
        number, unit = float(token.text), token.unit
        if quantity == "seconds" and unit:
            try:
                return parse_seconds(token.text + unit)
            except ValueError:
                self._fail(expected, token)
        if quantity == "share" and unit in {"", "%"}:
            share = number / 100 if unit else number
            if share <= 1:
                return share
        if quantity == "per second" and unit in {"/s", "/min"}:
            return number if unit == "/s" else number / 60
        if quantity == "number" and not unit:
            return number
        return self._fail(expected, token)

    # ── symbols ──────────────────────────────────────────────────────────────────────────────

    _last: _Token | None = None

    def _peek(self) -> _Token | None:
        """Return the next symbol without taking it; None at the end."""
        if not self._text[self._at :].strip():
            return None
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            start = len(self._text) - len(self._text[self._at :].lstrip())
            self._fail("a word, a number or a sign", _Token("", self._text[start], start))
        kind = match.lastgroup if match.lastgroup != "unit" else "number"
        assert kind
        return _Token(kind, match[kind], match.start(kind), match["unit"] or "")

    def _next(self) -> _Token:
        token = self._peek()
        assert token is not None
        self._at = token.end
        self._last = token
        return token

    def _is(self, text: str) -> bool:
        token = self._peek()
        return token is not None and token.text == text

    def _word(self, expected: str) -> _Token:
        token = self._peek()
        if token is None or token.kind != "word":
            self._fail(expected, token)
        return self._next()

    def _symbol(self, text: str) -> None:
        if not self._is(text):
            self._fail(f"`{text}`", self._peek())
        self._next()

    def _literal(self, word: str) -> None:
        if not self._is(word):
            self._fail(f"`{word}`", self._peek())
        self._next()

    def _next_of(self, texts: tuple[str, ...], expected: str) -> str:
        token = self._peek()
        if token is None or token.text not in texts:
            self._fail(expected, token)
        return self._next().text

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            self._fail("a name", self._peek())
        self._at = match.end()
        return match[1].strip('"')

    def _fail(self, expected: str, token: _Token | None, hint: str | None = None) -> NoReturn:
        """Raise the error: what was expected, what stands there, and the line with a mark."""
        start = len(self._text.rstrip()) if token is None else token.start
        found = "the end" if token is None else f'"{self._text[token.start : token.end]}"'
        mark = " " * start + "^" * max(1, 0 if token is None else token.end - start)
        raise InputError(
            f"expected {expected}, got {found}\n    {self._text}\n    {mark}",
            where=self._where,
            hint=hint or HINT,
        )
