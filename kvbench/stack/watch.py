"""Keeps what pods and router say at `/metrics`: before a run, every second of it, and after.

A thread of its own asks one server after the other and appends a line for each to the run's
`server.jsonl` (`kvbench.records.server` says what a line holds). A server that does not answer in
time is noted and asked again a second later: watching never stops a run, and a disk that is full
ends the watching, not the run.
"""

from __future__ import annotations

import threading
import urllib.error
from typing import TYPE_CHECKING, Self

import msgspec

from kvbench.clock import utc_seconds
from kvbench.errors import TargetError
from kvbench.records.server import Kind, Snapshot, scan
from kvbench.stack.target import fetch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    from kvbench.stack.target import Target

EVERY_SECONDS = 1.0
TIMEOUT_SECONDS = 2.0
"""How long a server may take to answer: it is busy with what is measured."""

Server = tuple[str, str, Kind]
"""Name, base URL, and what it is."""


def servers_of(target: Target) -> list[Server]:
    """Return who is to be watched: the pods, and the router where there is one."""
    pods: list[Server] = [(name, url, "pod") for name, url in target.pods.items()]
    return [*pods, ("router", target.url, "router")] if target.routed else pods


class ServerWatch:
    """Watches from when it is entered until it is left.

    Args:
        servers: Whom to ask.
        path: The file that gets the lines.
        every_s: Seconds between two rounds.
    """

    def __init__(
        self, servers: Iterable[Server], path: Path, every_s: float = EVERY_SECONDS
    ) -> None:
        self._servers = list(servers)
        self._path = path
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server watch", daemon=True)

    def __enter__(self) -> Self:
        self._round()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._round()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._round()

    def _round(self) -> None:
        lines = [msgspec.json.encode(_look(*server)) + b"\n" for server in self._servers]
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError:
            self._over.set()


def _look(name: str, url: str, kind: Kind) -> Snapshot:
    try:
        values = scan(fetch(f"{url}/metrics", timeout=TIMEOUT_SECONDS))
    except urllib.error.HTTPError as error:
        error.close()
        values = {}
    except TargetError:
        values = {}
    return Snapshot(at=utc_seconds(), server=name, kind=kind, values=values)
