"""Sequences of numbers that begin alike, each beginning kept once and found by its name.

What follows on a beginning is put behind it, so a conversation that grows is one *run* of numbers,
however many turns it takes. Where another sequence goes on from the middle of a run, a new run
branches off there: the runs are a tree, and a beginning is a run and how far.

Rules: a name stands for the same numbers for ever, and the same names stand before it. There is
room for so many numbers and so many names; the runs that were used least recently go first, but
never before one that branches off. Numbers are kept in arrays, for these are nothing that garbage
collections walk through.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Sliced(Protocol):
    """Numbers that can be cut and joined: a tuple, an array."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...
    def __add__(self, more: Self, /) -> Self: ...


Name = TypeVar("Name", bound=Hashable)
Numbers = TypeVar("Numbers", bound=Sliced)


class Run(Generic[Name, Numbers]):
    """Numbers that follow each other.

    Attributes:
        below: The run that it branches off, None if it begins a sequence.
        start: How many numbers stand before its own.
        numbers: Its own.
        names: Of beginnings that end in it, and how many numbers each has, ascending.
        branches: How many runs branch off it.
    """

    __slots__ = ("below", "branches", "names", "numbers", "start")

    def __init__(self, below: Run[Name, Numbers] | None, start: int, numbers: Numbers) -> None:
        self.below = below
        self.start = start
        self.numbers = numbers
        self.names: list[tuple[Name, int]] = []
        self.branches = 0


Place: TypeAlias = tuple[Run[Name, Numbers], int]
"""A beginning: where it ends, and how many numbers it has."""


class Beginnings(Generic[Name, Numbers]):
    """Beginnings by their names.

    Args:
        empty: No numbers.
        capacity: Most numbers that are kept.
        most_names: Most names that are kept: one takes a quarter of a kilobyte.
    """

    def __init__(self, empty: Numbers, capacity: int, most_names: int = 200_000) -> None:
        self._empty = empty
        self._capacity = capacity
        self._most_names = most_names
        self._places: dict[Name, Place[Name, Numbers]] = {}
        self._runs: OrderedDict[Run[Name, Numbers], None] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """How many numbers are kept."""
        return self._size

    def find(self, name: Name) -> Place[Name, Numbers] | None:
        """Return the beginning of that name, which is in use from now on; None: it is unknown."""
        place = self._places.get(name)
        if place is not None:
            self._runs.move_to_end(place[0])
        return place

    def numbers(self, place: Place[Name, Numbers] | None, start: int = 0) -> Numbers:
        """Return the numbers of a beginning from so many on; None has none."""
        numbers = self._empty
        for run, end in _way(place):
            if end > start:
                part = run.numbers[max(start - run.start, 0) : end - run.start]
                numbers = numbers + part if len(numbers) else part
        return numbers

    def names(self, place: Place[Name, Numbers] | None) -> list[tuple[Name, int]]:
        """Return the names of all beginnings on the way to one, with how many numbers each has."""
        names: list[tuple[Name, int]] = []
        for run, end in _way(place):
            names += run.names[: bisect_right(run.names, end, key=_length)]
        return names

    def keep(
        self,
        place: Place[Name, Numbers] | None,
        numbers: Numbers,
        names: Sequence[tuple[Name, int]],
    ) -> None:
        """Keep what follows on a beginning.

        Args:
            place: The beginning; None: what follows begins a sequence.
            numbers: What follows; what is behind the last of `names` is not kept.
            names: Of longer beginnings, and how many numbers each has, ascending.
        """
        run, at = place or (None, 0)
        if run is not None and run not in self._runs:
            return  # it went in the meantime, and nothing can stand behind it
        first, new = at, 0
        for name, _ in names:
            known = self._places.get(name)
            if known is None:
                break
            run, at = known
            new += 1
        fresh = names[new:]
        if fresh:
            if run is None or at < run.start + len(run.numbers):
                run = self._branch(run, at)
            end = fresh[-1][1]
            # A new object, for an array may be the one that all runs begin with.
            run.numbers = run.numbers + numbers[at - first : end - first]
            run.names += fresh
            self._places.update((name, (run, length)) for name, length in fresh)
            self._size += end - at
        if run is not None:
            self._runs.move_to_end(run)
        self._shrink()

    def _branch(self, below: Run[Name, Numbers] | None, at: int) -> Run[Name, Numbers]:
        """Return a new run that goes on from `below` behind its number `at`."""
        run = Run(below, at, self._empty)
        self._runs[run] = None
        if below is not None:
            below.branches += 1
        return run

    def _shrink(self) -> None:
        """Drop runs until there is room."""
        while self._size > self._capacity or len(self._places) > self._most_names:
            run = next(iter(self._runs))
            if run.branches:
                self._runs.move_to_end(run)
                continue
            del self._runs[run]
            self._size -= len(run.numbers)
            for name, _ in run.names:
                del self._places[name]
            if run.below is not None:
                run.below.branches -= 1


def _way(place: Place[Name, Numbers] | None) -> list[Place[Name, Numbers]]:
    """Return the runs on the way to a place, and how far each of them is taken."""
    way: list[Place[Name, Numbers]] = []
    while place is not None:
        way.append(place)
        run, _ = place
        place = None if run.below is None else (run.below, run.start)
    way.reverse()
    return way


def _length(named: tuple[object, int]) -> int:
    return named[1]
