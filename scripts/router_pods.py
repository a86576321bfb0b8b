"""Pods that cost next to nothing, for what a router costs to be seen.

`python scripts/router_pods.py 4`: one process, four ports; it prints them on one line and ends with
its standard input. A chat is answered at once with two words, or streamed: a head, the first chunk
right behind it, one more each 20 ms, 64 in all. `…/render`, which vllm-router asks pods for, is
answered with a token for each four bytes of the body. Everything else is answered with 200 and an
empty object.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import lru_cache
from itertools import count

import uvloop

CHUNKS = 64
CHUNK_S = 0.02
USAGE = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
DELTA = {"index": 0, "delta": {"content": " word"}, "finish_reason": None}


def document(kind: str, choice: dict) -> bytes:
    """Return an answer in OpenAI's form."""
    common = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "m"}
    cached = {"prompt_tokens_details": {"cached_tokens": 0}}
    return json.dumps({**common, "choices": [choice], "usage": {**USAGE, **cached}}).encode()


def whole(body: bytes) -> bytes:
    """Return an answer in one piece."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


STREAMED = re.compile(rb'"stream":\s*true')  # routers write the body anew, in their own order
NOTHING = whole(b"{}")
ANSWER = whole(document("chat.completion", MESSAGE))
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = b"data: " + document("chat.completion.chunk", DELTA) + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = CHUNK + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@lru_cache(1024)
def rendered(body: bytes) -> bytes:
    """Return the answer to a question for tokens."""
    words = memoryview(body[: len(body) // 4 * 4]).cast("I")
    return whole(json.dumps({"token_ids": [word % 32_000 for word in words]}).encode())


class Pod(asyncio.Protocol):
    """One connection; requests come one after the other, with a length."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Collect head and body."""
        if not self._missing:
            self._head, _, data = data.partition(b"\r\n\r\n")
            at = self._head.lower().find(b"content-length:")
            self._missing = int(self._head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0
            self._pieces = []
        self._pieces.append(data)
        self._missing -= len(data)
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        """Answer, or begin to."""
        target = self._head.split(b" ", 2)[1]
        if target.endswith(b"/render"):
            self._transport.write(rendered(b"".join(self._pieces)))
        elif not target.endswith(b"/completions"):
            self._transport.write(NOTHING)
        elif STREAMED.search(self._pieces[0], 0, 2000):
            self._transport.write(STREAM)
            asyncio.get_running_loop().call_soon(self._next, count(1))
        else:
            self._transport.write(ANSWER)

    def _next(self, numbers: count) -> None:
        """Send the next chunk of a stream."""
        if next(numbers) == CHUNKS:
            self._transport.write(LAST)
            return
        self._transport.write(CHUNK)
        asyncio.get_running_loop().call_later(CHUNK_S, self._next, numbers)


async def main(pods: int) -> None:
    """Listen until standard input ends."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Pod, "127.0.0.1", 0) for _ in range(pods)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
