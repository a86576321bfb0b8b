"""Small fleets in this process: pods, router and exporter with their real servers, and traffic."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from kvbench.clock import WallClock, utc_seconds
from kvbench.engine.profile_file import load_profile
from kvbench.engine.values import EngineConfig
from kvbench.exporter.service import Exporter
from kvbench.exporter.service import Settings as ExporterSettings
from kvbench.pod.faults import Faults
from kvbench.pod.publisher import EventsConfig
from kvbench.pod.server import PodConfig
from kvbench.pod.service import PodService, fitted
from kvbench.router.service import Router
from kvbench.router.service import Settings as RouterSettings
from kvbench.text.tokenizer import Tokenizer

LOCUSTFILE = Path(__file__).parents[1] / "workloads" / "locustfile.py"


async def ask(url, path, body):
    """Post and read the answer to its end."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + data)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def host(url):
    """Return host:port."""
    return urlsplit(url).netloc


@contextmanager
def load(folder, workload, url, port):
    """Keep a load run of a workload (its text) against `url` going, with its metrics on `port`."""
    (folder / "workload.yaml").write_text(workload)
    command = [
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)),
        *("--workload", str(folder / "workload.yaml"), "--host", url, "--headless"),
        *("--metrics-port", str(port), "--run-dir", str(folder / "run")),
    ]
    with (folder / "load.log").open("w") as log:
        generator = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield
        finally:
            generator.terminate()
            generator.wait()


class SmallFleet(AsyncExitStack):
    """Two pods behind a router, with an exporter beside them.

    Args:
        folder: For the sockets of KV events.
        blocks: Of each pod's cache.
        policy: Of the router.
        replay: Whether lost events can be asked for again.
        window: Of the model, in tokens.
    """

    def __init__(self, folder, blocks=2000, policy="prefix_cost", *, replay=True, window=8192):
        """Take note."""
        super().__init__()
        self._folder = folder
        self._blocks = blocks
        self._policy = policy
        self._replay = replay
        self._window = window
        self.pods = []
        self.services = []
        self.router = self.exporter = ""
        self._tasks = set()

    async def start(self, profile="llama-3.1-8b-h100", faster=4.0):
        """Start all of it."""
        self._folder.mkdir(parents=True)
        named = []
        for number in range(2):
            events = f"ipc://{self._folder}/{number}.e"
            replay = f"ipc://{self._folder}/{number}.r" if self._replay else None
            hardware = load_profile(profile)
            engine = EngineConfig(num_gpu_blocks=self._blocks, max_model_len=self._window)
            pod = PodService(
                PodConfig(
                    model="m",
                    tokenizer=Tokenizer.load(None),
                    engine=fitted(engine),
                    time=hardware.time.faster(faster),
                    dev_mode=True,
                    seed=number,
                ),
                WallClock(),
                utc_seconds,
                events=EventsConfig(
                    enable_kv_cache_events=True,
                    publisher="zmq",
                    endpoint=events,
                    replay_endpoint=replay,
                ),
                form="map",
                faults=Faults(),
            )
            url = await pod.start("127.0.0.1", 0)
            self.push_async_callback(pod.stop, 0.0)
            self.services.append(pod)
            self.pods.append(url)
            named.append(f"{url},events={events}" + (f",replay={replay}" if replay else ""))
        router = Router(named, RouterSettings(policy=self._policy), WallClock())
        self.router = await router.start("127.0.0.1", 0)
        self.push_async_callback(router.stop, 0.0)
        exporter = Exporter(named, None, ExporterSettings(every_s=2.0), WallClock(), utc_seconds)
        self.exporter = await exporter.start("127.0.0.1", 0)
        self.push_async_callback(exporter.stop)
        self.push_async_callback(self._hang_up)

    def send(self, prompt, answer=4):
        """Send a prompt through the router; who waits for it waits alone."""
        body = {"model": "m", "prompt": prompt, "max_tokens": answer, "stream": True}
        task = asyncio.ensure_future(self._ask(body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, body):
        """Ask; a stream that is cut is the fleet's trouble."""
        with suppress(OSError):
            await ask(self.router, "/v1/completions", body)

    async def _hang_up(self):
        """Leave what is still open."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def repeat(self, groups, per_second=3.0, mutate=None):
        """Ask about `groups` documents in turn, for ever: all but the question is shared.

        With `mutate`, an event, every prompt begins otherwise once it is set.
        """
        for number in count():
            text = document(number % groups)
            changed = mutate is not None and mutate.is_set()
            self.send((f"request {number}: " if changed else "") + text + f" question {number}")
            await asyncio.sleep(1 / per_second)

    async def move_on(self, times, per_second=3.0):
        """Ask about each document `times` times and never again."""
        for number in count():
            self.send(document(number // times) + f" question {number}")
            await asyncio.sleep(1 / per_second)


def document(number, words=400):
    """Return a text that begins as no other does."""
    return f"document {number}: " + " ".join(f"item {number} {word}" for word in range(words // 3))
