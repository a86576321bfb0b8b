"""A server that does as it is told: every answer is a script of bytes and pauses.

It speaks no more HTTP than it must, so that it can break it in any way. It runs in the event loop
of the test, or in a process of its own (`python tests/fakes_target.py`), where it prints its URL.
"""

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

CUT = "cut"
"""Step: reset the connection."""

CLOSE = "close"
"""Step: close the connection in an orderly way."""

HANG = "hang"
"""Step: never say another byte."""

Step = bytes | float | str
Script = Callable[["Asked"], Iterable[Step]]


@dataclass
class Asked:
    """One request, as it came."""

    head: bytes
    body: bytes
    connection: int
    nth: int
    at: float

    @property
    def json(self):
        """The body, parsed."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """Return a header's value."""
        for line in self.head.decode().split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


@dataclass
class ScriptedTarget:
    """The server. Use as an async context manager; `url` is where it listens."""

    script: Script
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    async def __aenter__(self):
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_error):
        """Stop listening, and end what is still being said."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        """Answer requests on one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number = self.connections
        self.connections += 1
        try:
            while await self._answer(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # gone, or told to be gone: either way there is nobody to answer
        finally:
            writer.transport.abort()

    async def _answer(self, reader, writer, number) -> bool:
        """Answer one request; return whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        asked = Asked(head[:-4], b"", number, len(self.asked), asyncio.get_running_loop().time())
        asked.body = await reader.readexactly(int(asked.header("content-length") or 0))
        self.asked.append(asked)
        for step in self.script(asked):
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == HANG:
                await reader.read()
                return False
            else:
                return self._leave(writer, step)
        return True

    @staticmethod
    def _leave(writer, step) -> bool:
        """End the connection."""
        if step == CUT:
            at_once = struct.pack("ii", 1, 0)  # close without goodbye: a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()
        else:
            writer.close()
        return False


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Wrap `data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(text: str | None, finish: str | None = None, **more) -> dict:
    """Return a chat chunk with `text`; None: the role alone."""
    content = {"role": "assistant", "content": ""} if text is None else {"content": text}
    choice = {"index": 0, "delta": content, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice], **more}


def usage(prompt: int, completion: int, cached: int | None) -> dict:
    """Return the chunk that ends a stream with its usage."""
    counts: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": counts}


def answer(
    tokens: int = 3, gap: float = 0.0, first: float = 0.0, *, cached: int | None = 4
) -> list[Step]:
    """Return the script of a whole answer: head at once, then a token every `gap` seconds."""
    steps: list[Step] = [HEAD, first, chunk(event(delta(None)))]
    for number in range(tokens):
        last = number == tokens - 1
        steps += [chunk(event(delta(f" w{number}", "length" if last else None))), gap]
    return [*steps[:-1], chunk(event(usage(10, tokens, cached)) + event(b"[DONE]")) + END]


def plain(status: int, body: bytes, kind: str = "application/json") -> list[Step]:
    """Return the script of a whole answer that is no stream."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


MODELS = plain(200, b'{"object":"list","data":[{"id":"tiny","object":"model"}]}')


async def _main(gap: float) -> None:
    """Serve until standard input ends."""

    def script(asked: Asked) -> Iterable[Step]:
        """Answer everything."""
        return MODELS if asked.head.startswith(b"GET") else answer(4, gap)

    async with ScriptedTarget(script) as target:
        sys.stdout.write(f"ready {target.url}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
