"""What exact routing costs: memory of the index, a decision, and a flood of events.

    python scripts/bench_index.py [--blocks 1000000] [--seconds 2]

The decision is that for the next turn of a conversation of 33,000 tokens among sixteen pods: body,
template, tokens, hashes, look-up, score, journal; beside it stands what it takes to tokenise the
prompt whole. The flood is 50,000 blocks stored or removed a second over real sockets, into a router
of its own process, in rounds with it and without it in turn; what is published has been made
before, so that the clients, on the publishers' core, are not kept waiting by that. CPU time is from
/proc, so this part runs on Linux. Times travel from machine to machine as ratios only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections import deque
from itertools import count
from tempfile import TemporaryDirectory

import uvloop
import zmq
from cpu import cpu_seconds

from kvbench.clock import WallClock, utc_seconds
from kvbench.http.address import parse_address
from kvbench.http.server import Exchange, serve
from kvbench.kvcache.events import (
    BlockRemoved,
    BlockStored,
    EventBatch,
    encode_batch,
    published_frames,
)
from kvbench.kvcache.ledger import Ledger
from kvbench.policies.decision import Outcome
from kvbench.router.books import Books, WatchedIndex
from kvbench.router.fleet import Fleet, Policies
from kvbench.router.forward import Limits
from kvbench.router.journal import Journal
from kvbench.router.membership import Membership
from kvbench.router.tokens import PromptTokens
from kvbench.text.tokenizer import Tokenizer

SIZE = 16
PODS = 16
ROUNDS = 5
ROUTER = "import typer; from kvbench.cli.router import router; typer.run(router)"


def row(what: str, value: str) -> None:
    """Print one line of the table."""
    print(f"{what:<52} {value}", flush=True)


def quantiles(seconds: list[float]) -> str:
    """Return median and 99th percentile, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {statistics.median(seconds) * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms"


def fill(ledger: Ledger, blocks: int) -> None:
    """Give the pods so many blocks together, each two prompts of 500 blocks at a time."""
    rng, names = random.Random(1), count(1)  # noqa: S311 - a measurement
    streams = [stream for streams in ledger.streams.values() for stream in streams]
    for number in range(blocks // PODS // 500):
        for stream in streams:
            tokens = tuple(rng.choices(range(4096), k=500 * SIZE))
            event = BlockStored(tuple(next(names) for _ in range(500)), None, tokens, SIZE)
            payload = encode_batch(EventBatch(0.0, (event,)))
            ledger.published(stream, published_frames("", number, payload))


def conversation(tokenizer: Tokenizer, messages: int, tokens: int) -> list[dict[str, str]]:
    """Return a conversation of about so many tokens."""
    rng = random.Random(2)  # noqa: S311 - a measurement
    ids = list(tokenizer.plain_token_ids)
    each = tokens // messages
    return [
        {
            "role": ("user", "assistant")[n % 2],
            "content": tokenizer.decode(rng.choices(ids, k=each)),
        }
        for n in range(messages)
    ]


class House:
    """A router without sockets: sixteen pods, whose blocks are known, and a conversation.

    Args:
        blocks: How many blocks the pods hold together.
    """

    def __init__(self, blocks: int) -> None:
        self.clock, self.tokens = WallClock(), PromptTokens()
        self.membership = Membership(parse_address(f"http://10.0.0.{n}:8000") for n in range(PODS))
        self.ledger = Ledger(utc_seconds)
        index = WatchedIndex(self.ledger, self.clock)
        books = Books(index, self.tokens, Journal(), utc_seconds)
        policies = Policies("prefix_cost", 1, index)
        self.fleet = Fleet(self.membership, policies, Limits(), self.clock, books)
        for name in self.membership.pods:
            self.ledger.follow(name)
        tracemalloc.start()
        fill(self.ledger, blocks)
        self.bytes = tracemalloc.get_traced_memory()[0] / blocks
        tracemalloc.stop()
        self.tokenizer = Tokenizer.load()
        self.tokens.learn({"m": {"id": "m", "root": str(self.tokenizer.path)}})
        self.chat = conversation(self.tokenizer, 101, 33_000)
        self.hold(blocks // PODS // 500)

    def hold(self, number: int) -> None:
        """Have three pods hold the conversation up to its last message, by batch `number`."""
        ids = self.tokenizer.encode_chat(self.chat[:-1], add_generation_prompt=False)
        count_ = len(ids) // SIZE
        names = tuple(range(1 << 40, (1 << 40) + count_))
        event = BlockStored(names, None, tuple(ids[: count_ * SIZE]), SIZE)
        payload = encode_batch(EventBatch(0.0, (event,)))
        for streams in list(self.ledger.streams.values())[:3]:
            self.ledger.published(streams[0], published_frames("", number, payload))

    def decide(self, number: int) -> float:
        """Decide on the next turn: the same conversation, another last message; return seconds."""
        last = {"role": "user", "content": f"{number} " + self.chat[-1]["content"][:800]}
        body = json.dumps({"model": "m", "messages": [*self.chat[:-1], last]}).encode()
        fleet, now = self.fleet, self.clock.now
        began = time.perf_counter()
        reading = fleet.read("/v1/chat/completions", body)
        assert reading is not None
        request = fleet.exactly(str(number), "", reading, reading.encode())
        policy = fleet.policies.default
        pods = [pod.state for pod in self.membership.offered(now())]
        decision = fleet.choose(policy, request, pods, now())
        took = time.perf_counter() - began
        assert decision.matched_tokens > 32_000
        outcome = Outcome(0.1, request.prompt_tokens, decision.matched_tokens)
        fleet.finished(policy, request, decision, outcome)
        return took

    def tokenise(self) -> float:
        """Tokenise all of it; return seconds."""
        began = time.perf_counter()
        self.tokenizer.encode_chat(self.chat)
        return time.perf_counter() - began


def bench_decision(blocks: int) -> None:
    """Print what a decision takes, and the bytes of the index."""
    gc.collect()
    house = House(blocks)
    row(f"index, {PODS} pods", f"{house.bytes:.0f} bytes per (block, pod) of {blocks:,}")
    for number in range(20):
        house.decide(number)
    gc.freeze()
    gc.set_threshold(5_000)  # as `kvbench router` does
    whole, times = [], []
    for number in range(100, 2100):  # in turns, for the machine may be busy now and idle then
        times.append(house.decide(number))
        if number % 400 == 0:  # seldom: a decision after it finds nothing in the processor's caches
            whole += [house.tokenise() for _ in range(10)]
    row("tokenising 33,000 tokens whole", quantiles(whole))
    row("decision for the next turn", quantiles(times))
    faster = statistics.median(whole) / statistics.median(times)
    row("decision against tokenising whole", f"{faster:.0f} × faster")


class Flood:
    """Publishers that store ten blocks and remove ten with each batch, and hold 10,000 blocks."""

    def __init__(self, folder: str, pods: int) -> None:
        self._context = zmq.Context()
        self.endpoints = [f"ipc://{folder}/{n}" for n in range(pods)]
        self._sockets = [self._context.socket(zmq.PUB) for _ in range(pods)]
        for socket, endpoint in zip(self._sockets, self.endpoints, strict=True):
            socket.bind(endpoint)
        self._names = count(1)
        self._held: list[deque[tuple[int, ...]]] = [deque() for _ in range(pods)]
        self._tokens = tuple(range(10 * SIZE))
        self.made = 0

    def make(self, batches: int) -> deque[tuple[int, list[bytes]]]:
        """Return the next batches, each with the number of its pod, which take turns."""
        return deque(self._make() for _ in range(batches))

    def _make(self) -> tuple[int, list[bytes]]:
        """Return the next batch."""
        number, pod = divmod(self.made, len(self._held))
        self.made += 1
        names = tuple(next(self._names) for _ in range(10))
        tokens = (names[0] % 4096, names[0] // 4096, *self._tokens[2:])
        events: list[BlockStored | BlockRemoved] = [BlockStored(names, None, tokens, SIZE)]
        held = self._held[pod]
        held.append(names)
        if len(held) > 1000:
            events += [BlockRemoved((name,)) for name in held.popleft()]
        payload = encode_batch(EventBatch(utc_seconds(), tuple(events)))
        return pod, published_frames("", number, payload)

    async def publish(self, batches: deque[tuple[int, list[bytes]]], seconds: float) -> None:
        """Publish batches, spread over so many seconds."""
        began, whole = time.perf_counter(), len(batches)
        while batches:
            due = whole * (1 - (time.perf_counter() - began) / seconds)
            while batches and len(batches) > due:
                pod, frames = batches.popleft()
                self._sockets[pod].send_multipart(frames)
            await asyncio.sleep(0.002)

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(0)


async def ask_steadily(port: int, rate: float, until: float) -> list[float]:
    """Ask at a steady rate over one connection; return how long answers took."""
    text = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 40}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times, due = [], time.perf_counter()
    while due < until:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        began = time.perf_counter()
        writer.write((head + text).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in answer.split(b"\r\n") if line.startswith(b"content-length:")
        )
        await reader.readexactly(length)
        times.append(time.perf_counter() - began)
        due += 1 / rate
    writer.close()
    return times


async def bench_flood(seconds: float, rate: float) -> None:
    """Print the router's CPU and the latency through it, without events and with them."""

    def answer(exchange: Exchange) -> None:
        exchange.respond(200, b"{}")

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    pods = [await serve(answer) for _ in range(4)]
    with TemporaryDirectory(prefix="kvb-") as folder:
        flood = Flood(folder, len(pods))
        command = [sys.executable, "-c", ROUTER, "--exit-with-parent", "--policy", "prefix_cost"]
        for pod, endpoint in zip(pods, flood.endpoints, strict=True):
            command += ["--pod", f"http://127.0.0.1:{pod.port},events={endpoint}"]
        router = subprocess.Popen(  # noqa: S603, ASYNC220 - our own command line, before anything
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(router.pid, {cores[-1]})
        assert router.stdout is not None
        line = await asyncio.to_thread(router.stdout.readline)
        port = int(line.rpartition(":")[2])
        await asyncio.sleep(1.5)
        await flood.publish(flood.make(1000 * len(pods)), 1.0)
        times: dict[float, list[float]] = {0.0: [], rate: []}
        shares: dict[float, list[float]] = {0.0: [], rate: []}
        for _ in range(ROUNDS):
            for blocks in (0.0, rate):
                batches = flood.make(int(blocks * seconds / 20))
                await asyncio.sleep(0.1)
                until, before = time.perf_counter() + seconds, cpu_seconds(router.pid)
                _, took = await asyncio.gather(
                    flood.publish(batches, seconds), ask_steadily(port, 200, until)
                )
                times[blocks] += took
                shares[blocks].append((cpu_seconds(router.pid) - before) / seconds)
        for blocks, what in ((0.0, "quiet"), (rate, f"{rate:,.0f} blocks a second")):
            share = f"router {statistics.median(shares[blocks]):.0%} of a core"
            row(f"routing at 200/s, {what}", f"{quantiles(times[blocks])}; {share}")
        more = [loud - quiet for quiet, loud in zip(*shares.values(), strict=True)]
        row("  more, median and least", f"{statistics.median(more):.0%}, {min(more):.0%} of a core")
        row("  batches applied", f"{(await metric(port)):,.0f} of {flood.made:,}")
        router.terminate()
        await asyncio.to_thread(router.wait)
        flood.close()
    for pod in pods:
        await pod.close(0)


async def metric(port: int) -> float:
    """Return how many batches the router has applied."""
    await asyncio.sleep(0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    name = "kvbench_router_events_batches_total{"
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def main(blocks: int, seconds: float, rate: float) -> None:
    """Print the table."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in the router
    bench_decision(blocks)
    await bench_flood(seconds, rate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--rate", type=float, default=50_000.0, help="blocks a second")
    arguments = parser.parse_args()
    uvloop.run(main(arguments.blocks, arguments.seconds, arguments.rate))
