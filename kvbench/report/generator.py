"""What the load generator says of itself, in a line: whether its numbers can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.units import format_number, format_seconds, format_share

if TYPE_CHECKING:
    from kvbench.records.manifest import Manifest


def generator(manifest: Manifest) -> str | None:
    """Return the testimonies of all load workers in a line; None where there are none."""
    load = manifest.load
    if not load:
        return None
    said = [f"{len(load)} workers" if len(load) > 1 else "1 worker"]
    shares = [w.cpu_share for w in load if w.cpu_share is not None]
    delays = [w.loop_delay_p99_s for w in load if w.loop_delay_p99_s is not None]
    if shares:
        said.append(f"at most {format_share(max(shares))} of a core")
    if delays:
        said.append(f"timers late by {format_seconds(max(delays))} at p99")
    stamps = {w.kernel_stamps for w in load if w.kernel_stamps is not None}
    if stamps:
        said.append("arrivals " + ("stamped by the kernel" if all(stamps) else "not all stamped"))
    for count, what in (
        (sum(w.held_back or 0 for w in load), "held back by --max-in-flight"),
        (sum(w.built_late or 0 for w in load), "built only when due"),
    ):
        if count:
            said.append(f"{format_number(count)} turns {what}")
    return ", ".join(said)
