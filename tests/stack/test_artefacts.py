"""What is generated is what is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.alerts.settings import Settings
from kvbench.errors import InputError
from kvbench.stack.artefacts import artefacts, stale, write

ROOT = Path(__file__).parents[2]


def test_no_generated_file_of_the_repository_is_stale():
    """`kvbench generate` mends it."""
    assert stale(ROOT, Settings()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    """A file stands where a folder should."""
    (tmp_path / "alerts").write_text("")
    with pytest.raises(InputError, match=r"alerts/.*: cannot be written: "):
        write(tmp_path, Settings())


def test_what_is_written_is_no_longer_stale_and_is_written_once(tmp_path):
    """A folder that is up to date is left alone."""
    assert write(tmp_path, Settings()) == list(artefacts(Settings()))
    assert write(tmp_path, Settings()) == []

    (tmp_path / "alerts" / "alerts.rules.yml").write_text("edited by hand")

    assert stale(tmp_path, Settings()) == ["alerts/alerts.rules.yml"]
