"""What is generated is what is committed."""

from __future__ import annotations

from pathlib import Path

from kvbench.alerts.settings import Settings
from kvbench.stack.artefacts import artefacts, stale, write

ROOT = Path(__file__).parents[2]


def test_no_generated_file_of_the_repository_is_stale():
    """`kvbench generate` mends it."""
    assert stale(ROOT, Settings()) == []


def test_what_is_written_is_no_longer_stale_and_is_written_once(tmp_path):
    """A folder that is up to date is left alone."""
    assert write(tmp_path, Settings()) == list(artefacts(Settings()))
    assert write(tmp_path, Settings()) == []

    (tmp_path / "alerts" / "alerts.rules.yml").write_text("edited by hand")

    assert stale(tmp_path, Settings()) == ["alerts/alerts.rules.yml"]
