"""The exporter as a server: looks at pods, hears their events, and shows what it knows.

| path | answered |
|---|---|
| `GET /metrics` | the exporter's part of the metric catalogue, and its own process |
| `GET /targets` | the pods it looks at, as Prometheus' `http_sd_configs` takes them |
| `GET /health` | 200 |

Rules:

- Each pod is looked at by a task of its own, with a connection, a time limit and a size limit of
  its own: one that answers slowly, for ever, or nonsense delays no other.
- A pod's window is what `/v1/models` says; it is asked for when the pod is first read, and again
  after a restart. Where that is closed, `/metrics` says it to a block.
- With a router, its pods are taken in and let go as its `/pods` lists them, events included. Pods
  that were named are kept.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvbench.errors import InputError, KvbenchError, TargetError
from kvbench.exporter.cache import REMEMBER
from kvbench.exporter.fleet import Fleet
from kvbench.exporter.gpu import read_gpus
from kvbench.http.address import parse_address
from kvbench.http.get import Failure, get
from kvbench.http.server import Server, serve
from kvbench.metrics.exposition import NonsenseError, read
from kvbench.zmqfeed.sources import parse_pod
from kvbench.zmqfeed.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from kvbench.clock import Clock
    from kvbench.http.address import Address
    from kvbench.http.server import Exchange
    from kvbench.metrics.exposition import Reading

logger = logging.getLogger(__name__)

_SWEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """How an exporter behaves.

    Attributes:
        every_s: Seconds between two looks at a pod.
        timeout_s: Seconds that a look may take.
        key: Of the pods' API and the router's; metrics need none.
        router_every_s: Seconds between two looks at the router's list of pods.
        remember: Blocks that are remembered after nobody holds them.
    """

    every_s: float = 1.0
    timeout_s: float = 5.0
    router_every_s: float = 5.0
    remember: int = REMEMBER
    key: str | None = field(default=None, repr=False)


class _Listed(msgspec.Struct, frozen=True):
    """A pod as a router lists it; `pod` is as `--pod` takes it, where the router says."""

    url: str
    pod: str | None = None


class _Listing(msgspec.Struct, frozen=True):
    """What a router says at `/pods`."""

    pods: list[_Listed]


class _Model(msgspec.Struct, frozen=True):
    """A model as a pod lists it."""

    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    """What a pod says at `/v1/models`."""

    data: list[_Model]


class Exporter:
    """An exporter beside pods.

    Args:
        pods: As `--pod` takes them.
        router: URL of a router whose pods are taken in, None without.
        settings: How it behaves.
        clock: What time it is.
        utc: Calendar seconds, as pods have them.

    Raises:
        InputError: A pod or the router is no URL, one is given twice, or there is nothing to do.
    """

    def __init__(
        self,
        pods: Sequence[str],
        router: str | None,
        settings: Settings,
        clock: Clock,
        utc: Callable[[], float],
    ) -> None:
        if not pods and router is None:
            raise InputError(
                "--pod: expected at least one pod, or a --router, got neither",
                hint="--pod http://127.0.0.1:8000,events=tcp://127.0.0.1:5557",
            )
        self.fleet = Fleet(utc, settings.remember)
        self._settings = settings
        self._clock = clock
        self._named = list(pods)
        self._router = None if router is None else parse_address(router)
        self._addresses: dict[str, Address] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._server: Server | None = None
        self._subscriber: Subscriber | None = None
        self._troubles: dict[str, str] = {}
        self._shown = self._looks = self._failed = 0
        names = [parse_address(parse_pod(pod)[0]).name for pod in pods]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"--pod: {name} is given twice")

    async def start(self, host: str, port: int) -> str:
        """Listen, and begin to look; return the URL.

        Raises:
            TargetError: The address cannot be bound, or an events endpoint cannot be opened.
        """
        self._subscriber = Subscriber(self.fleet.ledger)
        for pod in self._named:
            self._add(pod)
        self._spawn("sweep", self._sweep(self._subscriber))
        if self._router is not None:
            self._spawn("router", self._follow(self._router))
        self._server = await serve(self.handle, host, port)
        return self._server.url

    async def stop(self, grace_s: float = 1.0) -> None:
        """Answer what is under way, and end."""
        if self._server is not None:
            await self._server.close(grace_s)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._subscriber is not None:
            self._subscriber.close()

    def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.request
        if request.method not in {"GET", "HEAD"}:
            exchange.respond(405, b"", None)
        elif request.path.rstrip("/") == "/metrics":
            self.fleet.show(self._clock.now(), read_gpus())
            self._shown += 1
            exchange.respond(200, generate_latest(self.fleet.meters.registry), CONTENT_TYPE_LATEST)
        elif request.path == "/targets":
            exchange.respond(200, msgspec.json.encode(self._targets()), "application/json")
        elif request.path == "/health":
            exchange.respond(200, b"", None)
        else:
            exchange.respond(404, b"the exporter serves /metrics\n", "text/plain")

    def totals(self) -> str:
        """Return what was done since it began, in words: the last line of its log."""
        shown, looks, failed = self._shown, self._looks, self._failed
        return f"/metrics asked for: {shown:,}; looks at pods: {looks:,}, in vain: {failed:,}"

    def _targets(self) -> list[dict[str, object]]:
        """Return the pods as Prometheus takes them in: scraped where the exporter looks."""
        return [
            {
                "targets": [name],
                "labels": {
                    "__scheme__": "https" if address.tls else "http",
                    "__metrics_path__": f"{address.base}/metrics",
                },
            }
            for name, address in self._addresses.items()
        ]

    def _add(self, pod: str) -> str:
        """Begin to look at a pod; return its name."""
        url, source = parse_pod(pod)
        address = parse_address(url)
        if address.name not in self.fleet.pods:
            self.fleet.add(address.name)
            logger.info("%s joined%s", address.name, "" if source is None else ", with KV events")
            self._addresses[address.name] = address
            if source is not None and self._subscriber is not None:
                self._subscriber.follow(address.name, source)
            self._spawn(address.name, self._watch(address))
        return address.name

    def _drop(self, name: str) -> None:
        """Look at a pod no more."""
        logger.info("%s left", name)
        self._troubles.pop(name, None)
        self._tasks.pop(name).cancel()
        del self._addresses[name]
        if self._subscriber is not None:
            self._subscriber.drop(name)
        self.fleet.drop(name)

    async def _watch(self, address: Address) -> None:
        """Look at a pod, again and again."""
        restarts = -1
        while True:
            began = self._clock.now()
            answer = await get(f"{address.url}/metrics", timeout_s=self._settings.timeout_s)
            now = self._clock.now()
            found = _read(answer)
            self._tell(address.name, found.sentence if isinstance(found, Failure) else None)
            reading = found.kind if isinstance(found, Failure) else found
            self.fleet.looked(address.name, now, now - began, reading)
            pod = self.fleet.pods[address.name]
            if pod.reading is not None and restarts != pod.restarts:
                restarts = pod.restarts
                pod.window = await self._window(address) or pod.window
            await asyncio.sleep(max(began + self._settings.every_s - self._clock.now(), 0.01))

    def _tell(self, name: str, trouble: str | None) -> None:
        """Count a look at a pod; log its trouble once, and once that it is over."""
        self._looks += 1
        self._failed += trouble is not None
        before = self._troubles.pop(name, None)
        if trouble is not None:
            self._troubles[name] = trouble
            if trouble != before:
                logger.warning("%s: /metrics cannot be read: %s", name, trouble)
        elif before is not None:
            logger.info("%s: /metrics can be read again", name)

    async def _window(self, address: Address) -> int | None:
        """Return what a pod says its longest request is."""
        settings = self._settings
        answer = await get(
            f"{address.url}/v1/models", timeout_s=settings.timeout_s, key=settings.key
        )
        try:
            models = (
                msgspec.json.decode(answer, type=_Models) if isinstance(answer, bytes) else None
            )
        except msgspec.DecodeError:
            return None
        return models.data[0].max_model_len if models and models.data else None

    async def _follow(self, router: Address) -> None:
        """Take in the pods that a router has, and let go of those that it has no more."""
        named = {parse_address(parse_pod(pod)[0]).name for pod in self._named}
        taken: set[str] = set()
        trouble = ""
        while True:
            settings = self._settings
            answer = await get(f"{router.url}/pods", timeout_s=settings.timeout_s, key=settings.key)
            try:
                listed = {self._add(pod) for pod in _listed(answer)}
            except KvbenchError as error:
                if error.message != trouble:
                    logger.warning("%s/pods: %s", router.url, error)
                trouble = error.message
            else:
                trouble = ""
                for name in taken - listed - named:
                    self._drop(name)
                taken = listed
            await asyncio.sleep(self._settings.router_every_s)

    async def _sweep(self, subscriber: Subscriber) -> None:
        """Have the subscriber give up replays that do not end."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            subscriber.sweep()

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        """Run something beside the server, for as long as the server."""
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Tell what ended a task that was to go on: a fault of our own, and the pod is unread."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s is looked at no more", task.get_name(), exc_info=error)
            pod = self.fleet.pods.get(task.get_name())
            if pod is not None:
                pod.reading = None


def _read(answer: bytes | Failure) -> Reading | Failure:
    """Return what a pod said, or why that is of no use."""
    if isinstance(answer, Failure):
        return answer
    try:
        return read(answer)
    except NonsenseError as error:
        return Failure("nonsense", str(error))


def _listed(answer: bytes | Failure) -> list[str]:
    """Return the pods that a router lists, as `--pod` takes them.

    Raises:
        TargetError: It lists none.
    """
    if isinstance(answer, Failure):
        raise TargetError(answer.sentence)
    try:
        pods = msgspec.json.decode(answer, type=_Listing).pods
    except msgspec.DecodeError as error:
        raise TargetError(f"expected a list of pods, got something else: {error}") from None
    return [pod.pod or pod.url for pod in pods]
