"""Why a turn went where it went: what the router decided, in words and tables. Pure.

Two views: of a run, what its decisions came to and which were the worst; of a turn, every pod that
could have been chosen, with what spoke for it and against it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """What there is to say: sentences, and a table if there is one."""

    sentences: Sequence[str]
    grid: Grid | None = None


_CAUSES = {
    "none": "as predicted",
    "estimate": "the prediction was an estimate: the pod was not known exactly, or the prompt's "
    "tokens were not",
    "template": "the pod counted other prompt tokens than the router: another tokenizer or chat "
    "template",
    "last_block": "all of the prompt was cached, and the pod computed its last block anew",
    "evicted": "what was missing had been evicted since the decision",
    "duplicate": "the pod told of a copy of a block that it did not have",
    "late": "the index was behind: blocks came after the decision, or their events were lost",
    "other": "no cause was found",
}
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
    sentences = _sums([entry for _, entry in found])
    if len(found) < len(rows):
        missing = len(rows) - len(found)
        sentences.append(f"{missing} of {len(rows)} turns have no decision on file")
    ranked = sorted(found, key=lambda pair: -_badness(pair[1]))[:WORST]
    worst = [_worst(row, entry) for row, entry in ranked if _badness(entry) > 0]
    words = ("turn", "session", "pod", "why", "cause")
    numbers = ("prompt", "predicted", "delivered", "regret")
    grid = Grid("Where most was given away", words, numbers, worst) if worst else None
    return Told(sentences, grid)


def explain_turn(row: TurnRecord, decisions: Sequence[Entry]) -> list[Told]:
    """Return what was decided on a turn, each time that it was tried."""
    return [
        Told(_sentences(row, entry, number), _candidates(entry))
        for number, entry in enumerate(decisions, 1)
    ]


def _worst(row: TurnRecord, entry: Entry) -> list[str]:
    """Return a row of the table of the worst."""
    return [
        str(row.index),
        f"{row.session}:{row.turn}",
        entry.pod,
        entry.reason,
        entry.cause or "–",
        format_number(entry.prompt_tokens),
        format_number(entry.predicted_tokens),
        format_number(entry.cached_tokens),
        _seconds(entry.regret_s),
    ]


def _sums(entries: Sequence[Entry]) -> list[str]:
    """Return sentences about all decisions together."""
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
        causes = Counter(entry.cause or "other" for entry in compared)
        lines += [
            f"  {count:6} × {cause}: {_CAUSES.get(cause, cause)}"
            for cause, count in causes.most_common()
        ]
    regrets = [entry.regret_s for entry in entries if entry.regret_s is not None]
    if regrets:
        free = sum(regret == 0 for regret in regrets)
        lines.append(
            f"regret: {format_seconds(sum(regrets) / len(regrets))} on average; "
            f"{format_share(free / len(regrets))} of the decisions were the best there was"
        )
    return lines


def _sentences(row: TurnRecord, entry: Entry, attempt: int) -> list[str]:
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
        cause = _CAUSES.get(entry.cause or "", entry.cause or "")
        lines.append(
            f"{format_number(entry.predicted_tokens)} cached tokens predicted, "
            f"{format_number(entry.cached_tokens)} delivered: {cause}"
        )
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
    return lines


def _candidates(entry: Entry) -> Grid:
    """Return the table of pods and terms, the cheapest first."""
    return Grid(
        "Pods that could have been chosen, the cheapest first",
        ("", "pod", "known", "cost is made of"),
        ("holds", "taken for", "cost", "first token"),
        [_option(one, one.pod == entry.pod) for one in entry.candidates],
    )


def _option(one: Option, chosen: bool) -> list[str]:
    """Return a row of the table of pods."""
    return [
        "→" if chosen else "",
        one.pod,
        one.trust,
        " ".join(f"{term} {format_number(value)}" for term, value in one.terms.items()),
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
