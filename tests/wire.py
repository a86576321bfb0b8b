"""A raw client for tests of servers: bytes out, bytes in, and a reader of answers."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import uvloop

from kvbench.http.server import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from kvbench.http.server import Exchange, Server

P = ParamSpec("P")
T = TypeVar("T")


def run(scenario: Coroutine[object, object, T]) -> T:
    """Run a scenario on the loop that the processes run on, for at most ten seconds.

    What it leaves open is an error when the loop has closed. While it closes, it must be a warning:
    as an error it would keep uvloop from closing that connection, and then waiting for it for ever.
    """
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        result = uvloop.run(asyncio.wait_for(scenario, 10))
    for one in left:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return result


def scene(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Let an asynchronous function be a test."""

    @wraps(test)
    def played(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return played


@dataclass
class Answer:
    """An HTTP answer, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    """One connection over which a test says exactly what it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def get(self, path: str, headers: str = "") -> None:
        """Send a GET."""
        self.send(f"GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n".encode())

    def post(self, path: str, body: bytes, headers: str = "") -> None:
        """Send a POST of JSON."""
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        self.send(f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a status line and headers."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        """Read one chunk; empty is the last."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read a whole answer, however it is framed."""
        status, headers = await self.head()
        if bodiless or status in {204, 304}:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while piece := await self.chunk():
                body += piece
            return Answer(status, headers, body)
        if "content-length" in headers:
            length = int(headers["content-length"])
            return Answer(status, headers, await self.reader.readexactly(length))
        return Answer(status, headers, await self.reader.read())

    async def at_end(self) -> bool:
        """Wait for the server to close; return whether nothing more came."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        """Leave."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawClient]:
    """Open a connection for the length of a block."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def serving(handler: Callable[[Exchange], None], **limits: float) -> AsyncIterator[Server]:
    """Serve for the length of a block, on a free port."""
    server = await serve(handler, "127.0.0.1", 0, **limits)
    try:
        yield server
    finally:
        await server.close(0.5)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has become true."""
    while not condition():  # noqa: ASYNC110 - the condition is anything a test can see
        await asyncio.sleep(0.001)
