"""Whether a measurement may be judged at all, asked before anything is judged.

A run is valid if the load that was planned is the load that was sent, when it was planned, to pods
that began cold, and every turn left its row. Each reason against it is a sentence for people, with
the number that speaks and the limit it missed. What the *target* did wrong (errors, slowness) is
never a reason here: that is a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.units import format_seconds, format_share

if TYPE_CHECKING:
    from kvbench.records.manifest import Manifest
    from kvbench.records.reader import Damage
    from kvbench.records.summary import Summary


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a measurement may be off and still be believed.

    Attributes:
        lateness_p99_s: How late the 99th of 100 turns may have been sent.
        loop_delay_p99_s: How late the 99th of 100 timers of the generator may have fired.
        above_ceiling: By how much the hit rate may exceed its ceiling (turns that overtake each
            other and answers that tokenise differently move it a little), as a share of the
            prompt tokens.
        counters_apart: By how much the pods' own counters of cached tokens may differ from what
            the rows say, as a share of the prompt tokens.
    """

    lateness_p99_s: float = 0.1
    loop_delay_p99_s: float = 0.1
    above_ceiling: float = 0.005
    counters_apart: float = 0.005


_DEFAULT = Limits()


def validity(
    summary: Summary, manifest: Manifest, damage: Damage, limits: Limits = _DEFAULT
) -> list[str]:
    """Return the reasons why the run may not be judged; empty means that it may."""
    reasons = [
        *manifest.validity,
        *_ended(summary, manifest),
        *_rows_lost(summary, manifest),
        *damage.sentences(),
        *_late(summary, manifest, limits),
        *([] if manifest.warm else _warm(summary, limits)),
    ]
    return list(dict.fromkeys(reasons))  # the manifest may hold what is found again here


def _ended(summary: Summary, manifest: Manifest) -> list[str]:
    if manifest.aborted:  # its gate has failed already, and the turns were held back on purpose
        return []
    said = {
        "running": "the run has not ended, or was killed before it could say so",
        "interrupted": "the run was interrupted before its end",
        "failed": "a part of the stack broke during the run",
        "finished": None,
    }[manifest.state]
    reasons = [said] if said else []
    if not_sent := summary.failed.get("not_sent", 0):
        reasons.append(f"{not_sent} of {summary.turns} turns were never sent")
    if lost := summary.failed.get("lost", 0):
        reasons.append(f"{lost} of {summary.turns} turns were lost with their load worker")
    return reasons


def _rows_lost(summary: Summary, manifest: Manifest) -> list[str]:
    if manifest.aborted:
        return []
    if summary.planned is None:
        return [] if summary.turns else ["there are no rows"]
    if summary.turns == summary.planned:
        return [] if summary.turns else ["the plan has no turns"]
    return [f"{summary.turns} rows for {summary.planned} planned turns"]


def _late(summary: Summary, manifest: Manifest, limits: Limits) -> list[str]:
    reasons = []
    if summary.lateness.p99 > limits.lateness_p99_s:
        reasons.append(
            f"the load generator was late: p99 of {format_seconds(summary.lateness.p99)}, "
            f"limit {format_seconds(limits.lateness_p99_s)}"
        )
    delays = [worker.loop_delay_p99_s or 0.0 for worker in manifest.load]
    if (delay := max(delays, default=0.0)) > limits.loop_delay_p99_s:
        reasons.append(
            f"the load generator was too busy to keep time: its event loop ran late by a p99 of "
            f"{format_seconds(delay)}, limit {format_seconds(limits.loop_delay_p99_s)}"
        )
    return reasons


def _warm(summary: Summary, limits: Limits) -> list[str]:
    hits = summary.hits
    rate, ceiling = hits.bounded_rate, hits.ceiling
    allowed = limits.above_ceiling + abs(hits.counted_off)  # where the ceiling is approximate
    if rate is None or ceiling is None or rate <= ceiling + allowed:
        return []
    said = f"hits of {format_share(rate)} are above the ceiling of {format_share(ceiling)}"
    return [f"{said}: the pods were probably warm from earlier traffic"]
