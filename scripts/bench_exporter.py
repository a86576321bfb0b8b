"""What the exporter costs: sixteen pods' events, and the scrape of sixty-four pods.

    python scripts/bench_exporter.py [--seconds 5] [--rates 1000,5000,10000]

The exporter is a process of its own; its CPU time and memory are from /proc, so this runs on Linux.
Each pod of the flood stores and evicts blocks of 16 tokens in equal numbers, in fifty steps a
second, over a real PUB socket: prompts of 32 blocks, of which half begin as other pods' do, and as
many blocks evicted one by one. A rate counts blocks stored and blocks evicted. The scraped pods
answer with what a simulated pod says. Times travel from machine to machine as ratios only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections import deque
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from cpu import cpu_seconds
from prometheus_client.parser import text_string_to_metric_families

from kvbench.clock import WallClock, utc_seconds
from kvbench.engine.timing import StepTime
from kvbench.engine.values import EngineConfig
from kvbench.http.get import Failure, get
from kvbench.http.server import serve
from kvbench.kvcache.events import (
    BlockRemoved,
    BlockStored,
    EventBatch,
    encode_batch,
    published_frames,
)
from kvbench.metrics import exporter as metrics
from kvbench.pod.server import Pod, PodConfig
from kvbench.seeds import rng
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 16
PODS, SCRAPED = 16, 64
STEPS = 50  # a second
PROMPT = 32  # blocks
HELD = 20_000  # blocks that a pod holds
COMMAND = "import typer; from kvbench.cli.exporter import exporter; typer.run(exporter)"


def row(what: str, value: str) -> None:
    """Print one line of the table."""
    print(f"{what:<52} {value}", flush=True)


class Engine:
    """Makes the events of one pod; names of blocks are its own."""

    def __init__(self, number: int) -> None:
        self._random = rng(number)
        self._names = itertools.count(number << 40)
        self._held: deque[int] = deque()
        self._prompt: list[tuple[int, ...]] = []
        self._parent: int | None = None

    def step(self, blocks: int) -> EventBatch:
        """Return the events of a step that stores so many blocks, and evicts those beyond."""
        events: list[BlockStored | BlockRemoved] = []
        while blocks:
            if not self._prompt:
                shared = self._random.random() < 0.5
                source = rng(self._random.randrange(2000)) if shared else self._random
                self._prompt = [tuple(source.choices(range(30_000), k=SIZE)) for _ in range(PROMPT)]
                self._parent = None
            part, self._prompt = self._prompt[:blocks], self._prompt[blocks:]
            names = tuple(next(self._names) for _ in part)
            tokens = tuple(token for block in part for token in block)
            events.append(BlockStored(names, self._parent, tokens, SIZE, medium="GPU"))
            self._parent = names[-1]
            self._held.extend(names)
            blocks -= len(part)
        while len(self._held) > HELD:
            events.append(BlockRemoved((self._held.popleft(),), "GPU"))
        return EventBatch(utc_seconds(), tuple(events), 0)


@contextmanager
def exporter(*pods: str) -> Iterator[tuple[int, str]]:
    """Run an exporter beside these pods; give its process id and its URL."""
    flags = [word for pod in pods for word in ("--pod", pod)]
    command = [sys.executable, "-c", COMMAND, "--exit-with-parent", *flags]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().split()[1]
        finally:
            process.terminate()


def memory(pid: int) -> str:
    """Return the memory that a process has resident."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return f"{pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB"


async def said(url: str, metric: metrics.Metric) -> float:
    """Return the sum of an exporter's samples of a metric."""
    answer = await get(f"{url}/metrics", timeout_s=30.0)
    assert not isinstance(answer, Failure), answer
    return sum(
        sample.value
        for family in text_string_to_metric_families(answer.decode())
        for sample in family.samples
        if sample.name == metric.name
    )


async def flood(rate: int, seconds: float, exposition: bytes) -> None:
    """Print what so many blocks a second and pod cost."""
    context = zmq.Context()
    engines = [Engine(number) for number in range(PODS)]
    per_step = rate // STEPS // 2
    fill = [[encode_batch(e.step(500)) for _ in range(HELD // 500)] for e in engines]
    steps = int(seconds * STEPS)
    stream = [[encode_batch(engine.step(per_step)) for engine in engines] for _ in range(steps)]
    async with AsyncExitStack() as stack:
        urls = await serving(stack, PODS, exposition)
        sockets = [context.socket(zmq.PUB) for _ in range(PODS)]
        stack.callback(context.destroy, 0)
        for socket in sockets:
            socket.setsockopt(zmq.SNDHWM, 100_000)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
        pods = [f"{at},events=tcp://127.0.0.1:{port}" for at, port in zip(urls, ports, strict=True)]
        pid, url = stack.enter_context(exporter(*pods))
        await asyncio.sleep(1.0)  # sockets find each other
        for number, payloads in enumerate(fill):
            for seq, payload in enumerate(payloads):
                sockets[number].send_multipart(published_frames("", seq, payload))
        whole = PODS * HELD // 500
        await until(url, metrics.EVENTS_BATCHES, whole)
        used, began = cpu_seconds(pid), time.perf_counter()
        for step, batches in enumerate(stream):
            await asyncio.sleep(max(began + step / STEPS - time.perf_counter(), 0))
            for number, payload in enumerate(batches):
                frames = published_frames("", HELD // 500 + step, payload)
                sockets[number].send_multipart(frames)
        applied = await until(url, metrics.EVENTS_BATCHES, whole + steps * PODS, 4 * seconds)
        took, spent = time.perf_counter() - began, cpu_seconds(pid) - used
        lost = await said(url, metrics.EVENTS_LOST)
        blocks = steps * PODS * per_step * 2
        row(f"{PODS} pods, {rate:,} blocks a second each", f"{spent / seconds:.0%} of a core")
        row("  for each block", f"{1e6 * spent / blocks:.1f} µs")
        row("  batches applied, lost", f"{applied - whole:,.0f} of {steps * PODS:,}, {lost:,.0f}")
        row("  behind at the end", f"{max(took - seconds, 0):.2f} s")
        row("  memory, with 20,000 blocks a pod", memory(pid))


async def serving(stack: AsyncExitStack, count: int, exposition: bytes) -> list[str]:
    """Serve an exposition as so many pods; return their URLs."""
    urls = []
    for _ in range(count):
        server = await serve(lambda exchange: exchange.respond(200, exposition, "text/plain"))
        stack.push_async_callback(server.close, 0.1)
        urls.append(server.url)
    return urls


async def until(url: str, metric: metrics.Metric, value: float, most_s: float = 60.0) -> float:
    """Wait until an exporter's metric has come to a value, for so many seconds; return it."""
    began = time.perf_counter()
    while (now := await said(url, metric)) < value and time.perf_counter() - began < most_s:  # noqa: ASYNC110 - it is asked over HTTP
        await asyncio.sleep(0.05)
    return now


async def scrape(seconds: float, exposition: bytes) -> None:
    """Print what looking at sixty-four pods once a second costs."""
    async with AsyncExitStack() as stack:
        pods = await serving(stack, SCRAPED, exposition)
        pid, url = stack.enter_context(exporter(*pods))
        await until(url, metrics.UP, SCRAPED)
        used = cpu_seconds(pid)
        await asyncio.sleep(seconds)
        spent = cpu_seconds(pid) - used
        began = time.perf_counter()
        answer = await get(f"{url}/metrics", timeout_s=30.0)
        took = time.perf_counter() - began
        assert isinstance(answer, bytes)
        row(f"{SCRAPED} pods, looked at once a second", f"{spent / seconds:.0%} of a core")
        row("  each says", f"{len(exposition) / 1000:.0f} kB")
        row("  being scraped oneself", f"{1000 * took:.0f} ms for {len(answer) / 1000:.0f} kB")
        row("  memory", memory(pid))


async def said_by_a_pod() -> bytes:
    """Return the exposition of a simulated pod."""
    config = PodConfig(
        model="m",
        tokenizer=Tokenizer.load(),
        engine=EngineConfig(num_gpu_blocks=HELD, block_size=SIZE, max_model_len=131_072),
        time=StepTime(0, 0, 0, 0, 0, 0),
    )
    pod = Pod(config, WallClock(), utc_seconds)
    server = await serve(pod.handle)
    answer = await get(f"{server.url}/metrics", timeout_s=30.0)
    await server.close(0.1)
    await pod.close()
    assert isinstance(answer, bytes), answer
    return answer


async def main(seconds: float, rates: list[int]) -> None:
    """Print the table."""
    exposition = await said_by_a_pod()
    await scrape(seconds, exposition)
    for rate in rates:
        await flood(rate, seconds, exposition)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rates", default="1000,5000,10000")
    options = parser.parse_args()
    rates = [int(rate) for rate in options.rates.split(",")]
    asyncio.run(main(options.seconds, rates))
