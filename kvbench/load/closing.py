"""The end of a run that Locust was started for by hand: its manifest is completed and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvbench.clock import utc
from kvbench.records.manifest import Counts
from kvbench.records.reader import read_frame
from kvbench.records.summary import summarise
from kvbench.records.validity import validity

if TYPE_CHECKING:
    from kvbench.records.manifest import State
    from kvbench.records.run import RunFolder


def close(folder: RunFolder, state: State) -> None:
    """Count the rows, ask whether they may be judged, and write both into the manifest.

    Raises:
        InputError: The folder cannot be read or written.
    """
    manifest = msgspec.structs.replace(
        folder.read_manifest(),
        state=state,
        ended_at=utc().isoformat(),
        load=folder.read_testimonies(),
    )
    frame, damage = read_frame(folder)
    summary = summarise(frame, manifest)
    counts = Counts(
        planned=manifest.planned_turns,
        rows=summary.turns,
        ok=summary.turns - summary.failures,
        failed=summary.failed,
    )
    reasons = validity(summary, manifest, damage)
    folder.write_manifest(msgspec.structs.replace(manifest, counts=counts, validity=reasons))
