"""When a beginning that is held where it is busy is worth a copy: rent, until that is the price.

A request that goes where its beginning is held, though another pod is less busy, pays for that: its
*rent*. One rent hardly ever makes up for computing the beginning anew, but all who come later would
have the copy too. Nobody knows how many will, and that need not be known: who rents until the rents
add up to the price, and buys then, pays at most twice what he had to (ski rental: Karlin, Manasse,
Rudolph and Sleator, "Competitive snoopy caching").

Rents are added up for each beginning, by the key of its last block, and for each pod on which a
copy would have saved them. Not over all pods: of several that are even in the long run one is the
less busy at every moment, and a copy on one of them saves only what is paid while that one is.
They fade, for a copy does not stay for ever and takes the room of others: by a factor e for each
quarter of a turn of the caches. A beginning that was copied starts anew. Those of which rent was
paid last are remembered.
"""

from __future__ import annotations

import math
from typing import Final

_MOST: Final = 4096  # beginnings that are remembered
_FADE: Final = 4.0  # per turn


class Rents:
    """What was paid for each beginning: prefixes are keys of blocks, turns those of the caches."""

    def __init__(self) -> None:
        # Seconds by pod, and at which turn; latest last.
        self._paid: dict[int, tuple[dict[str, float], float]] = {}

    def paid(self, prefix: int, turns: float) -> dict[str, float]:
        """Return what was paid for a prefix by pod, in seconds, after so many turns of caches."""
        paid = self._paid.get(prefix)
        if paid is None:
            return {}
        left = math.exp(_FADE * (paid[1] - turns))
        return {pod: seconds * left for pod, seconds in paid[0].items()}

    def pay(self, prefix: int, seconds: dict[str, float], turns: float) -> None:
        """Take note that so much has been paid for a prefix by pod, all in all."""
        self._paid.pop(prefix, None)
        self._paid[prefix] = (seconds, turns)
        if len(self._paid) > _MOST:
            del self._paid[next(iter(self._paid))]

    def bought(self, prefix: int) -> None:
        """Begin anew: there is one more copy of a prefix."""
        self._paid.pop(prefix, None)
