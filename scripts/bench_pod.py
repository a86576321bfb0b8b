"""What a pod costs that streams to a thousand clients at 20 ms per token, and how late it is.

    python scripts/bench_pod.py [--streams 1000] [--seconds 6]

The pod is a process on the last core, with a profile whose every step takes 20 ms. The client is
this process, on the first: plain sockets and epoll, nothing decoded. Measured is the time in which
all streams are open. CPU time is each process's own, from /proc, so a busy machine disturbs it
little; moments are the wall clock's, and mean something on an idle machine only. The unit of the
ratio is what the kernel takes to send as many bytes to as many sockets, with nothing around it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from array import array
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cpu import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_S = 0.02
PROMPT_TOKENS = 64
POD = "from kvbench.cli.main import main; main()"
PROFILE = """\
name: bench
time: {overhead_s: 20ms, weights_s: 0, token_s: 0, pair_s: 0, context_s: 0, sequence_s: 0}
kv_bytes_per_token: 0
kv_tokens: 2000000
"""


class Stream:
    """One stream: how many tokens came, and when."""

    __slots__ = ("ended", "first", "last", "sock", "tokens")

    def __init__(self, port: int, number: int, tokens: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.tokens = 0
        self.first = self.last = 0.0
        self.ended = False
        body = {
            "prompt": [number % 500, number // 500, *range(2, PROMPT_TOKENS)],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        data = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self.sock.sendall(head.encode() + data)
        self.sock.settimeout(0)


class Client:
    """All streams, read by one epoll."""

    def __init__(self, port: int, streams: int, tokens: int) -> None:
        self.gaps = array("d")
        self.sizes = array("I")
        self.open = 0
        self.streams = [Stream(port, number, tokens) for number in range(streams)]
        self._by_fd = {stream.sock.fileno(): stream for stream in self.streams}
        self._epoll = select.epoll()
        for fd in self._by_fd:
            self._epoll.register(fd, select.EPOLLIN)

    def read(self, until: float) -> None:
        """Read until that moment, or until the first stream ends."""
        while time.perf_counter() < until:
            for fd, _ in self._epoll.poll(0.1):
                stream = self._by_fd[fd]
                self._take(stream, stream.sock.recv(65536), time.perf_counter())
                if stream.ended:
                    return

    def _take(self, stream: Stream, data: bytes, now: float) -> None:
        """Count the tokens of one read."""
        count = data.count(b"data: {")
        stream.ended = not data or b"[DONE]" in data
        if not count:
            return
        if stream.tokens:
            self.gaps.append(now - stream.last)
            self.sizes.append(len(data) // count)
        else:
            stream.first = now
            self.open += 1
        stream.tokens += count
        stream.last = now

    def start_over(self) -> None:
        """Forget what was measured; streams go on."""
        del self.gaps[:], self.sizes[:]
        for stream in self.streams:
            stream.tokens = min(stream.tokens, 1)
            stream.first = stream.last


@contextmanager
def pod(streams: int, tokens: int) -> Iterator[tuple[int, int]]:
    """Run a pod on the last core; yield its process id and its port."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.yaml")
        path.write_text(PROFILE, encoding="utf-8")
        command = [sys.executable, "-c", POD, "pod", "--exit-with-parent", "--profile", str(path)]
        command += ["--max-num-seqs", str(streams), "--grace", "0"]
        command += ["--num-gpu-blocks", str(streams * (PROMPT_TOKENS + tokens) // 16 + streams)]
        child = subprocess.Popen(  # noqa: S603 - our own command line
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with child:
            os.sched_setaffinity(child.pid, {os.cpu_count() - 1})
            assert child.stdout is not None
            yield child.pid, int(child.stdout.readline().rpartition(":")[2])
            child.terminate()


def lateness(port: int) -> dict[str, float]:
    """Return the pod's own account: steps, the sum of their lateness, and steps by bound."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/debug/lateness") as answer:
        told = json.load(answer)
    sums = {"steps": told["steps"], "total_s": told["mean_s"] * told["steps"]}
    return sums | told["steps_by_lateness_s"] | {"jumps": told["jumps"]}


def bound(late: dict[str, float], share: float) -> str:
    """Return the least bound that holds for that share of the steps."""
    seen = 0.0
    for name, count in late.items():
        if name[0].isdigit():
            seen += count
            if seen >= share * late["steps"]:
                return f"at most {float(name) * 1e3:.0f} ms"
    return "more than 1 s"


def floor(streams: int, size: int) -> float:
    """Return the seconds of CPU that the kernel takes to send `size` bytes, once to each socket."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=streams)
    pairs = []
    for _ in range(streams):
        sender = socket.create_connection(listener.getsockname())
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pairs.append((sender, listener.accept()[0]))
    data, spent, rounds = b"x" * size, 0.0, 40
    for _ in range(rounds):
        began = time.process_time()
        for sender, _ in pairs:
            sender.send(data)
        spent += time.process_time() - began
        for _, receiver in pairs:
            receiver.recv(size)
    for sender, receiver in pairs:
        sender.close()
        receiver.close()
    listener.close()
    return spent / rounds / streams


def row(what: str, value: str) -> None:
    """Print one line of the table."""
    print(f"{what:<44} {value}")


def measure(streams: int, seconds: float) -> None:
    """Open the streams, watch them for so long, and print the table."""
    tokens = int((seconds + 30) / STEP_S)
    with pod(streams, tokens) as (pid, port):
        client = Client(port, streams, tokens)
        patience = time.perf_counter() + 60
        while client.open < streams and time.perf_counter() < patience:
            client.read(time.perf_counter() + 0.1)
        client.read(time.perf_counter() + 0.5)
        client.start_over()
        before, spent, own = lateness(port), cpu_seconds(pid), time.process_time()
        began = time.perf_counter()
        client.read(began + seconds)
        own = (time.process_time() - own) / (time.perf_counter() - began)
        took = time.perf_counter() - began
        spent, after = cpu_seconds(pid) - spent, lateness(port)
    report(client, took, spent, own, {name: after[name] - before[name] for name in before})


def report(client: Client, took: float, spent: float, own: float, late: dict[str, float]) -> None:
    """Print the table."""
    streams = client.streams
    count = sum(stream.tokens - 1 for stream in streams)
    tpot = [(s.last - s.first) / (s.tokens - 1) for s in streams if s.tokens > 1]
    middle, high = np.percentile(tpot, [50, 99]) * 1e3
    row("streams open, each all the time", f"{client.open:,}")
    row("TPOT of the streams, p50, p99", f"{middle:.2f} ms, {high:.2f} ms")
    middle, high = np.percentile(client.gaps, [50, 99]) * 1e3
    row("gap between reads, p50, p99", f"{middle:.2f} ms, {high:.2f} ms")
    wanted = took / STEP_S * len(streams)
    row("tokens that came, of those due", f"{count:,} of {wanted:,.0f}")
    row("the pod's own lateness, mean", f"{late['total_s'] / late['steps'] * 1e3:.2f} ms")
    row("… p50, p99", f"{bound(late, 0.5)}, {bound(late, 0.99)}")
    row("… steps, jumps of its time line", f"{late['steps']:.0f}, {late['jumps']:.0f}")
    row("the pod's share of a core", f"{spent / took:.0%}")
    row("the client's share of a core", f"{own:.0%}")
    each, size = spent / count, int(np.mean(client.sizes))
    bare = floor(len(streams), size)
    row("pod, CPU per token", f"{each * 1e6:.1f} µs, so at most {STEP_S / each:,.0f} streams")
    row(f"kernel, CPU to send {size} bytes", f"{bare * 1e6:.1f} µs")
    row("pod against bare sending", f"{each / bare:.1f} ×")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long to measure")
    arguments = parser.parse_args()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)} if len(cores) > 1 else cores)
    measure(arguments.streams, arguments.seconds)


if __name__ == "__main__":
    main()
