"""Where pods come from: flags, a watched file, DNS names, and people."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.router.dns import SCHEME, DnsName
from kvbench.router.pods_file import read_pods
from kvbench.router.roster import Roster, parse_member
from kvbench.router.settings import given_by
from kvbench.router.watched import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

_FLAGS = "--pod"


class Sources:
    """All sources of pods.

    Args:
        pods: What `--pod` was given: URLs of pods and DNS names.
        path: A file of pods, if there is one.
        resolve: Returns the addresses of a host.

    Attributes:
        roster: The pods that they name.

    Raises:
        InputError: One of them cannot be understood, or a pod is named twice.
    """

    def __init__(
        self,
        pods: Sequence[str],
        path: Path | None,
        resolve: Callable[[str, int], Awaitable[list[str]]],
    ) -> None:
        self.roster = Roster()
        self._names = [DnsName(pod, resolve) for pod in pods if pod.startswith(SCHEME)]
        urls = [pod for pod in pods if not pod.startswith(SCHEME)]
        names = [parse_member(url).name for url in urls]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"--pod: {name} is given twice")
        self.roster.name(_FLAGS, urls)
        self._file: WatchedFile[list[str]] | None = None
        if path is not None:
            self._file = WatchedFile(path, read_pods, self._use_file)
            with given_by("--pods-file"):
                self._file.load()

    @property
    def none(self) -> bool:
        """Whether no pod is named and none could be."""
        return self._file is None and not self._names and not self.roster.wanted()

    async def resolve(self) -> None:
        """Ask for the addresses of all DNS names."""
        found = await asyncio.gather(*(name.pods() for name in self._names))
        for name, urls in zip(self._names, found, strict=True):
            if urls is not None:
                self.roster.name(name.url, urls)

    async def reread(self) -> None:
        """Read the file again, if it has changed."""
        if self._file is not None:
            await self._file.refresh()

    def troubles(self) -> dict[str, str | None]:
        """Return what is wrong with each source that can go wrong, None where nothing is."""
        found = {name.url: name.trouble for name in self._names}
        if self._file is not None:
            found[str(self._file.path)] = self._file.trouble
        return found

    def listing(self) -> list[dict[str, object]]:
        """Return each source, the pods that it names, and what is wrong with it."""
        troubles = self.troubles()
        return [
            {"source": source, "pods": pods, "trouble": troubles.get(source)}
            for source, pods in self.roster.named().items()
            if pods or source in troubles
        ]

    def _use_file(self, urls: list[str]) -> None:
        assert self._file is not None
        self.roster.name(str(self._file.path), urls)
