"""What a router knows of caches and of tokens, and where it writes what it has decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.clock import Clock
    from kvbench.kvcache.ledger import Ledger
    from kvbench.router.journal import Journal
    from kvbench.router.tokens import PromptTokens


class WatchedIndex:
    """What pods hold by their own account, and how long it takes to look that up.

    Attributes:
        ledger: Who knows.
        spent_s: Seconds of the last look-up.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.spent_s = 0.0
        self._clock = clock
        self._asked: tuple[Sequence[int], list[str]] = ((), [])
        self._found: dict[str, int] = {}

    def match(self, hashes: Sequence[int], block_size: int, pods: Sequence[str]) -> dict[str, int]:
        """Return, for those of `pods` that are exact, how many of the blocks they hold."""
        began = self._clock.now()
        self._found = self.ledger.match(hashes, block_size, pods)
        self._asked = (hashes, list(pods))
        self.spent_s = self._clock.now() - began
        return self._found

    def again(self, hashes: Sequence[int], block_size: int, pods: list[str]) -> dict[str, int]:
        """Return the same without looking, if that was just asked."""
        before, among = self._asked
        if before is hashes and among == pods:
            return self._found
        return self.match(hashes, block_size, pods)


@dataclass(frozen=True, slots=True)
class Books:
    """What a router knows of caches and tokens, and where it writes what it decides.

    Attributes:
        index: What pods hold by their own account.
        tokens: The models whose tokens the router makes itself.
        journal: The last decisions.
        utc: Calendar seconds.
    """

    index: WatchedIndex
    tokens: PromptTokens
    journal: Journal
    utc: Callable[[], float]
