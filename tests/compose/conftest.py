"""The stack, started once for all tests here."""

from __future__ import annotations

import pytest
from compose.running import Composed, ours

from kvbench.stack.compose import PORTS
from kvbench.stack.local import free_ports


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """Start the stack as `make up` does; nothing of it is left afterwards."""
    ports = dict(zip(PORTS, free_ports("127.0.0.1", len(PORTS)), strict=True))
    composed = Composed(ports, tmp_path_factory.mktemp("compose") / "override.yml")
    composed.compose("down", "--volumes", "--remove-orphans")
    try:
        started = composed.kvbench("up", "--compose")
        assert started.returncode == 0, started.stderr[-3000:]
        assert f"grafana        http://127.0.0.1:{ports['GRAFANA_PORT']}" in started.stdout
        yield composed
    finally:
        composed.compose("down", "--volumes", "--remove-orphans")
    assert [ours(kind) for kind in ("container", "network", "volume")] == [[], [], []]
