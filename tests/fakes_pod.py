"""A simulated pod for tests: in this process, on a free port, with steps of a known length."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from wire import Answer, RawClient, connected

from kvbench.clock import WallClock
from kvbench.engine.timing import StepTime
from kvbench.engine.values import EngineConfig
from kvbench.http.server import serve
from kvbench.openai.stream import StreamFold
from kvbench.pod.faults import Faults, parse_fault
from kvbench.pod.server import Pod, PodConfig
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvbench.pod.publisher import Publisher

TOKENIZER = Path(__file__).parent / "pod" / "recorded" / "tiny"
"""The tokenizer of the model with which the recordings were made: 512 tokens."""

NOW = 1_795_975_513.0
"""Calendar seconds of the recordings."""


@dataclass
class RunningPod:
    """A pod that listens, and ways to talk to it."""

    pod: Pod
    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def get(self, path: str) -> Answer:
        """Return the answer to a GET."""
        async with connected(self.port) as client:
            client.get(path)
            return await client.answer()

    async def post(self, path: str, body: object, headers: str = "") -> Answer:
        """Return the answer to a POST; bytes are sent as they are."""
        async with connected(self.port) as client:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            client.post(path, data, headers)
            return await client.answer()

    async def chat(self, text: str, **fields: object) -> dict[str, object]:
        """Return the whole answer to a chat of one message."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4} | fields
        return json.loads((await self.post("/v1/chat/completions", body)).body)

    async def stream(self, text: str, **fields: object) -> StreamFold:
        """Return the folded stream of a chat of one message."""
        fold = StreamFold()
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": True}
        body["stream_options"] = {"include_usage": True}
        async with connected(self.port) as client:
            client.post("/v1/chat/completions", json.dumps(body | fields).encode())
            await client.head()
            await read_stream(client, fold)
        return fold

    async def metrics(self) -> dict[str, float]:
        """Return the samples of a scrape, by name and labels as they are written."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}


async def read_stream(client: RawClient, fold: StreamFold) -> None:
    """Fold what a server streams, until it ends or is cut."""
    now = WallClock().now
    try:
        while piece := await client.chunk():
            fold.feed(now(), piece)
    except (EOFError, ConnectionError):
        return


@cache
def tokenizer() -> Tokenizer:
    """Return the tokenizer of the recordings; finding its plain words takes a while."""
    return Tokenizer.load(TOKENIZER)


def make_config(
    *,
    step_s: float = 0.0,
    dev_mode: bool = True,
    tells_cached: bool = True,
    **engine: int | bool,
) -> PodConfig:
    """Return the settings of a pod whose every step takes `step_s` seconds."""
    settings = {"num_gpu_blocks": 200, "block_size": 32, "max_model_len": 1024} | engine
    return PodConfig(
        model="tiny",
        tokenizer=tokenizer(),
        engine=EngineConfig(**settings),
        time=StepTime(step_s, 0, 0, 0, 0, 0),
        tells_cached=tells_cached,
        dev_mode=dev_mode,
    )


@asynccontextmanager
async def running_pod(
    config: PodConfig | None = None,
    *,
    faults: tuple[str, ...] = (),
    publisher: Publisher | None = None,
) -> AsyncIterator[RunningPod]:
    """Run a pod for the length of a block."""
    pod = Pod(
        config or make_config(),
        WallClock(),
        lambda: NOW,
        publisher=publisher,
        faults=Faults(map(parse_fault, faults)),
    )
    server = await serve(pod.handle, name="uvicorn")
    try:
        yield RunningPod(pod, server.port)
    finally:
        await server.close(0.2)
        await pod.close()
