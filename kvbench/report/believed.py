"""What the router believed to be cached, and what was: one run, folded by cause.

Why a prediction failed stands in each row (`TurnRecord.prediction_cause`); a turn whose prediction
was not met and whose cause nobody has told is "untold". A prediction that was met is "none".

Of each cause at most `MOST_SHOWN` turns are kept to be drawn, evenly spread over the run: so a
cause that is rare is seen beside a thousand turns that went well. Counts are of all turns.

A run without predictions has none of this: its target was a pod or another router, or its policy
does not look at what is cached (and no index knew it either).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.policies.prediction import CAUSES
from kvbench.units import format_number, format_share

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

MOST_SHOWN = 400
"""Turns of one cause that are drawn."""

UNTOLD = "untold"

MEANINGS = {
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
    UNTOLD: "no decision with a cause is on file",
}
"""What each cause means, in words for people."""


@dataclass(frozen=True, slots=True)
class Share:
    """Answered turns of one cause.

    Attributes:
        cause: A word of `MEANINGS`, or one that a newer router has.
        turns: How many.
        apart: Cached tokens by which prediction and delivery differ, all turns together.
        predicted: Tokens of those that are drawn.
        delivered: Cached tokens of the same.
    """

    cause: str
    turns: int
    apart: int
    predicted: NDArray[np.float64]
    delivered: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Believed:
    """What the router believed to be cached, and what was.

    Attributes:
        shares: By cause: what went as predicted first, then in the order of `CAUSES`.
        turns: Answered turns for which both are known.
        exact: Of those, the share in which both are equal to less than one block.
        predicted_tokens: Of all of them.
        missing_tokens: Predicted and not found, of all of them.
        surprise_tokens: Found and not predicted, of all of them.
        policies: Who chose the pods; empty where no router of kvbench did.
    """

    shares: tuple[Share, ...]
    turns: int
    exact: float
    predicted_tokens: int
    missing_tokens: int
    surprise_tokens: int
    policies: tuple[str, ...]

    @property
    def failed(self) -> tuple[Share, ...]:
        """The causes why predictions were not met, the most frequent first."""
        failed = [share for share in self.shares if share.cause != "none"]
        return tuple(sorted(failed, key=lambda share: -share.turns))


def believed(frame: pd.DataFrame, block: int) -> Believed:
    """Fold the rows of a run.

    Args:
        frame: All rows.
        block: Tokens per block.
    """
    known = frame[frame["ok"] & frame["predicted_tokens"].notna() & frame["cached_tokens"].notna()]
    predicted = known["predicted_tokens"].to_numpy(dtype=np.float64)
    delivered = known["cached_tokens"].to_numpy(dtype=np.float64)
    apart = delivered - predicted
    told = known["prediction_cause"].astype(object)
    told = told.where(told.notna() & (told != "none"), UNTOLD)
    causes = np.where(apart == 0, "none", told.to_numpy(dtype=object))
    return Believed(
        shares=tuple(
            _share(cause, predicted[causes == cause], delivered[causes == cause])
            for cause in sorted(set(causes.tolist()), key=_order)
        ),
        turns=len(known),
        exact=float((np.abs(apart) < block).mean()) if len(known) else 0.0,
        predicted_tokens=int(predicted.sum()),
        missing_tokens=int(-np.minimum(apart, 0).sum()),
        surprise_tokens=int(np.maximum(apart, 0).sum()),
        policies=tuple(sorted(frame["policy"].dropna().unique())),
    )


def sentence(found: Believed) -> str:
    """Say how often the router was right, by how much it was wrong, and why; or who is silent."""
    if not found.predicted_tokens:
        if not found.policies:
            return "nobody predicted what would be cached: a pod, or another router, does not."
        if not found.turns:
            return "there is no answer with which a prediction could be compared."
        return f"{' and '.join(found.policies)} predicted no cached token."
    lost = format_share(found.missing_tokens / found.predicted_tokens)
    more = format_number(found.surprise_tokens)
    why = ", ".join(
        f"{format_number(share.turns)} {share.cause} ({format_number(share.apart)} tokens)"
        for share in found.failed
    )
    right = f"right to a block in {format_share(found.exact)} of {format_number(found.turns)}"
    return (
        f"{right} turns; {lost} of the predicted tokens were not there, and {more} were "
        f"that nobody had predicted{f'; why: {why}' if why else ''}."
    )


def _share(cause: str, predicted: NDArray[np.float64], delivered: NDArray[np.float64]) -> Share:
    count = len(predicted)
    drawn = np.linspace(0, count - 1, min(count, MOST_SHOWN)).astype(int)
    apart = int(np.abs(delivered - predicted).sum())
    return Share(cause, count, apart, predicted[drawn], delivered[drawn])


def _order(cause: str) -> tuple[int, str]:
    return (CAUSES.index(cause) if cause in CAUSES else len(CAUSES), cause)
