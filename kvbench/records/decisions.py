"""What a router decided on the requests of a run, and what came of it.

A router shows its last decisions (`GET /decisions`); while a run goes on they are collected in the
run's folder, a JSON line each, in the order in which the requests ended. Rows and decisions are
joined by the request's id. A request that was tried on several pods has a decision for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


class Option(msgspec.Struct, frozen=True):
    """A pod that could have been chosen.

    Attributes:
        pod: Its name.
        matched_tokens: Prompt tokens that the policy took for cached there.
        cost: The policy's figure; less is better.
        terms: What the cost is made of.
        trust: Whether what it holds is known: "exact", "degraded", "cold".
        held_tokens: Prompt tokens that it held by its own account; None where that is not exact.
        expected_ttft_s: Seconds to first token that were to be expected there, if it is exact.
    """

    pod: str
    matched_tokens: int
    cost: float
    terms: dict[str, float]
    trust: str
    held_tokens: int | None = None
    expected_ttft_s: float | None = None


class Entry(msgspec.Struct, kw_only=True):
    """A decision, and what came of it.

    Attributes:
        id: The request's id.
        at: When it was decided, calendar seconds.
        model: The model asked for.
        pod: The chosen pod.
        policy: Who chose.
        reason: Why, in one word.
        prompt_tokens: As the router counted or estimated them.
        exact: Whether the tokens are known, so that pods could be matched exactly.
        predicted_tokens: Cached tokens that were predicted.
        candidates: All that could have been chosen, the cheapest first.
        regret_s: Expected seconds to first token there, less those at the best pod, by what the
            pods really held; None where that is not known of every pod.
        number: Which request it was to end, counted from 1; 0 while it has not.
        ttft_s: Seconds to its first token; None where that cannot be told.
        pod_prompt_tokens: Prompt tokens as the pod counted them.
        cached_tokens: Of these, found in its cache.
        cause: Why that is not what was predicted; "none" if it is.
    """

    id: str
    at: float
    model: str
    pod: str
    policy: str
    reason: str
    prompt_tokens: int
    exact: bool
    predicted_tokens: int
    candidates: list[Option]
    regret_s: float | None = None
    number: int = 0
    ttft_s: float | None = None
    pod_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cause: str | None = None


def read_decisions(path: Path) -> dict[str, list[Entry]]:
    """Return the decisions in a file, by the request's id; a line that is broken is passed over."""
    found: dict[str, list[Entry]] = {}
    if not path.is_file():
        return found
    decoder = msgspec.json.Decoder(Entry)
    with path.open("rb") as lines:
        for line in lines:
            try:
                entry = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            found.setdefault(entry.id, []).append(entry)
    return found
