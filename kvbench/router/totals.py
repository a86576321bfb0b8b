"""What a router has answered since it began, in words: the last line of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.router.meters import by_status

if TYPE_CHECKING:
    from collections import Counter

    from kvbench.router.meters import Meters


def totals(meters: Meters) -> str:
    """Return how many requests pods answered and the router refused, each by how they ended.

    Pods that have left since are counted with the others.
    """
    passed = meters.passed_before + by_status(meters.requests)
    refused = by_status(meters.refusals)
    return f"{_sentence(passed, 'passed on')}, {_sentence(refused, 'refused')}"


def _sentence(found: Counter[str], verb: str) -> str:
    """Return a number, and its parts if there are any."""
    parts = ", ".join(f"{status}: {count:,}" for status, count in sorted(found.items()))
    return f"{found.total():,} {verb}" + (f" ({parts})" if parts else "")
