"""What the router costs: requests a second and CPU per request, beside going to the pod directly.

    python scripts/bench_router.py [--seconds 3]

A pod that answers at once and a client that asks again as soon as it is answered share one core;
the router has another. Only ratios travel from machine to machine: each row says what share of the
direct rate it reached. CPU time is the router's own, from /proc, so this runs on Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time

import httptools
import uvloop

from kvbench.http.server import Exchange, serve

ANSWER = json.dumps(
    {
        "id": "cmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}],
        "usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 0}},
    }
).encode()
ROUTER = "import typer; from kvbench.cli.router import router; typer.run(router)"


def body(size: int, number: int) -> bytes:
    """Return a chat of about so many bytes; sixteen different ones."""
    text = f"{number % 16} " + "lorem ipsum " * (size // 12)
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "messages": [message]}).encode()


class Asker(asyncio.Protocol):
    """One connection that asks, waits for the answer, and asks again."""

    def __init__(self, requests: list[bytes], counts: list[int]) -> None:
        self._requests = requests
        self._counts = counts
        self._next = 0
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        self.transport = transport
        self.ask()

    def data_received(self, data: bytes) -> None:
        """Read."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Count, and ask again."""
        self._counts[0] += self._parser.get_status_code() == 200
        self.ask()

    def ask(self) -> None:
        """Send the next request."""
        self.transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1


async def rate(port: int, connections: int, size: int, seconds: float) -> float:
    """Return requests a second over so many connections."""
    bodies = [body(size, number) for number in range(16)]
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "content-length: %d\r\n\r\n"
    )
    requests = [(head % len(text)).encode() + text for text in bodies]
    counts = [0]
    loop = asyncio.get_running_loop()
    askers = [
        await loop.create_connection(lambda: Asker(requests, counts), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.sleep(0.3)
    before, began = counts[0], time.perf_counter()
    await asyncio.sleep(seconds)
    reached = (counts[0] - before) / (time.perf_counter() - began)
    for transport, _ in askers:
        transport.abort()
    await asyncio.sleep(0.1)
    return reached


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123 - not a path of ours
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_router(pods: list[int], policy: str) -> tuple[subprocess.Popen[str], int]:
    """Start a router on the last core; return it and its port."""
    command = [sys.executable, "-c", ROUTER, "--policy", policy, "--exit-with-parent"]
    for port in pods:
        command += ["--pod", f"http://127.0.0.1:{port}"]
    router = subprocess.Popen(  # noqa: S603 - our own command line
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(router.pid, {cores[-1]})
    assert router.stdout is not None
    return router, int(router.stdout.readline().rpartition(":")[2])


async def main(seconds: float) -> None:
    """Print the table."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def answer(exchange: Exchange) -> None:
        exchange.respond(200, b"" if exchange.request.path == "/health" else ANSWER)

    pods = [await serve(answer) for _ in range(4)]
    print(
        f"{'policy':14}{'body':>8}{'conns':>6}{'direct/s':>10}{'routed/s':>10}"
        f"{'ratio':>7}{'CPU ms':>8}"
    )
    for policy in ("round_robin", "prefix_cost"):
        router, port = await asyncio.to_thread(start_router, [p.port for p in pods], policy)
        for size, connections in ((60, 1), (60, 16), (60, 64), (32_000, 16), (128_000, 16)):
            direct = await rate(pods[0].port, connections, size, seconds)
            before = cpu_seconds(router.pid)
            routed = await rate(port, connections, size, seconds)
            spent = (cpu_seconds(router.pid) - before) / (routed * (seconds + 0.3)) * 1000
            print(
                f"{policy:14}{size:8}{connections:6}{direct:10.0f}{routed:10.0f}"
                f"{routed / direct:7.2f}{spent:8.3f}",
                flush=True,
            )
        router.terminate()
        await asyncio.to_thread(router.wait)
    for pod in pods:
        await pod.close(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    uvloop.run(main(parser.parse_args().seconds))
