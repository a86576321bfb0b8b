"""What tests of reports share."""

import pytest

from kvbench.report import page


@pytest.fixture
def chartless(monkeypatch):
    """Pages without charts, for tests of what stands around them: drawing takes the longest."""
    monkeypatch.setattr(page, "charts", lambda _arms, _late_s: [])
