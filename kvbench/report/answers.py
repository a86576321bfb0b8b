"""What is wrong with answers, by how much of the window they took: a few lines of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.records.schema import CONTEXT_BOUNDS, CONTEXTS
from kvbench.text.degeneration import KINDS, LEAST_WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from kvbench.records.schema import Context
    from kvbench.text.degeneration import Degeneration


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that took as much of the window.

    Attributes:
        context: How much.
        judged: How many could be judged.
        kinds: Of these, those that something is wrong with, by kind; kinds without any are there.
    """

    context: Context
    judged: int
    kinds: Mapping[Degeneration, int]

    @property
    def share(self) -> float:
        """Share of the judged that something is wrong with."""
        return sum(self.kinds.values()) / self.judged


def answers_by_context(frame: pd.DataFrame) -> tuple[Answers, ...]:
    """Return the judged answers by context; nothing where nothing is wrong with any.

    Args:
        frame: The rows of a run. What counts as judged, and which context a row has, is as
            `TurnRecord.judged` and `TurnRecord.context` say it.
    """
    ill = frame["degeneration"].astype(object)
    if not ill.notna().any():
        return ()
    judged = ill.notna() | (frame["ok"] & (frame["completion_tokens"] >= LEAST_WORDS))
    ratio = frame["context_ratio"].to_numpy(dtype=np.float64)
    place = np.searchsorted(CONTEXT_BOUNDS, ratio)
    place[np.isnan(ratio)] = CONTEXTS.index("unknown")
    place[(~frame["ok"] & (ill == "overflow")).to_numpy(dtype=bool)] = CONTEXTS.index("over")
    found = []
    for index, context in enumerate(CONTEXTS):
        here = judged & (place == index)
        if here.any():
            kinds = {kind: int((here & (ill == kind)).sum()) for kind in KINDS}
            found.append(Answers(context, int(here.sum()), kinds))
    return tuple(found)
