"""Evidence that never lay on a disk: for gates over many runs."""

from __future__ import annotations

from pathlib import Path

from fakes_records import manifest

from kvbench.records.evidence import Evidence
from kvbench.records.reader import Damage
from kvbench.records.run import RunFolder
from kvbench.records.summary import summarise
from kvbench.records.table import to_frame
from kvbench.records.validity import validity


def evidence_of(rows, **changes) -> Evidence:
    """Return what `read_evidence` would return of a finished run of `rows`."""
    said, frame = manifest(rows, **changes), to_frame(rows)
    summary = summarise(frame, said)
    reasons = tuple(validity(summary, said, Damage()))
    return Evidence(RunFolder(Path("nowhere")), said, frame, summary, {}, reasons)
