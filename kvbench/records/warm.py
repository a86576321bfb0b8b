"""Whether caches may hold this very plan already: has an earlier run sent it there?

A run under a salt of its own hits nothing of an earlier one, and one that empties the caches first
finds them empty. What is left are runs without either: the same plan, sent to the same target
again, would hit what it left there itself and look far better than it is.

Known are the runs beside which this one is about to lie. (What others sent, no file here says; that
shows afterwards, as hits above the ceiling: `kvbench.records.validity`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.records.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbench.records.manifest import Manifest


def refuse_warm(runs: Path, manifest: Manifest) -> None:
    """Refuse a run whose plan was sent to its target before, unless it is meant to be warm.

    Args:
        runs: Folder of all runs.
        manifest: Of the run that is about to begin.

    Raises:
        InputError: It is so.
    """
    if manifest.isolation != "none" or manifest.warm:
        return
    for folder, earlier in _runs(runs):
        if _plan(earlier) == _plan(manifest) and earlier.isolation in {"none", "reset"}:
            raise InputError(
                f"{folder.id} sent this very plan to {manifest.target}, and neither run has a salt "
                "of its own: the caches may still hold it",
                hint="take --isolation salt or reset; or --warm, if warm caches are what you want "
                "to measure",
            )


def _plan(manifest: Manifest) -> tuple[object, ...]:
    """Return what two manifests have in common if they send the same to the same target."""
    workload = manifest.workload
    return manifest.target, manifest.model, workload.sha256, manifest.seed, workload.limit


def _runs(runs: Path) -> Iterator[tuple[RunFolder, Manifest]]:
    """Yield the runs that can be read, the latest first."""
    for path in sorted(runs.glob("*/manifest.json"), reverse=True):
        folder = RunFolder(path.parent)
        try:
            yield folder, folder.read_manifest()
        except InputError:
            continue  # it is of a newer kvbench, or damaged: nothing is known of it
