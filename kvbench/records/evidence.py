"""All that a run left behind, read once: what reports and gates are made from.

Whether it may be believed is decided here and nowhere else: by what the rows and the generator say
(`kvbench.records.validity`) and by what the servers say of the same time. Two witnesses that
disagree make a measurement invalid:

- a server that was restarted lost its cache in the middle of the run;
- where every turn was answered and says what was cached, the pods' own counters must have grown by
  just that. They may not if others send traffic there, if a cache was reset or if rows are lost.

A run without `server.jsonl` (an older one, or pods without `/metrics`) is judged by its rows, and
by the counters in its manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvbench.records.reader import read_frame
from kvbench.records.server import read_server
from kvbench.records.summary import summarise
from kvbench.records.validity import Limits, validity
from kvbench.units import format_number, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from kvbench.records.manifest import Manifest
    from kvbench.records.run import RunFolder
    from kvbench.records.server import ServerSeries
    from kvbench.records.summary import Summary

_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run.

    Attributes:
        folder: Where it lies.
        manifest: As found.
        frame: All rows.
        summary: Of all rows.
        server: What pods and router said, by name; empty where nothing was kept.
        reasons: Why it may not be judged; empty means that it may.
    """

    folder: RunFolder
    manifest: Manifest
    frame: pd.DataFrame
    summary: Summary
    server: Mapping[str, ServerSeries]
    reasons: tuple[str, ...]


def read_evidence(folder: RunFolder, limits: Limits = _LIMITS) -> Evidence:
    """Read a run.

    Args:
        folder: The run.
        limits: What it must keep to be believed; left out, the lateness that was accepted when the
            run was made is accepted here too.

    Raises:
        InputError: Its files cannot be read.
    """
    manifest = folder.read_manifest()
    if limits == _LIMITS and manifest.max_lateness_s is not None:
        limits = replace(limits, lateness_p99_s=manifest.max_lateness_s)
    frame, damage = read_frame(folder)
    summary = summarise(frame, manifest)
    server = read_server(folder, manifest.started_at)
    reasons = [
        *validity(summary, manifest, damage, limits),
        *server_reasons(summary, manifest, server, limits),
    ]
    return Evidence(folder, manifest, frame, summary, server, tuple(dict.fromkeys(reasons)))


def server_reasons(
    summary: Summary,
    manifest: Manifest,
    server: Mapping[str, ServerSeries],
    limits: Limits = _LIMITS,
) -> list[str]:
    """Return the reasons that the servers give why the run may not be judged."""
    reasons = [
        f"{name} was restarted during the run, {series.restarts[0]:.0f} s after its start"
        for name, series in server.items()
        if series.restarts
    ]
    return reasons or _disagreement(summary, manifest, server, limits)


def _disagreement(
    summary: Summary, manifest: Manifest, server: Mapping[str, ServerSeries], limits: Limits
) -> list[str]:
    hits = summary.hits
    counted = counted_hits(manifest, server)
    if counted is None or summary.failures or hits.unknown or not hits.prompt_tokens:
        return []
    more = counted - hits.cached_tokens
    share = abs(more) / hits.prompt_tokens
    if share <= limits.counters_apart:
        return []
    than = "more" if more > 0 else "fewer"
    why = (
        "others sent traffic there, or rows are lost"
        if more > 0
        else "a pod was replaced, or its counters were read late"
    )
    apart = f"{format_number(abs(more))} cached tokens {than} than the rows hold"
    return [f"the pods counted {apart} ({format_share(share)} of all prompt tokens): {why}"]


def counted_hits(manifest: Manifest, server: Mapping[str, ServerSeries]) -> int | None:
    """Return the cached tokens by the pods' own counters; None where one was not read."""
    pods = [series for series in server.values() if series.kind == "pod"]
    gained = [series.gained("hits") for series in pods]
    if pods and all(value is not None for value in gained):
        return int(sum(value for value in gained if value is not None))
    told = [(pod.before, pod.after) for pod in manifest.pods.values()]
    read = [after.hits - before.hits for before, after in told if before and after]
    return sum(read) if read and len(read) == len(told) and min(read) >= 0 else None
