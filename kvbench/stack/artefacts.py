"""All files that are generated and committed: `kvbench generate` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts import pack
from kvbench.dashboards import boards
from kvbench.errors import InputError
from kvbench.metrics import document

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.alerts.settings import Settings


def artefacts(settings: Settings) -> dict[str, str]:
    """Return every generated file: its path in the repository, and its contents.

    Raises:
        InputError: An objective that falls between buckets.
    """
    rules = {f"alerts/{name}": text for name, text in pack.files(settings).items()}
    drawn = {f"dashboards/{name}": text for name, text in boards.files(settings).items()}
    return {**rules, **drawn, "docs/metrics.md": document.page()}


def stale(into: Path, settings: Settings) -> list[str]:
    """Return the paths of files in `into` that are missing or not what would be written."""
    return [
        name
        for name, text in artefacts(settings).items()
        if not (into / name).is_file() or (into / name).read_text() != text
    ]


def write(into: Path, settings: Settings) -> list[str]:
    """Write what is stale, and return its paths.

    Raises:
        InputError: A file cannot be written.
    """
    changed = stale(into, settings)
    made = artefacts(settings)
    for name in changed:
        try:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_text(made[name])
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}",
                where=str(into / name),
                hint="--into DIR takes a folder that you may write to",
            ) from None
    return changed
