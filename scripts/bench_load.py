"""How far the load generator's clock can be trusted: its times against those of a known server.

A server with a fixed time line answers N streams that begin at once; it notes when each request
had arrived (by the kernel's stamp) and when it wrote the first token. The generator is started as
`kvbench run` starts it, Locust and all, on a core of its own. What the row of a turn says about its
time to first token, minus what the server knows, is the error.

    python scripts/bench_load.py 50 200 500

The server's own lateness does not count: its notes are of what it did, not of what it intended.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httptools
import numpy as np

from kvbench.clock import WallClock
from kvbench.load.stamps import Receiver
from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.stack.loadgen import locust_command

FIRST = 0.2  # seconds until the first token
GAP = 0.02  # seconds between tokens
TOKENS = 50
SERVER_CORE, CLIENT_CORE = 0, 1

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(*payloads: str) -> bytes:
    """Return payloads as events in one chunk."""
    body = "".join(f"data: {payload}\n\n" for payload in payloads).encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


_TOKEN = _chunk(
    '{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795975513,'
    '"model":"tiny","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,'
    '"finish_reason":null,"token_ids":null}]}'
)
_LAST = (
    _chunk(
        f'{{"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":{TOKENS},'
        '"prompt_tokens_details":{"cached_tokens":0}}}',
        "[DONE]",
    )
    + b"0\r\n\r\n"
)


class Connection:
    """One connection of the server."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parser = httptools.HttpRequestParser(self)
        self.complete = False
        self.request_id = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the request's id."""
        if name.lower() == b"x-request-id":
            self.request_id = value.decode()

    def on_message_complete(self) -> None:
        """Note that a request is there."""
        self.complete = True


class Server:
    """A single thread on epoll that keeps a time line for each request."""

    def __init__(self) -> None:
        self._clock = WallClock()
        self._receiver = Receiver(self._clock)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[float, int, int]] = []
        self._arrived: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self.port = self._listener.getsockname()[1]

    def serve(self) -> dict[str, tuple[float, float]]:
        """Serve until standard input ends; return (arrived, first token written) by request."""
        while True:
            now = self._clock.now()
            wait = max(0.0, self._due[0][0] - now) if self._due else 1.0
            for fd, _ in self._poll.poll(wait):
                if fd == sys.stdin.fileno():
                    return {i: (at, self._written[i]) for i, at in self._arrived.items()}
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(fd)
            self._write(self._clock.now())

    def _accept(self) -> None:
        """Take a new connection."""
        sock, _ = self._listener.accept()
        sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._receiver.enable(sock)
        self._connections[sock.fileno()] = Connection(sock)
        self._poll.register(sock, select.EPOLLIN)

    def _read(self, fd: int) -> None:
        """Read, and begin a time line where a request is complete."""
        connection = self._connections[fd]
        at, data = self._receiver.read(connection.sock, 0.0)
        if not data:
            self._poll.unregister(fd)
            self._connections.pop(fd).sock.close()
            return
        connection.parser.feed_data(data)
        if connection.complete:
            connection.complete = False
            connection.parser = httptools.HttpRequestParser(connection)
            self._arrived[connection.request_id] = at
            heapq.heappush(self._due, (at + FIRST, 0, fd))
            connection.sock.send(_HEAD)

    def _write(self, now: float) -> None:
        """Write what is due."""
        while self._due and self._due[0][0] <= now:
            due, number, fd = heapq.heappop(self._due)
            connection = self._connections[fd]
            if number == 0:
                self._written[connection.request_id] = self._clock.now()
            connection.sock.send(_TOKEN if number < TOKENS else _LAST)
            if number < TOKENS:
                later = due + (GAP if number < TOKENS - 1 else 0.0)
                heapq.heappush(self._due, (later, number + 1, fd))


def _serve() -> None:
    """Be the server: print the URL, serve, print the notes."""
    os.sched_setaffinity(0, {SERVER_CORE})
    server = Server()
    print(f"http://127.0.0.1:{server.port}", flush=True)
    print(json.dumps(server.serve()), flush=True)


def measure(streams: int, folder: Path) -> list[str]:
    """Run one size, and return the row of the table."""
    server = subprocess.Popen(  # noqa: S603 - this very file
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    workload = folder / f"burst-{streams}.yaml"
    workload.write_text(
        f"name: burst\nsessions: {{count: {streams}, turns: 2, user_tokens: 200, "
        f"answer_tokens: {TOKENS}, think: 0.5}}\n"
        f"arrival: {{burst: {{size: {streams}, every: 1}}}}\n"
    )
    run = folder / f"run-{streams}"
    url = server.stdout.readline().strip()
    command = locust_command(host=url, run_dir=run, workload=workload, model="tiny")
    subprocess.run(  # noqa: S603 - our own command line
        command, check=True, stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {CLIENT_CORE}),
    )  # fmt: skip
    truth = json.loads(server.communicate()[0])
    rows, _ = read_rows(RunFolder(run))
    (testimony,) = RunFolder(run).read_testimonies()
    errors, lateness, gaps, merged = [], [], [], 0
    for row in rows:
        assert row.ttft_s is not None, row
        arrived, written = truth[row.request_id]
        errors.append(1000 * (row.ttft_s - (written - arrived)))
        lateness.append(1000 * (row.lateness_s or 0))
        gaps += [1000 * gap for gap in row.chunk_gaps_s]
        merged += row.first_read_chunks != 1
    wall = max(row.end_s or 0 for row in rows)
    cpu = 1000 * (testimony.cpu_share or 0) * wall / len(rows)
    p = np.percentile
    return [
        f"{streams}",
        f"{p(errors, 50):.3f} / {p(errors, 99):.3f} / {max(errors):.3f}",
        f"{p(lateness, 50):.2f} / {p(lateness, 99):.2f} / {max(lateness):.2f}",
        f"{p(gaps, 50):.2f} / {p(gaps, 99):.2f}",
        f"{merged}",
        f"{cpu:.2f}",
        f"{1000 * (testimony.loop_delay_p99_s or 0):.1f}",
    ]


def main() -> None:
    """Print the table."""
    heads = [
        "streams", "TTFT error p50/p99/max ms", "sent late p50/p99/max ms",
        f"ITL p50/p99 ms (true {1000 * GAP:g})", "merged first reads", "CPU s per 1,000 turns",
        "loop delay p99 ms",
    ]  # fmt: skip
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for streams in [int(size) for size in sys.argv[1:]] or [50, 200, 500]:
            print("| " + " | ".join(measure(streams, Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        main()
