"""Which pods there should be: what flags, files, DNS names and people say, made one. Pure.

Rules:

- Each source names a set of pods, and naming a new set replaces its old one. What any source names
  is wanted, once, however many name it; of two URLs with the same host and port the first counts.
- A pod that a person has removed stays away while a source goes on naming it. It may come back when
  a person adds it again, or when every source has dropped it and one names it anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.router.address import parse_address
from kvbench.zmqfeed.sources import parse_pod

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.router.address import Address
    from kvbench.zmqfeed.sources import EventSource

PEOPLE = "admin"


class Roster:
    """The pods that are wanted.

    Attributes:
        sources: Where their KV events come from, by name, for those that say so.
    """

    def __init__(self) -> None:
        self._named: dict[str, dict[str, Address]] = {PEOPLE: {}}
        self._removed: set[str] = set()
        self.sources: dict[str, EventSource] = {}

    def _take(self, text: str) -> Address:
        """Return the address in what is said of a pod; remember where its KV events come from."""
        url, source = parse_pod(text)
        address = parse_address(url)
        self.sources.pop(address.name, None)
        if source is not None:
            self.sources[address.name] = source
        return address

    def name(self, source: str, urls: Iterable[str]) -> None:
        """Take a source's pods for those that it names now.

        Raises:
            InputError: One of them is no URL of a pod; nothing has changed.
        """
        addresses = [self._take(url) for url in urls]
        self._named[source] = {address.name: address for address in addresses}
        self._removed &= {name for named in self._named.values() for name in named}

    def add(self, url: str) -> str:
        """Add a pod by hand; return its name.

        Raises:
            InputError: That is no URL of a pod.
        """
        address = self._take(url)
        self._named[PEOPLE][address.name] = address
        self._removed.discard(address.name)
        return address.name

    def remove(self, name: str) -> None:
        """Remove a pod by hand.

        Raises:
            KeyError: There is none of that name.
        """
        if name not in self.wanted():
            raise KeyError(name)
        self._named[PEOPLE].pop(name, None)
        if any(name in named for named in self._named.values()):
            self._removed.add(name)

    def wanted(self) -> dict[str, Address]:
        """Return the pods that there should be, by name."""
        wanted: dict[str, Address] = {}
        for named in self._named.values():
            for name, address in named.items():
                if name not in self._removed:
                    wanted.setdefault(name, address)
        return wanted
