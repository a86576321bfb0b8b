"""The server over real sockets: order, limits, leaving clients, closing."""

from __future__ import annotations

import asyncio

import pytest
from wire import connected, scene, serving, until

from kvbench.errors import TargetError
from kvbench.http.server import Exchange, serve


def hello(exchange: Exchange) -> None:
    """Answer at once."""
    exchange.respond(200, b"hello")


@scene
async def test_a_port_of_zero_takes_a_free_one():
    """The server says which."""
    async with serving(hello) as server:
        assert server.port > 0
        assert server.url == f"http://127.0.0.1:{server.port}"
        async with connected(server.port) as client:
            client.get("/")
            answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.headers["server"] == "kvbench"
        assert answer.headers["date"].endswith(" GMT")


@scene
async def test_a_taken_port_is_an_error_with_a_hint():
    """It is the target that cannot be had, not a bug."""
    async with serving(hello) as server:
        with pytest.raises(
            TargetError, match=f"cannot listen on 127.0.0.1:{server.port}"
        ) as raised:
            await serve(hello, "127.0.0.1", server.port)
        assert raised.value.hint


@scene
async def test_one_connection_serves_many_requests():
    """Among them HEAD and ones that have no body."""
    async with serving(hello) as server, connected(server.port) as client:
        for _ in range(3):
            client.get("/")
            assert (await client.answer()).body == b"hello"
        client.send(b"HEAD / HTTP/1.1\r\n\r\n")
        assert (await client.answer(bodiless=True)).headers["content-length"] == "5"
        client.get("/", "Connection: close\r\n")
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.at_end()


@scene
async def test_an_old_client_is_served():
    """HTTP/1.0 closes behind the answer."""
    async with serving(hello) as server, connected(server.port) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.answer()).body == b"hello"
        assert await client.at_end()


@scene
async def test_answers_come_in_the_order_of_the_requests():
    """Although the second was asked before the first was answered."""
    held: list[Exchange] = []
    async with serving(held.append) as server, connected(server.port) as client:
        client.get("/1")
        client.get("/2")
        await until(lambda: len(held) == 1)
        held[0].respond(200, b"first")
        await until(lambda: len(held) == 2)
        held[1].respond(200, b"second")
        assert [(await client.answer()).body for _ in range(2)] == [b"first", b"second"]


@scene
async def test_the_first_piece_of_a_stream_arrives_before_the_second_is_written():
    """On a connection that has been used before, where delayed acknowledgements bite."""
    held: list[Exchange] = []
    async with serving(held.append) as server, connected(server.port) as client:
        for _ in range(2):
            client.get("/")
            await until(lambda: bool(held))
            exchange = held.pop()
            exchange.start(200, [], None)
            await client.head()
            for piece in (b"a", b"b"):
                exchange.write(piece)
                assert await client.chunk() == piece
            exchange.end()
            assert await client.chunk() == b""


@scene
async def test_a_client_that_leaves_is_noticed():
    """While its answer is awaited."""
    held: list[Exchange] = []
    left: list[bool] = []
    async with serving(held.append) as server:
        async with connected(server.port) as client:
            client.get("/")
            await until(lambda: bool(held))
            held[0].on_close = lambda: left.append(True)
        await until(lambda: bool(left))
        held[0].write(b"to nobody")
        assert not server.connections


@scene
async def test_a_cut_reaches_the_client_as_a_cut():
    """It sees the connection reset, or end inside the body."""
    held: list[Exchange] = []
    async with serving(held.append) as server, connected(server.port) as client:
        client.get("/")
        await until(lambda: bool(held))
        held[0].start(200, [], None)
        held[0].write(b"half")
        await client.head()
        assert await client.chunk() == b"half"
        held[0].abort(reset=True)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.chunk()


@scene
async def test_a_refused_client_can_read_why_while_it_still_sends():
    """Closing at once would reset the connection and lose the answer."""
    async with serving(hello, max_body=1000) as server, connected(server.port) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 100_000)
        assert (await client.answer()).status == 413
        client.send(b"x" * 100_000)
        assert await client.at_end()


@scene
async def test_a_client_that_says_nothing_is_dropped():
    """Idle connections are bounded in time."""
    async with serving(hello, idle_timeout=0.02) as server, connected(server.port) as client:
        assert await client.at_end()


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"GET / HT", id="in the first line"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", id="in the body"
        ),
    ],
)
@scene
async def test_a_client_that_dawdles_is_refused(begun: bytes):
    """Slow heads and stalled bodies get 408."""
    async with serving(hello, read_timeout=0.02) as server, connected(server.port) as client:
        client.send(begun)
        assert (await client.answer()).status == 408
        assert await client.at_end()


@scene
async def test_an_answer_that_takes_long_is_no_idleness():
    """The time limits are for clients, not for handlers."""
    held: list[Exchange] = []
    async with (
        serving(held.append, idle_timeout=0.02, read_timeout=0.02) as server,
        connected(server.port) as client,
    ):
        client.get("/")
        await until(lambda: bool(held))
        now = server.now()
        await until(lambda: server.now() > now + 0.1)
        held[0].respond(200, b"late")
        assert (await client.answer()).body == b"late"


@scene
async def test_closing_lets_exchanges_finish():
    """New clients are turned away, idle ones closed, the one under way answered."""
    held: list[Exchange] = []
    async with (
        serving(held.append) as server,
        connected(server.port) as idle,
        connected(server.port) as client,
    ):
        client.get("/")
        await until(lambda: bool(held))
        closing = asyncio.ensure_future(server.close(5))
        assert await idle.at_end()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        held[0].respond(200, b"done")
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        await closing
        assert not server.connections


@scene
async def test_closing_cuts_what_does_not_finish_in_time():
    """Grace is bounded."""
    held: list[Exchange] = []
    async with serving(held.append) as server, connected(server.port) as client:
        client.get("/")
        await until(lambda: bool(held))
        await server.close(0.01)
        assert await client.at_end()


@scene
async def test_the_server_survives_garbage():
    """After each kind of nonsense the next client is served."""
    garbage = [
        b"\x16\x03\x01\x02\x00",
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00" * 5000,
        b"PRI * HTTP/2.0\r\n\r\n",
    ]
    async with serving(hello) as server:
        for nonsense in garbage:
            async with connected(server.port) as client:
                client.send(nonsense)
            async with connected(server.port) as client:
                client.get("/")
                assert (await client.answer()).body == b"hello"
