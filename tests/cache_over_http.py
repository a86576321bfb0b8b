"""What `.cache` files are played to over HTTP: a simulated pod, asked and listened to as by anyone.

Every verb of the language has its request, so nothing is skipped: `ask` is a streamed completion of
one token, whose usage says what was found, and which then keeps its blocks (the fault `pin`);
`free` is a client that leaves; `clear` is `POST /reset_prefix_cache`; events are asked for at the
replay socket. That a request waits is told by `/metrics`; one that would wait for ever is refused.

Beside it, an index hears the pod's events and nothing else. It must predict every hit.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import uvloop
import zmq
import zmq.asyncio
from fakes_pod import NOW, make_config, running_pod
from wire import RawClient

from kvbench.kvcache.blocks import block_hashes
from kvbench.kvcache.events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    decode_batch,
    decode_frames,
    replay_request,
)
from kvbench.kvcache.index import BlockIndex
from kvbench.openai.stream import StreamFold
from kvbench.pod.publisher import EventsConfig, Publisher

EVENTS = EventsConfig(
    enable_kv_cache_events=True,
    endpoint="tcp://127.0.0.1:*",
    replay_endpoint="tcp://127.0.0.1:*",
)
WAITING = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'


class HttpBackend:
    """A pod in this process, whose loop runs while a sentence is played. Close it after use."""

    def __init__(self):
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.stack = AsyncExitStack()
        self.clients = {}

    def close(self):
        """End the pod."""
        self.runner.run(self._end())
        self.runner.close()

    def pool(self, blocks, size):
        """Begin anew, with another pod."""
        self.runner.run(self._boot(blocks, size))

    def ask(self, request, tokens):
        """Let a request hold blocks; return how many it hit, None if it does not fit."""
        return self.runner.run(self._ask(request, tokens))

    def free(self, request):
        """Leave."""
        self.runner.run(self._leave(self.clients.pop(request)))

    def clear(self):
        """Reset the cache; return whether it was done."""
        return self.runner.run(self._clear())

    def events(self):
        """Return what was published since the last call."""
        told, self.told = self.told, []
        return told

    async def _end(self):
        """Leave with all requests, and end the pod."""
        while self.clients:
            await self._leave(self.clients.popitem()[1])
        await self.stack.aclose()

    async def _boot(self, blocks, size):
        """Start a pod that can hold a prompt as long as its pool."""
        await self._end()
        self.size, self.texts, self.told, self.heard = size, {}, [], 0
        self.index = BlockIndex(size)
        self.index.add("pod")
        config = make_config(
            num_gpu_blocks=blocks + 1, block_size=size, max_model_len=blocks * size + 1
        )
        context = zmq.asyncio.Context()
        self.stack.callback(context.destroy, linger=0)
        publisher = Publisher(EVENTS, "map", lambda: NOW)
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.connect(publisher.replay_endpoint)
        running = running_pod(config, faults=("pin",), publisher=publisher)
        self.pod = await self.stack.enter_async_context(running)

    async def _ask(self, request, tokens):
        """Send a request and see whether it is computed, waits, or is refused."""
        usable = block_hashes(tokens, self.size)[: (len(tokens) - 1) // self.size]
        predicted = self.index.match(usable)["pod"]
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.pod.port))
        body = {"prompt": tokens, "max_tokens": 1, "stream": True}
        body["stream_options"] = {"include_usage": True}
        client.post("/v1/completions", json.dumps(body).encode())
        status, headers = await client.head()
        if status == 400:  # it could never fit
            message = await client.reader.readexactly(int(headers["content-length"]))
            assert b"maximum context length" in message
            await client.close()
            return None
        assert status == 200
        if (await self.pod.metrics())[WAITING]:
            await self._leave(client)
            return None
        fold = StreamFold()
        while fold.usage is None:
            fold.feed(0.0, await client.chunk())
        self.clients[request] = client
        await self._listen()
        hit = fold.usage.cached_tokens // self.size
        assert (hit * self.size, hit) == (fold.usage.cached_tokens, predicted)
        return hit

    async def _leave(self, client):
        """Hang up, and wait until the pod has noticed."""
        before = await self._load()
        await client.close()
        while await self._load() == before:
            pass

    async def _load(self):
        """Return how many requests the pod says it has."""
        return json.loads((await self.pod.get("/load")).body)["server_load"]

    async def _clear(self):
        """Reset the cache; a reset is published with the next step, so there must be one."""
        answer = await self.pod.post("/reset_prefix_cache", b"")
        done = json.loads(answer.body)["success"]
        if done:
            await self.pod.post("/v1/completions", {"prompt": [1], "max_tokens": 1})
            await self._listen()
        return done

    async def _listen(self):
        """Hear what was published, tell the index, and note it block by block."""
        await self.dealer.send_multipart(replay_request(self.heard))
        while (m := decode_frames(await self.dealer.recv_multipart())).seq != END_OF_REPLAY:
            assert m.seq == self.heard
            self.heard += 1
            batch = decode_batch(m.payload)
            self.index.apply("pod", batch)
            for event in batch.events:
                self._note(event)

    def _note(self, event):
        """Note an event as the language has it."""
        if isinstance(event, AllBlocksCleared):
            self.told.append(("cleared",))
        elif isinstance(event, BlockRemoved):
            self.told += [("removed", self.texts[key]) for key in event.block_hashes]
        else:
            text = self.texts.get(event.parent_block_hash, [])
            for number, key in enumerate(event.block_hashes):
                text = [*text, *event.token_ids[number * self.size : (number + 1) * self.size]]
                self.texts[key] = text
                self.told.append(("stored", text))
