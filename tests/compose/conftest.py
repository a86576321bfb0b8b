"""The stack, started once for all tests here."""

from __future__ import annotations

import pytest
from compose.running import Composed, ours

from kvbench.stack.local import free_ports


@pytest.fixture(scope="session")
def stack():
    """Start the stack; nothing of it is left afterwards."""
    names = ["ROUTER_PORT", "LOCUST_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT", "GRAFANA_PORT"]
    composed = Composed(dict(zip(names, free_ports("127.0.0.1", len(names)), strict=True)))
    composed.compose("down", "--volumes", "--remove-orphans")
    try:
        composed.compose("build", "--quiet", "router")
        composed.up()
        yield composed
    finally:
        composed.compose("down", "--volumes", "--remove-orphans")
    assert [ours(kind) for kind in ("container", "network", "volume")] == [[], [], []]
