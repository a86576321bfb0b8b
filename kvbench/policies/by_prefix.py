"""What policies have in common that look for the beginning of a prompt: whom they tell.

It stands apart, for what others inherit from is not compiled (`scripts/compiled.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.policies.prefixes import PrefixSource, RoutedPrefixes, sent_by_another

if TYPE_CHECKING:
    import random

    from kvbench.policies.decision import Decision, Outcome, RouteRequest
    from kvbench.policies.pod_state import PodState


class ByPrefix:
    """A policy that asks what pods have, and tells where prompts went.

    Args:
        rng: For ties.
        prefixes: Says what pods have; None takes what was sent where.
    """

    def __init__(self, rng: random.Random, prefixes: PrefixSource | None = None) -> None:
        self._rng = rng
        self._prefixes = prefixes or RoutedPrefixes()

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Take the prompt for present there."""
        self._prefixes.placed(request, pod, now)

    def finished(
        self,
        request: RouteRequest,
        decision: Decision,
        outcome: Outcome,
        now: float,  # noqa: ARG002 - every policy is told
    ) -> None:
        """Compare what was believed with what was delivered."""
        self._prefixes.finished(request, decision, outcome)

    def witnessed(
        self,
        request: RouteRequest,
        before: PodState,
        outcome: Outcome,
        now: float,  # noqa: ARG002 - every policy is told
    ) -> None:
        """Compare what was believed here with what was delivered."""
        sent = sent_by_another(self._prefixes, request, before.name)
        self._prefixes.finished(request, sent, outcome)

    def forget(self, pod: str) -> None:
        """Drop what was believed of the pod."""
        self._prefixes.forget(pod)
