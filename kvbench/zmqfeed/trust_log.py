"""The log of how far pods may be believed: a line whenever that has changed.

It is looked at now and then, not told of each change: a gap that a replay closed in between, as
most are, is counted and needs no line. A pod that has only been named is cold, and nothing is said
of that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.kvcache.ledger import Ledger

logger = logging.getLogger(__name__)


class TrustLog:
    """Remembers what was said last of each pod.

    Args:
        ledger: What is known of the pods.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._said: dict[str, str] = {}

    def tell(self) -> None:
        """Log what has changed: a pod that is degraded is trouble, all else is ordinary."""
        before, self._said = self._said, {}
        for pod in self._ledger.streams:
            trust = self._ledger.trust(pod)
            self._said[pod] = trust.level
            if trust.level != before.get(pod, "cold"):
                level = logging.WARNING if trust.level == "degraded" else logging.INFO
                logger.log(level, "%s: its KV events are %s: %s", pod, trust.level, trust.reason)
