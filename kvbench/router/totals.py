"""What a router has answered since it began, in words: the last line of its log."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.metrics.instruments import Counts
    from kvbench.router.meters import Meters


def totals(meters: Meters) -> str:
    """Return how many requests pods answered and the router refused, each by how they ended.

    What was counted for pods that have left since is not in it.
    """
    passed, refused = _by_status(meters.requests), _by_status(meters.refusals)
    return f"{_sentence(passed, 'passed on')}, {_sentence(refused, 'refused')}"


def _by_status(counts: Counts) -> Counter[str]:
    """Return a counter's values, summed over all labels but the status; none of no pod."""
    found: Counter[str] = Counter()
    for family in counts.collect():
        for sample in family.samples:
            if sample.labels.get("pod") != "":
                found[sample.labels["status"]] += int(sample.value)
    return found


def _sentence(found: Counter[str], verb: str) -> str:
    """Return a number, and its parts if there are any."""
    parts = ", ".join(f"{status}: {count:,}" for status, count in sorted(found.items()))
    return f"{found.total():,} {verb}" + (f" ({parts})" if parts else "")
