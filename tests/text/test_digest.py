"""Digests that stand for what came before."""

from __future__ import annotations

import subprocess
import sys

from kvbench.text.digest import digest


def test_a_name_depends_on_all_that_stands_before():
    """And on nothing else, as long as the process lives."""
    first, other = digest(b"a"), digest(b"b")

    assert digest(b"c", first) == digest(memoryview(b"c"), digest(b"a"))
    assert len({first, other, digest(b"c"), digest(b"c", first), digest(b"c", other)}) == 5


def test_another_process_has_other_names():
    """Who knows the names of one cannot make two texts of one name for another."""
    script = "from kvbench.text.digest import digest; print(digest(b'a'))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout

    assert int(said) != digest(b"a")
