"""What the router costs beside others, in one run.

    python scripts/bench_router.py [--peers FOLDER] [--rounds 3] [--seconds 1]

Pods that cost next to nothing and the client share one core; each router has the other while it is
measured. In each round every router is measured after the other, so that what else the machine does
disturbs all alike; the table shows medians over the rounds. Only ratios travel to other machines.
How peers are installed is said in `scripts/rivals.py`; those that are not are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import httptools
import rivals
import uvloop

NAMES = [
    "nginx",
    "kvbench-compiled prefix_cost",
    "kvbench prefix_cost",
    "kvbench round_robin",
    "sglang-router cache_aware",
    "vllm-router cache_aware",
]
NUMBERS = itertools.count()
LOADS = {"tiny": 60, "32 kB": 32_000, "128 kB": 128_000}
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n"
    "User-Agent: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
MARK = "##########"  # becomes a number, so that no body comes twice
PARAGRAPH = 'The "quick" brown fox jumps over the lazy dog, and then\nit does so again. '


def question(size: int, number: int, *, stream: bool = False) -> bytes:
    """Return a conversation of about so many bytes: one of 64, of eight beginnings."""
    turns = max(size // 1000, 1)
    text = PARAGRAPH * (size // turns // len(PARAGRAPH))
    beginning = turns * 3 // 4
    messages = [
        {
            "role": "user" if turn % 2 else "system",
            "content": f"{number % 8 if turn < beginning else number} {turn} {text}",
        }
        for turn in range(turns)
    ]
    messages[-1]["content"] += MARK
    document = {"model": "m", "messages": messages, "max_tokens": 64, "stream": stream}
    body = json.dumps(document).encode()
    return (HEAD % len(body)).encode() + body


def anew(request: bytes, number: int) -> bytes:
    """Return a conversation of which the last message has not been sent before."""
    place = request.rindex(MARK.encode())
    return b"%s%010d%s" % (request[:place], number, request[place + len(MARK) :])


class Asker(asyncio.Protocol):
    """One connection that asks, reads the answer, and says so."""

    def __init__(self) -> None:
        self.done = lambda: None
        self.first_body = 0.0
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Read."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note; a router that hangs up in the middle ends the run."""

    def on_body(self, _body: bytes) -> None:
        """Note when the first of it came."""
        self.first_body = self.first_body or time.perf_counter()

    def on_message_complete(self) -> None:
        """Check, and tell."""
        if self._parser.get_status_code() != 200:
            raise SystemExit(f"answered {self._parser.get_status_code()}")
        self.done()

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.first_body = 0.0
        self.transport.write(request)


async def connect(port: int, number: int) -> list[Asker]:
    """Return so many connections."""
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(Asker, "127.0.0.1", port) for _ in range(number)]
    return [asker for _, asker in pairs]


def close(askers: list[Asker]) -> None:
    """Close them."""
    for asker in askers:
        asker.done = lambda: None
        asker.transport.abort()


async def rate(port: int, size: int, seconds: float, connections: int = 64) -> tuple[float, int]:
    """Return requests a second, each connection asking anew when it is answered, and how many."""
    requests = [question(size, number) for number in range(64)]
    askers = await connect(port, connections)
    count = 0

    def asks(asker: Asker, start: int) -> None:
        turn = start

        def again() -> None:
            nonlocal turn, count
            turn, count = turn + 1, count + 1
            asker.ask(anew(requests[turn % 64], next(NUMBERS)))

        asker.done = again
        asker.ask(requests[start])

    began = time.perf_counter()
    for number, asker in enumerate(askers):
        asks(asker, number)
    await asyncio.sleep(seconds)
    took, reached = time.perf_counter() - began, count
    close(askers)
    await asyncio.sleep(0.05)
    return reached / took, count


async def latencies(port: int, size: int, seconds: float, per_second: float = 200) -> list[float]:
    """Return milliseconds from request to answer, asked at a steady rate, sorted."""
    requests = [question(size, number) for number in range(64)]
    askers, found = await connect(port, 16), []
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(int(seconds * per_second)):
        await asyncio.sleep(began + number / per_second - loop.time())
        asker = askers[number % 16]
        sent = time.perf_counter()

        def done(sent: float = sent) -> None:
            found.append((time.perf_counter() - sent) * 1000)

        asker.done = done
        asker.ask(anew(requests[number % 64], next(NUMBERS)))
    await asyncio.sleep(0.3)
    close(askers)
    return sorted(found)


async def streams(port: int, number: int = 64) -> float:
    """Stream twice on each connection; return ms to the first chunk of the second, median."""
    askers, loop = await connect(port, number), asyncio.get_running_loop()
    request = question(60, 1, stream=True)
    firsts: list[float] = []
    for turn in range(2):
        ended = [loop.create_future() for _ in askers]
        sent = []
        for asker, future in zip(askers, ended, strict=True):
            asker.done = lambda future=future: future.set_result(None)
            sent.append(time.perf_counter())
            asker.ask(request)
            await asyncio.sleep(0.002)
        await asyncio.gather(*ended)
        if turn:
            firsts = [(a.first_body - s) * 1000 for a, s in zip(askers, sent, strict=True)]
    close(askers)
    return statistics.median(firsts)


def quantile(values: list[float], q: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(int(len(values) * q), len(values) - 1)]


async def measure(rival: rivals.Rival, seconds: float) -> dict[str, float]:
    """Return all figures of one router, once."""
    figures: dict[str, float] = {}
    for load, size in LOADS.items():
        before = rival.cpu_seconds()
        figures[f"{load} /s"], count = await rate(rival.port, size, seconds)
        spent = (rival.cpu_seconds() - before) * 1000
        figures[f"{load} CPU"] = spent / count if count else math.nan
    found = await latencies(rival.port, 60, 2 * seconds)
    figures["p50"], figures["p99"] = quantile(found, 0.5), quantile(found, 0.99)
    before = rival.cpu_seconds()
    figures["first"] = await streams(rival.port)
    spent = rival.cpu_seconds() - before
    figures["chunks"] = 2 * 64 * 64 / spent if spent else 0.0
    figures["RSS"] = rival.memory_mb()
    return figures


def show(table: dict[str, dict[str, float]]) -> None:
    """Print the table; what is added is over the pod's own."""
    direct = table["direct"]
    print(
        f"{'':27}{'requests/s, 64 connections':^27}{'CPU ms a request':^24}"
        f"{'added ms at 200/s':^19}{'chunks per':>11}{'first':>7}{'RSS':>6}\n"
        f"{'':27}{'tiny':>9}{'32 kB':>9}{'128 kB':>9}{'tiny':>8}{'32 kB':>8}{'128 kB':>8}"
        f"{'p50':>9}{'p99':>9}{'CPU second':>12}{'ms':>7}{'MB':>6}"
    )
    for name, row in table.items():
        print(
            f"{name:27}"
            + "".join(f"{row[f'{load} /s']:9.0f}" for load in LOADS)
            + "".join(f"{row[f'{load} CPU']:8.3f}" for load in LOADS)
            + f"{row['p50'] - direct['p50']:9.3f}{row['p99'] - direct['p99']:9.3f}"
            f"{row['chunks']:12.0f}{row['first'] - direct['first']:7.2f}{row['RSS']:6.0f}"
        )


async def main(peers: Path, rounds: int, seconds: float, names: list[str]) -> None:
    """Start everything, measure in turn, print."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    pods = subprocess.Popen(  # noqa: ASYNC220, S603 - nothing else runs yet; our own command line
        [sys.executable, Path(__file__).with_name("router_pods.py"), "4"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    ports = [int(word) for word in pods.stdout.readline().split()]
    os.sched_setaffinity(0, cores)
    running = [rivals.start(name, ports, peers, cores[-1]) for name in names]
    os.sched_setaffinity(0, {cores[0]})
    running = [rivals.Rival("direct", ports[0]), *filter(None, running)]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        for _ in range(rounds):
            for rival in running:
                for figure, value in (await measure(rival, seconds)).items():
                    found[rival.name][figure].append(value)
    finally:
        for rival in running:
            rival.stop()
        pods.communicate()
    print(f"{rounds} rounds, medians; load average {os.getloadavg()[0]:.1f}")
    show({n: {f: statistics.median(v) for f, v in row.items()} for n, row in found.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of environments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--only", nargs="*", default=NAMES, help="routers, e.g. 'kvbench chwbl'")
    given = parser.parse_args()
    uvloop.run(main(given.peers, given.rounds, given.seconds, given.only))
