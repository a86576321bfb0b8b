"""Pods with a cache and a prefill queue, in real time: `python scripts/cache_pods.py 4 BLOCKS`.

One process, so many ports; it prints them on one line and ends with its standard input. A chat's
text is cut into blocks of 64 bytes, 16 tokens of four bytes, of which each pod keeps the BLOCKS
most recently used. Prompts are computed in turn, 20,000 tokens a second; an answer takes 40 ms more
and is streamed: its first word, then the rest with its usage. `/v1/chat/completions/render`, which
vllm-router asks pods for, says the tokens; `GET /metrics` says how large the cache is, as vLLM's
does; `GET /stats` says what was asked and what was cached.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from array import array
from collections import OrderedDict

import uvloop
import xxhash

from kvbench.http.server import Exchange, serve

TOKENS_A_SECOND = 20_000
DECODE_S = 0.04
BLOCK = 64  # bytes
CONFIG = b'vllm:cache_config_info{block_size="%d",num_gpu_blocks="%d"} 1.0\n'
WORD = {"index": 0, "delta": {"content": "word"}, "finish_reason": None}
STOP = {"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}


def text_of(body: dict) -> bytes:
    """Return a chat's text."""
    return "".join(f"<{one['role']}>{one['content']}" for one in body["messages"]).encode()


def event(choice: dict, usage: dict | None) -> bytes:
    """Return an event of the stream."""
    common = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    document = {**common, "choices": [choice], "usage": usage}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


class Pod:
    """One pod."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._free_at = 0.0
        self.stats = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0}

    def handle(self, exchange: Exchange) -> None:
        """Answer."""
        path = exchange.request.path
        if path == "/stats":
            exchange.respond(200, json.dumps(self.stats).encode())
        elif path == "/metrics":
            exchange.respond(200, CONFIG % (BLOCK // 4, self._most + 1))
        elif not path.startswith("/v1/chat/completions"):
            exchange.respond(200, b"{}")
        else:
            body = json.loads(exchange.request.body)
            text = text_of(body)
            if path.endswith("/render"):
                words = array("I", text[: len(text) // 4 * 4])
                ids = [word % 32_000 for word in words]
                exchange.respond(200, json.dumps({"token_ids": ids}).encode())
            else:
                self._generate(exchange, text, streamed=bool(body.get("stream")))

    def _generate(self, exchange: Exchange, text: bytes, *, streamed: bool) -> None:
        """Compute the prompt when its turn comes, then answer."""
        loop = asyncio.get_running_loop()
        tokens, cached = len(text) // 4, self._look_up(text)
        self.stats["requests"] += 1
        self.stats["prompt_tokens"] += tokens
        self.stats["cached_tokens"] += cached
        took = 0.003 + (tokens - cached) / TOKENS_A_SECOND
        self._free_at = max(self._free_at, loop.time()) + took
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": tokens, "completion_tokens": 2, **details}
        usage["total_tokens"] = tokens + 2

        def first() -> None:
            exchange.start(200, [(b"content-type", b"text/event-stream")], None)
            exchange.write(event(WORD, None))

        def last() -> None:
            if not streamed:
                message = {"index": 0, "message": {"role": "assistant", "content": "word"}}
                document = {"id": "c", "object": "chat.completion", "choices": [message]}
                exchange.respond(200, json.dumps({**document, "usage": usage}).encode())
                return
            exchange.write(event(STOP, usage) + b"data: [DONE]\n\n")
            exchange.end()

        if streamed:
            loop.call_at(self._free_at, first)
        loop.call_at(self._free_at + DECODE_S, last)

    def _look_up(self, text: bytes) -> int:
        """Return the tokens found, and keep those of the prompt."""
        key, keys = 0, []
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            key = xxhash.xxh3_64_intdigest(text[start : start + BLOCK], key)
            keys.append(key)
        usable = keys[: (len(text) // 4 - 1) // (BLOCK // 4)]
        found = sum(1 for _ in itertools.takewhile(self._cache.__contains__, usable))
        for key in reversed(keys):
            self._cache[key] = None
            self._cache.move_to_end(key)
        while len(self._cache) > self._most:
            self._cache.popitem(last=False)
        return found * BLOCK // 4


async def main(pods: int, blocks: int) -> None:
    """Listen until standard input ends."""
    servers = [await serve(Pod(blocks).handle) for _ in range(pods)]
    print(*(server.port for server in servers), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
