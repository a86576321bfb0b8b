"""What the policies have in common: the cheapest candidate wins, and ties are drawn.

Rules:

- Of equal costs the one with more cached tokens wins, for it leaves the fleet less work.
- What is still a tie is broken by chance, from a seeded generator, each as likely as the other.
  Taking the first would send a cold burst to one pod; so does rotating, if arrivals are regular.
- Where one pod is offered, it is chosen because it is the "only" one, whatever its cost.
- A policy without memory has nothing to learn: `Memoryless` says so once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.policies.decision import Candidate, Decision

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kvbench.policies.decision import Outcome, Reason, RouteRequest
    from kvbench.policies.pod_state import PodState


def cheapest(candidates: Sequence[Candidate], rng: random.Random) -> Candidate:
    """Return a candidate of the least cost; of several the best matched; of several one drawn."""
    ranks = [(candidate.cost, -candidate.matched_tokens) for candidate in candidates]
    best = min(ranks)
    tied = [one for one, rank in zip(candidates, ranks, strict=True) if rank == best]
    return tied[0] if len(tied) == 1 else rng.choice(tied)


def by_load(pods: Sequence[PodState]) -> tuple[Candidate, ...]:
    """Return the pods as candidates whose cost is their requests in flight."""
    return tuple(
        Candidate(pod.name, 0, float(pod.in_flight), {"in_flight": pod.in_flight}) for pod in pods
    )


def decide(
    policy: str, chosen: Candidate, reason: Reason, candidates: Sequence[Candidate]
) -> Decision:
    """Return the decision for `chosen`, given why and out of what."""
    why: Reason = "only" if len(candidates) == 1 else reason
    return Decision(
        pod=chosen.pod,
        policy=policy,
        reason=why,
        matched_tokens=chosen.matched_tokens,
        table=tuple(candidates),
        expected_s=chosen.terms.get("prefill_s"),
    )


class Memoryless:
    """A policy that needs not know what became of its requests."""

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Learn nothing."""

    def finished(
        self, request: RouteRequest, decision: Decision, outcome: Outcome, now: float
    ) -> None:
        """Learn nothing."""

    def witnessed(
        self, request: RouteRequest, before: PodState, outcome: Outcome, now: float
    ) -> None:
        """Learn nothing."""

    def forget(self, pod: str) -> None:
        """Learn nothing."""
