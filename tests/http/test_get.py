from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from kvbench.http.get import Failure, get

OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def server(*pieces: bytes, hold: bool = False):
    """Answer whoever connects with these pieces; with `hold`, leave the connection open."""
    over = asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hold:
            await over.wait()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/metrics?a=b"
    finally:
        over.set()
        listener.close()


def ask(*pieces: bytes, hold: bool = False, timeout_s: float = 10.0, most: int = 4096):
    """Return what `get` makes of a server that sends these pieces."""

    async def run():
        async with server(*pieces, hold=hold) as url:
            return await get(url, timeout_s=timeout_s, most=most)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([OK + b"content-length: 5\r\n\r\n", b"hello"], id="with a length"),
        pytest.param(
            [OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"],
            id="in chunks",
        ),
        pytest.param([OK + b"\r\nhel", b"lo"], id="until the connection ends"),
        pytest.param(
            [b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 5\r\n\r\nhello"],
            id="after an interim answer",
        ),
    ],
)
def test_a_body_is_read_however_it_is_framed(pieces):
    """A length, chunks, or the connection's end."""
    assert ask(*pieces) == b"hello"


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        pytest.param([b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"], "http", id="404"),
        pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n"], "nonsense", id="another protocol"),
        pytest.param([], "nonsense", id="nothing at all"),
        pytest.param([OK + b"content-length: 9\r\n\r\nhello"], "nonsense", id="broken off"),
        pytest.param([OK + b"\r\n", b"x" * 5000], "too_long", id="more than it may be"),
        pytest.param([b"HTTP/1.1 302 Found\r\nlocation: /\r\n\r\n"], "http", id="a redirect"),
    ],
)
def test_anything_else_is_a_failure_with_a_kind(pieces, kind):
    """So that it can be counted."""
    assert ask(*pieces).kind == kind


def test_a_server_that_answers_for_ever_costs_the_timeout_and_no_more():
    """A byte now and then does not extend it."""
    answer = ask(OK + b"content-length: 9\r\n\r\nhello", hold=True, timeout_s=0.2)

    assert answer == Failure("timeout", "no answer in 0.2 s")


def test_nobody_there_is_refused():
    """As is a host that there is not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        answer = asyncio.run(get(f"http://127.0.0.1:{port}", timeout_s=5.0))

    assert answer == Failure("refused", "connection refused")
    assert asyncio.run(get("http://a..b/", timeout_s=5.0)).kind == "refused"


@pytest.mark.parametrize("key", [None, "k1"])
def test_a_key_is_sent_as_openais_is_and_only_if_there_is_one(key):
    """In a header, and nowhere else."""
    heads = []

    async def run():
        async def answer(reader, writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK + b"content-length: 0\r\n\r\n")
            writer.close()

        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        await get(f"http://127.0.0.1:{port}/v1/models", timeout_s=5.0, key=key)
        listener.close()

    asyncio.run(run())
    assert (b"authorization: Bearer k1\r\n" in heads[0]) == (key is not None)
