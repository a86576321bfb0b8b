"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The machine may be busy: a property is about values, and time has tests of its own. A change is
# tried on few examples each time, and on many before it lands: HYPOTHESIS_PROFILE=deep.
settings.register_profile("quick", deadline=None, max_examples=30, stateful_step_count=30)
settings.register_profile("deep", deadline=None, max_examples=300, stateful_step_count=60)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
