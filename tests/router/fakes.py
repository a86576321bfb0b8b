"""Pods that do as they are told, a client that sees bytes, and a house to put both in.

A pod's script is a coroutine function `(call) -> None`: it reads `call.request` and writes to the
wire. Order is kept by events and by what arrives, never by sleeping.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from dataclasses import dataclass, field
from typing import Self

from wire import run as run_scenario

from kvbench.clock import WallClock
from kvbench.router.service import Router, Settings

CHAT = "/v1/chat/completions"


def run(case, *arguments):
    """Run a test's coroutine function, within ten seconds."""
    return run_scenario(case(*arguments))


def chat(*texts: str, **fields) -> bytes:
    """Return the body of a chat: a system message and then users' and assistants' in turn."""
    roles = ["system", *["user", "assistant"] * len(texts)]
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


@dataclass
class Call:
    """One request that a pod was sent, and the wire to answer on."""

    pod: FakePod
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    writer: asyncio.StreamWriter

    def header(self, name: str) -> str | None:
        """Return the first header of that name."""
        return next((value for key, value in self.headers if key == name), None)

    async def send(self, *pieces: bytes) -> None:
        """Write bytes as they are."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def answer(self, body: bytes = b"{}", status: int = 200, *headers: bytes) -> None:
        """Answer in full."""
        head = b"HTTP/1.1 %d Fine\r\ncontent-length: %d\r\n" % (status, len(body))
        await self.send(head + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body)

    async def begin_stream(self, *pieces: bytes) -> None:
        """Begin an answer in chunks."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n",
            *map(chunk, pieces),
        )

    async def end_stream(self) -> None:
        """End it."""
        await self.send(chunk(b""))

    def cut(self, *, reset: bool = False) -> None:
        """Close the connection."""
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: send RST
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the router has closed the connection."""
        pod, writer = self.pod, self.writer
        if writer not in pod.departures:
            task = asyncio.ensure_future(pod.readers[writer].read())
            pod.departures[writer] = task
        with contextlib.suppress(ConnectionError):
            await asyncio.shield(pod.departures[writer])


def chunk(data: bytes) -> bytes:
    """Return data as a chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def fine(call: Call) -> None:
    """Answer with nothing special."""
    await call.answer(b'{"ok":true}')


async def untold(call: Call) -> None:
    """Have no such page."""
    await call.answer(b"", 404)


def by_turns(*scripts):
    """Return a script that does one after the other, the last for ever."""

    async def script(call):
        number = min(len(call.pod.calls), len(scripts)) - 1
        await scripts[number](call)

    return script


@dataclass
class FakePod:
    """A pod: answers /health itself, /metrics by a script for it, everything else by its script."""

    script: object = fine
    metrics: object = untold
    healthy: bool = True
    frozen: bool = False  # whether it answers nobody that asks for its health
    health: int = 200  # what /health answers while it is
    models: list[str] | None = None  # None leaves /v1/models to the script
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    hanging: list[str] = field(default_factory=list)
    readers: dict = field(default_factory=dict)
    departures: dict = field(default_factory=dict)
    server: asyncio.Server | None = None
    tasks: set = field(default_factory=set)
    port: int = 0
    arrivals: asyncio.Queue = field(default_factory=asyncio.Queue)

    async def start(self) -> FakePod:
        """Listen; on the port it had before, if it had one."""
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=2**22)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close the listener and every connection."""
        self.server.close()
        await asyncio.sleep(0)  # who was just accepted is made known
        for writer in list(self.readers):
            writer.transport.abort()
        for task in tuple(self.tasks):
            task.cancel()
        self.readers.clear()  # a task that is cancelled before it begins does nothing
        await asyncio.gather(*self.tasks, *self.departures.values(), return_exceptions=True)

    def hang_up(self) -> None:
        """Close all connections, as a server does with idle ones."""
        for writer in list(self.readers):
            writer.close()

    @property
    def name(self) -> str:
        """What the router calls it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.name}"

    def _accept(self, reader, writer) -> None:
        """Know a connection from its first moment on, so that none is left when all are closed."""
        self.readers[writer] = reader
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, reader, writer) -> None:
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while not writer.is_closing():
                    await self._one(reader, writer)
        finally:
            self.readers.pop(writer, None)
            writer.close()

    async def _one(self, reader, writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        method, target, _ = first.split(" ")
        headers = [tuple(line.split(": ", 1)) for line in lines]
        length = int(dict(headers).get("content-length", 0))
        body = await reader.readexactly(length)
        call = Call(self, method, target, headers, body, writer)
        if target == "/health":
            self.connections -= 1
            if self.frozen:
                await call.gone()
            await call.answer(b"", self.health if self.healthy else 503)
            return
        if target == "/v1/models" and self.models is not None:
            self.connections -= 1
            entries = [{"id": name, "object": "model", "root": self.name} for name in self.models]
            await call.answer(json.dumps({"object": "list", "data": entries}).encode())
            return
        if target == "/metrics":
            self.connections -= 1
            await self.metrics(call)
            return
        self.calls.append(call)
        self.arrivals.put_nowait(call)
        await self.script(call)


@dataclass
class Reply:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool  # the answer's end was seen

    def json(self):
        """Return the body as a document."""
        return json.loads(self.body)


class Client:
    """A client's connection."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, url: str) -> Client:
        """Connect."""
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=2**22))

    def send(self, method: str, target: str, body: bytes = b"", *headers: str) -> None:
        """Send a request."""
        lines = [f"{method} {target} HTTP/1.1", "host: localhost:1", *headers]
        if body:
            lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of an answer."""
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw[:-4].split("\r\n")
        return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines)

    async def chunk(self) -> bytes:
        """Read a chunk as framed."""
        size = await self.reader.readuntil(b"\r\n")
        return size + await self.reader.readexactly(int(size, 16) + 2)

    async def reply(self, method: str = "GET") -> Reply:
        """Read an answer to its end, or to where it was cut."""
        status, headers = await self.head()
        parts, whole = [], True
        try:
            if method == "HEAD" or status in {204, 304}:
                pass
            elif "content-length" in headers:
                parts.append(await self.reader.readexactly(int(headers["content-length"])))
            elif "transfer-encoding" in headers:
                while parts[-1:] != [chunk(b"")]:
                    parts.append(await self.chunk())
            else:
                parts.append(await self.reader.read())
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            parts.append(getattr(error, "partial", b""))
            whole = False
        return Reply(status, headers, b"".join(parts), whole)

    async def ask(self, method: str, target: str, body: bytes = b"", *headers: str) -> Reply:
        """Send a request and read the answer."""
        self.send(method, target, body, *headers)
        return await self.reply(method)

    def close(self) -> None:
        """Leave."""
        self.writer.close()

    def vanish(self) -> None:
        """Leave at once, without a word."""
        self.writer.transport.abort()


async def until(condition) -> None:
    """Wait until it holds: for what goes by the clock, or in a thread."""
    while not condition():  # noqa: ASYNC110 - the product has no event for this
        await asyncio.sleep(0.001)


async def ask(url: str, method: str, target: str, body: bytes = b"", *headers: str) -> Reply:
    """Ask over a connection of its own."""
    client = await Client.to(url)
    try:
        return await client.ask(method, target, body, *headers)
    finally:
        client.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()


class House(contextlib.AsyncExitStack):
    """Pods and a router in front of them, all taken down in the end."""

    def __init__(self, *scripts, clock=None, named=None, resolve=None, **settings):
        super().__init__()
        self.named = named  # what --pod is given; None is all pods
        self.resolve = {} if resolve is None else {"resolve": resolve}
        self.clock = clock or WallClock()
        self.pods = [FakePod(script) for script in scripts]
        self.settings = Settings(**{"policy": "least_load", "probe_every_s": 0, **settings})
        self.router: Router
        self.url = self.admin = ""

    async def __aenter__(self) -> Self:
        """Start everything."""
        await super().__aenter__()
        for pod in self.pods:
            await pod.start()
            self.push_async_callback(pod.stop)
        pods = [pod.url for pod in self.pods] if self.named is None else self.named
        self.router = Router(pods, self.settings, self.clock, **self.resolve)
        self.url = await self.router.start("127.0.0.1", 0)
        self.push_async_callback(self.router.stop, 0.5)
        if self.settings.admin:
            self.admin = await self.router.start_admin(0)
        return self

    def in_flight(self) -> list[tuple[int, int]]:
        """Return what each pod has in flight: requests, and prefill tokens."""
        pods = self.router.fleet.membership.pods.values()
        return [(pod.state.in_flight, pod.state.in_flight_prefill_tokens) for pod in pods]

    async def known(self) -> None:
        """Wait until every pod that says what it serves has said it to the router, which probes."""
        told = [pod.name for pod in self.pods if pod.models is not None]
        await until(lambda: all(self.router.fleet.models.of(name) is not None for name in told))

    async def quiet(self) -> None:
        """Wait until nothing is under way."""
        while self.router.fleet.under_way:  # noqa: ASYNC110 - the product has no event for this
            await asyncio.sleep(0)

    async def metric(self, name: str, **labels: str) -> float:
        """Return one sample of the router's metrics, 0 if there is none."""
        self.router.read_levels()
        value = self.router.fleet.meters.registry.get_sample_value(name, labels)
        return value or 0.0
