"""A stack as processes on this machine: started together, watched, stopped in order."""

from __future__ import annotations

from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from kvbench.errors import TargetError
from kvbench.stack.process import Child
from kvbench.stack.topology import Listening

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from kvbench.stack.topology import RouterSpec, Topology

READY_SECONDS = 60.0
"""How long a part may take to come up: importing on a busy laptop takes most of it."""


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
    def url(self) -> str:
        """Where the router answers."""
        assert self.router is not None
        assert self.router.url is not None
        return self.router.url

    def _start_pods(self) -> None:
        # A path of a socket may have 107 bytes at most: a folder with a short name.
        folder = self._stack.enter_context(TemporaryDirectory(prefix="kvbench-"))
        for number, spec in enumerate(self._topology.pods, 1):
            sockets = (f"ipc://{folder}/{number}.{end}" for end in ("events", "replay"))
            command = spec.command(Listening(self._topology.host, 0, *sockets))
            child = Child(f"pod {number}", command, self._logs / f"pod-{number}.log")
            self.pods.append(self._stack.enter_context(child))
        for child in self.pods:
            child.wait_ready(READY_SECONDS)

    def start_router(self, spec: RouterSpec) -> None:
        """Start the router, in place of the one that runs, if any."""
        if self.router is not None:
            self.router.stop()
        command = spec.command(self._topology.host, self._router_port, self.pod_urls)
        self.router = Child("router", command, self._logs / "router.log")
        self._stack.enter_context(self.router)
        self.router.wait_ready(READY_SECONDS)

    def check(self) -> None:
        """Raise TargetError, with the end of its log, if a part has ended by itself."""
        for child in [*self.pods, *([self.router] if self.router else [])]:
            code = child.poll()
            if code is not None:
                raise TargetError(
                    f"{child.name} ended with {code}{child.tail()}", hint=f"its log: {child.log}"
                )

    def stop(self) -> None:
        """Ask all parts to end at once, then wait for each: router first, so no turn is lost."""
        if self.router is not None:
            self.router.stop()
        for child in self.pods:
            child.ask_to_stop()
        self._stack.close()
