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
sixteenth of a turn of the caches. So what pods are busier by chance, now this one and now that,
does not add up. A beginning that was copied starts anew.

Where a conversation began, its later turns go. So what they pay counts for the beginning that its
first turn found cached, which is what the next conversations ask for; their own is asked for once.

What was paid last is remembered, and of conversations those that went on last.
"""

from __future__ import annotations

import math
from typing import Final

_MOST: Final = 4096  # beginnings that are remembered
_CONVERSATIONS: Final = 16_384
_FADE: Final = 16.0  # per turn: half as much does about as well, but copies sooner


class Rents:
    """What was paid for each beginning: prefixes are keys of blocks, turns those of the caches."""

    def __init__(self) -> None:
        # Seconds by pod, and at which turn; latest last.
        self._paid: dict[int, tuple[dict[str, float], float]] = {}
        # By the last block of a prompt, with which beginning it began; latest last.
        self._begun: dict[int, tuple[int, int]] = {}

    def goes_on(self, prefix: int, tokens: int, end: int) -> None:
        """Take note that a prompt of which a prefix of so many tokens was there ends with `end`."""
        if prefix != end:
            self._begun[end] = self.beginning(prefix, tokens)
            if len(self._begun) > _CONVERSATIONS:
                del self._begun[next(iter(self._begun))]

    def beginning(self, prefix: int, tokens: int) -> tuple[int, int]:
        """Return with what a conversation began that has come to a prefix, and its tokens."""
        return self._begun.get(prefix, (prefix, tokens))

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
