"""What tests of servers are run by."""

from __future__ import annotations

import asyncio

import pytest
from wire import run


def test_a_connection_that_a_scenario_leaves_open_is_an_error_and_does_not_hang():
    """The loop would wait for it, and nobody would close it."""

    async def scenario() -> list[object]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        return [server, await loop.create_connection(asyncio.Protocol, *address)]

    with pytest.raises(ResourceWarning, match="unclosed resource"):
        run(scenario())
