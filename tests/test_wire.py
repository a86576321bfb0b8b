"""What tests of servers are run by."""

from __future__ import annotations

import asyncio

import pytest
from wire import run


def test_a_connection_that_a_scenario_leaves_open_is_an_error_and_does_not_hang():
    """The loop would wait for it, and nobody would close it."""

    async def scenario() -> list[object]:
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        return [server, await asyncio.open_connection(*server.sockets[0].getsockname())]

    with pytest.raises(ResourceWarning, match="unclosed resource"):
        run(scenario())
