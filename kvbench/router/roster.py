"""Which pods there should be: what flags, files, DNS names and people say, made one. Pure.

Rules:

- Each source names a set of pods, and naming a new set replaces its old one. What any source names
  is wanted, once, however many name it; of two URLs with the same host and port the first counts.
- A pod that a person has removed stays away while a source goes on naming it. It may come back when
  a person adds it again, or when every source has dropped it and one names it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.http.address import Address, parse_address
from kvbench.zmqfeed.sources import EventSource, parse_pod

if TYPE_CHECKING:
    from collections.abc import Iterable

PEOPLE = "admin"
_LONGEST = 2048  # characters


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that there should be.

    Attributes:
        address: Where it is.
        events: Where its KV events come from, if anywhere.
    """

    address: Address
    events: EventSource | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.address.name


def parse_member(text: str) -> Member:
    """Return the pod that a text stands for, as `--pod` takes it.

    Raises:
        InputError: It stands for none.
    """
    if len(text) > _LONGEST:
        raise InputError(f"--pod: expected at most {_LONGEST} characters, got {len(text)}")
    url, events = parse_pod(text)
    return Member(parse_address(url), events)


class Roster:
    """The pods that are wanted."""

    def __init__(self) -> None:
        self._named: dict[str, dict[str, Member]] = {PEOPLE: {}}
        self._removed: set[str] = set()

    def name(self, source: str, pods: Iterable[str]) -> None:
        """Take a source's pods for those that it names now.

        Raises:
            InputError: One of them is no pod; nothing has changed.
        """
        members = [parse_member(pod) for pod in pods]
        self._named[source] = {member.name: member for member in members}
        self._removed &= {name for named in self._named.values() for name in named}

    def add(self, pod: str) -> str:
        """Add a pod by hand; return its name.

        One that is there stays as it is, unless it is said to have other events.

        Raises:
            InputError: It is no pod.
        """
        member = parse_member(pod)
        there = self.wanted().get(member.name)
        if there is not None and there.address == member.address and member.events is None:
            member = there
        self._named[PEOPLE][member.name] = member
        self._removed.discard(member.name)
        return member.name

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

    def named(self) -> dict[str, list[str]]:
        """Return the names of the pods that each source names, by source."""
        return {source: list(named) for source, named in self._named.items()}

    def wanted(self) -> dict[str, Member]:
        """Return the pods that there should be, by name."""
        wanted: dict[str, Member] = {}
        for named in self._named.values():
            for name, member in named.items():
                if name not in self._removed:
                    wanted.setdefault(name, member)
        return wanted
