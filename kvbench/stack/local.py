"""A stack as processes on this machine: started together, watched, stopped in order."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from kvbench.errors import InputError, TargetError
from kvbench.stack.process import Child, check
from kvbench.stack.topology import Listening, PodSpec, VllmSpec
from kvbench.stack.trouble import known_trouble

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from kvbench.stack.topology import RouterSpec, Topology

READY_SECONDS = 60.0
"""How long a part may take to come up: importing on a busy laptop takes most of it."""
VLLM_READY_SECONDS = 1800.0
"""How long a real vLLM may take: it downloads weights, loads them, and compiles kernels."""


class LocalStack:
    """Pods and a router on loopback, on free ports unless told otherwise.

    Use as a context manager: leaving it ends every process that it started.

    Args:
        topology: What to start.
        logs: Folder for the logs of the parts.
        router_port: Port of the router; 0 takes a free one.
    """

    def __init__(self, topology: Topology, logs: Path, router_port: int = 0) -> None:
        self._topology = topology
        self._logs = logs
        self._router_port = router_port
        self._stack = ExitStack()
        self._listening: list[Listening] = []
        self.pods: list[Child] = []
        self.router: Child | None = None

    def __enter__(self) -> Self:
        try:
            self._start_pods()
            self.start_router(self._topology.router)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pod_urls(self) -> list[str]:
        """Where the pods answer."""
        return [pod.url for pod in self.pods if pod.url]

    @property
    def sources(self) -> list[str]:
        """The pods as `--pod` takes them, with where their events are."""
        return [at.seen_as(url) for at, url in zip(self._listening, self.pod_urls, strict=True)]

    @property
    def url(self) -> str:
        """Where the router answers."""
        assert self.router is not None
        assert self.router.url is not None
        return self.router.url

    def _start_pods(self) -> None:
        specs, host = self._topology.pods, self._topology.host
        # A path of a socket may have 107 bytes at most: a folder with a short name.
        folder = self._stack.enter_context(TemporaryDirectory(prefix="kvbench-"))
        ports = free_ports(host, len(specs))
        for number, (spec, port) in enumerate(zip(specs, ports, strict=True), 1):
            sockets = (f"ipc://{folder}/{number}.{end}" for end in ("events", "replay"))
            at = Listening(host, port if isinstance(spec, VllmSpec) else 0, *sockets)
            log = self._logs / f"pod-{number}.log"
            child = Child(f"pod {number}", spec.command(at), log, spec.env)
            self.pods.append(self._stack.enter_context(child))
            self._listening.append(at)
        for child, spec in zip(self.pods, specs, strict=True):
            _wait_ready(child, spec)

    def start_router(self, spec: RouterSpec) -> None:
        """Start the router, in place of the one that runs, if any."""
        if self.router is not None:
            self.router.stop()
        command = spec.command(self._topology.host, self._router_port, self.sources)
        self.router = Child("router", command, self._logs / "router.log")
        self._stack.enter_context(self.router)
        self.router.wait_ready(READY_SECONDS)

    def check(self) -> None:
        """Raise TargetError, with the end of its log, if a part has ended by itself."""
        check([*self.pods, *([self.router] if self.router else [])])

    def stop(self) -> None:
        """Ask all parts to end at once, then wait for each: router first, so no turn is lost."""
        if self.router is not None:
            self.router.stop()
        for child in self.pods:
            child.ask_to_stop()
        self._stack.close()


def _wait_ready(child: Child, spec: PodSpec | VllmSpec) -> None:
    """Wait for a pod; one that fails says what to do, where its log tells.

    Raises:
        KvbenchError: It did not come up.
    """
    if isinstance(spec, PodSpec):
        child.wait_ready(READY_SECONDS)
        return
    try:
        child.wait_ready(VLLM_READY_SECONDS)
    except (TargetError, InputError) as error:
        advice = known_trouble(child.log.read_text(errors="replace"))
        if advice is None:
            raise
        raise type(error)(error.message, hint=f"{advice}; its log: {child.log}") from None


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that nobody listens on, for servers that cannot tell which they took."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in bound]
