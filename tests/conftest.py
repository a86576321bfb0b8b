"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# The machine may be busy: a property is about values, and time has tests of its own.
settings.register_profile("kvbench", deadline=None)
settings.load_profile("kvbench")
