"""Why a turn went where it went: what the router decided, in words and tables. Pure.

Two views: of a run, what its decisions came to and which were the worst; of a turn, every pod that
could have been chosen, with what spoke for it and against it. Tables fit 80 columns where a pod is
named by address and port.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.report.believed import MEANINGS
from kvbench.units import format_number, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbench.records.decisions import Entry, Option
    from kvbench.records.schema import TurnRecord

WORST = 10


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Attributes:
        title: What it shows.
        words: Heads of its first columns, which hold words.
        numbers: Heads of the others, which hold numbers.
        rows: Cells.
    """

    title: str
    words: Sequence[str]
    numbers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to say: sentences, and the tables that there are."""

    sentences: Sequence[str]
    grids: Sequence[Grid] = ()


_UNCOMPARED = {
    "connect": "no connection could be made",
    "timeout": "no answer came, or no further token, in time",
    "http": "the answer was an error",
    "cut": "the stream broke off",
    "protocol": "the answer was none",
    "server": "the pod failed while it answered",
    "not_sent": "the run ended before",
    "lost": "the load worker that had sent it is gone",
    "untold": "the pod did not say how many tokens it had cached",
}
"""Why there is nothing to compare with a prediction, by the turn's error."""

_ENDS = {
    "failed": "the pod failed before it was heard: another was asked, if one was left",
    "cut": "the pod broke off in its answer",
    "timeout": "the pod took too long and was given up",
    "gone": "the client left",
    "unread": "the client did not read the answer, and was cut",
    "stopped": "the router was stopped, and cut it",
    "broken": "the router failed; its log says how",
}
"""What became of a request that was not answered in full, by the word for it."""

_REASONS = {
    "prefix": "its cached prefix decided",
    "load": "its load decided",
    "turn": "it was its turn",
    "random": "chance decided",
    "session": "it is the session's home",
    "only": "it was the only one offered",
}


def explain_run(rows: Sequence[TurnRecord], decisions: Mapping[str, list[Entry]]) -> Told:
    """Return what the decisions on a run's turns came to, and the worst of them."""
    found = [(row, decisions[row.request_id][-1]) for row in rows if row.request_id in decisions]
    sentences = _sums(found)
    if len(found) < len(rows):
        missing = len(rows) - len(found)
        sentences.append(f"{missing} of {len(rows)} turns have no decision on file")
    ranked = sorted(found, key=lambda pair: -_badness(pair[1]))[:WORST]
    worst = [_worst(row, entry) for row, entry in ranked if _badness(entry) > 0]
    words = ("turn", "pod", "why", "cause")
    numbers = ("prompt", "predicted", "found", "regret")
    grid = Grid("Where most was given away", words, numbers, worst)
    return Told(sentences, [grid] if worst else [])


def explain_turn(row: TurnRecord, decisions: Sequence[Entry]) -> list[Told]:
    """Return what was decided on a turn, each time that it was tried."""
    return [
        Told(_sentences(row, entry, number, last=entry is decisions[-1]), _tables(entry))
        for number, entry in enumerate(decisions, 1)
    ]


def _worst(row: TurnRecord, entry: Entry) -> list[str]:
    """Return a row of the table of the worst."""
    return [
        str(row.index),
        entry.pod,
        entry.reason,
        entry.cause or "–",
        format_number(entry.prompt_tokens),
        format_number(entry.predicted_tokens),
        format_number(entry.cached_tokens),
        _seconds(entry.regret_s),
    ]


def _sums(found: Sequence[tuple[TurnRecord, Entry]]) -> list[str]:
    """Return sentences about all decisions together."""
    entries = [entry for _, entry in found]
    policies = Counter(entry.policy for entry in entries)
    told = ", ".join(f"{count} by {policy}" for policy, count in policies.most_common())
    lines = [f"{len(entries)} decisions: {told or 'none'}"]
    compared = [entry for entry in entries if entry.cached_tokens is not None]
    if compared:
        predicted = sum(entry.predicted_tokens for entry in compared)
        delivered = sum(entry.cached_tokens or 0 for entry in compared)
        exact = sum(entry.exact for entry in compared)
        lines.append(
            f"cached tokens: {format_number(predicted)} predicted, {format_number(delivered)} "
            f"delivered; tokens known for {format_share(exact / len(compared))} of the prompts"
        )
    causes: Counter[str] = Counter(entry.cause or "other" for entry in compared)
    lines += _counted(causes, MEANINGS)
    ends: Counter[str] = Counter(
        row.error or "untold" for row, entry in found if entry.cached_tokens is None
    )
    lines += _counted(ends, _UNCOMPARED)
    regrets = [entry.regret_s for entry in entries if entry.regret_s is not None]
    if regrets:
        free = sum(regret == 0 for regret in regrets)
        lines.append(
            f"regret: {format_seconds(sum(regrets) / len(regrets))} on average; "
            f"{format_share(free / len(regrets))} of the decisions were the best there was"
        )
    return lines


def _counted(counts: Counter[str], words: Mapping[str, str]) -> list[str]:
    """Return a line for each word and what it means, the most frequent first."""
    return [f"  {n:6} × {word}: {words.get(word, word)}" for word, n in counts.most_common()]


def _sentences(row: TurnRecord, entry: Entry, attempt: int, *, last: bool) -> list[str]:
    """Return what there is to say about a decision."""
    again = f" (attempt {attempt})" if attempt > 1 else ""
    lines = [
        f"turn {row.index} ({row.session}:{row.turn}){again} → {entry.pod}: "
        + format_number(entry.prompt_tokens)
        + (" prompt tokens" if entry.exact else " prompt tokens, estimated"),
        f"{entry.policy} chose it: {_REASONS.get(entry.reason, entry.reason)}",
    ]
    if entry.cached_tokens is None:
        lines.append(f"{format_number(entry.predicted_tokens)} cached tokens predicted")
    else:
        lines.append(
            f"{format_number(entry.predicted_tokens)} cached tokens predicted, "
            f"{format_number(entry.cached_tokens)} delivered{_why(entry.cause)}"
        )
    lines += _first_token(row, entry, last=last)
    if entry.regret_s is not None:
        best = min(
            (one for one in entry.candidates if one.expected_ttft_s is not None),
            key=lambda one: one.expected_ttft_s or 0.0,
        )
        lines.append(
            "no other pod promised an earlier first token"
            if entry.regret_s == 0
            else f"the first token was to be expected {format_seconds(entry.regret_s)} earlier on "
            f"{best.pod}"
        )
    if entry.end in _ENDS:
        said = f"answered {entry.status}: " if entry.status else ""
        lines.append(f"its end: {said}{_ENDS[entry.end]}")
    elif entry.status >= 400:
        lines.append(f"its end: answered {entry.status}")
    return lines


def _why(cause: str | None) -> str:
    """Return why a prediction was not met: the word that rows have, and what it means."""
    if cause is None or cause == "none":
        return "" if cause is None else f": {MEANINGS[cause]}"
    return f" ({cause}): {MEANINGS[cause]}" if cause in MEANINGS else f" ({cause})"


def _first_token(row: TurnRecord, entry: Entry, *, last: bool) -> list[str]:
    """Return when the first token was to be expected and when it came: the router's word first."""
    chosen = next((one for one in entry.candidates if one.pod == entry.pod), None)
    expected = None if chosen is None else chosen.expected_ttft_s
    measured = row.ttft_s if entry.ttft_s is None and last else entry.ttft_s
    said = [] if expected is None else [f"expected after {format_seconds(expected)}"]
    said.append("never came" if measured is None else f"came after {format_seconds(measured)}")
    return [f"first token: {', '.join(said)}"]


def _tables(entry: Entry) -> list[Grid]:
    """Return what is known of each pod, and the terms of its cost, the cheapest first."""
    marks = ["→" if one.pod == entry.pod else "" for one in entry.candidates]
    pods = Grid(
        "Pods that could have been chosen, the cheapest first",
        ("", "pod", "known"),
        ("holds", "taken for", "cost", "first token"),
        [_option(mark, one) for mark, one in zip(marks, entry.candidates, strict=True)],
    )
    terms = list(dict.fromkeys(term for one in entry.candidates for term in one.terms))
    if not terms:
        return [pods]
    costs = [
        [mark, one.pod, *(format_number(one.terms.get(term)) for term in terms)]
        for mark, one in zip(marks, entry.candidates, strict=True)
    ]
    heads = [term.replace("_", " ") for term in terms]
    return [pods, Grid("What their cost is made of", ("", "pod"), heads, costs)]


def _option(mark: str, one: Option) -> list[str]:
    """Return a row of the table of pods."""
    return [
        mark,
        one.pod,
        one.trust,
        format_number(one.held_tokens),
        format_number(one.matched_tokens),
        f"{one.cost:.4g}",
        _seconds(one.expected_ttft_s),
    ]


def _badness(entry: Entry) -> float:
    """Return what a decision gave away: seconds, then tokens that were not there."""
    short = entry.predicted_tokens - (
        entry.predicted_tokens if entry.cached_tokens is None else entry.cached_tokens
    )
    return (entry.regret_s or 0.0) + 1e-6 * max(short, 0)


def _seconds(value: float | None) -> str:
    return "–" if value is None else format_seconds(value)
