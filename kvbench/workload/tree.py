"""The prefix tree: which way down a session goes, and the texts on that way.

Every level is chosen on its own by its popularity. The levels that are *even* are chosen together:
sessions go through all combinations of their children, round after round, each round in another
order, so after every round each has been asked for equally often. Nodes are named by their path
(`tenant-3/document-0`), and a node's length is drawn once, from its name.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from kvbench import seeds
from kvbench.workload.distributions import draw_rank, draw_whole
from kvbench.workload.plan import Segment
from kvbench.workload.spec import EvenPopularity, PrefixLevel, WeightedPopularity

if TYPE_CHECKING:
    from random import Random


def descend(
    levels: tuple[PrefixLevel, ...], seed: int, number: int, rng: Random
) -> tuple[str, tuple[Segment, ...]]:
    """Return the leaf that a session takes, and the texts on the way to it.

    Args:
        levels: The tree; every count and length is known.
        seed: Root seed.
        number: Of the session, from 0.
        rng: The session's own generator.
    """
    even = [_count(level) for level in levels if isinstance(level.popularity, EvenPopularity)]
    place = _even_place(seed, number, prod(even)) if even else 0
    path, segments = "", []
    for level in levels:
        if isinstance(level.popularity, EvenPopularity):
            place, child = divmod(place, _count(level))
        else:
            child = _child(level, rng)
        path += f"{'/' if path else ''}{level.name}-{child}"
        segments.append(Segment(f"prefix/{path}", _length(level, seed, path)))
    return path or "all", tuple(segments)


def _child(level: PrefixLevel, rng: Random) -> int:
    """Choose a child by its popularity."""
    if isinstance(level.popularity, WeightedPopularity):
        return rng.choices(range(_count(level)), level.popularity.weights)[0]
    exponent = 0 if isinstance(level.popularity, EvenPopularity) else level.popularity.exponent
    return draw_rank(rng, _count(level), exponent)


def _count(level: PrefixLevel) -> int:
    """Return the number of children, which is known by now."""
    assert level.count is not None
    return level.count


def _length(level: PrefixLevel, seed: int, path: str) -> int:
    """Return the tokens of a node."""
    assert level.tokens is not None
    return draw_whole(level.tokens, seeds.rng(seed, "prefix", path))


def _even_place(seed: int, number: int, places: int) -> int:
    """Return which of `places` combinations session `number` takes."""
    turn, position = divmod(number, places)
    return _shuffled(seed, turn, places)[position]


@lru_cache(maxsize=4)
def _shuffled(seed: int, turn: int, places: int) -> list[int]:
    """Return the order of one round."""
    order = list(range(places))
    seeds.rng(seed, "round", turn).shuffle(order)
    return order
