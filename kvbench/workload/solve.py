"""Numbers that a workload leaves out, solved for what it wants instead.

- `working_set`: the tokens of the whole prefix tree. One level's `count` is left out, and follows:
  with the other levels known, the tree has (nodes above) × count × (tokens of a node and of all
  below it) tokens more than what stands above that level.
- `target_hit_rate`: the share of prompt tokens that an endless cache would hit. One number is left
  out: how many nodes a level has (more: fewer hits), how long they are (more: more hits), or how
  many sessions there are (more: more hits). The plan is built for a guess, what its prompts share
  is counted, and the nearest whole number is found by doubling and halving.

Blocks are taken as `BLOCK` tokens, and the chat template is left out: `kvbench plan` says what the
ceiling comes to with the tokenizer and the block size at hand.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from kvbench import seeds
from kvbench.errors import InputError
from kvbench.workload.build import build_plan
from kvbench.workload.distributions import Constant, mean_of
from kvbench.workload.sharing import shared_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.workload.spec import PrefixLevel, Workload

BLOCK = 16
"""Tokens per block: vLLM's default on GPUs."""

TOLERANCE = 0.01
"""How far from the target the nearest whole number may be."""

_MOST = {"count": 100_000, "tokens": 100_000}
_MOST_SESSIONS = 20_000
_FEW_SESSIONS = 256  # before that chance still moves the hit rate
_SLOWEST = 4.0  # hits grow as 1 - c/n^a: from n on by 1/(2^a - 1) of the last gain; a > 0.32 here

_Path: TypeAlias = tuple[str | int, ...]


def solve(workload: Workload, seed: int, where: str) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload with every number known, and what was found, for people.

    Args:
        workload: The workload.
        seed: Root seed of the plan.
        where: File, for errors.

    Raises:
        InputError: No number gives what is wanted.
    """
    unknowns = list(workload.unknowns)
    if not unknowns:
        return workload, ()
    values: dict[_Path, int] = {}
    notes = []
    sized = None
    if workload.working_set is not None:
        sized = next(path for path in unknowns if path[0] == "prefixes" and path[-1] == "count")
        unknowns.remove(sized)
    if workload.target_hit_rate is not None:
        (aimed,) = unknowns
        values[aimed], reached = _aim(workload, aimed, sized, seed, where)
        notes.append(
            f"{_name(aimed)} is {values[aimed]:,}, for a hit rate of {workload.target_hit_rate:.1%}"
            f" ({reached:.1%} without the chat template, in blocks of {BLOCK})"
        )
    if sized is not None and workload.working_set is not None:
        values[sized] = _count(workload, sized, values, seed, where)
        notes.append(
            f"{_name(sized)} is {values[sized]:,}, "
            f"for a working set of {workload.working_set.tokens:,.0f} tokens"
        )
    return _filled(workload, values), tuple(notes)


def _aim(
    workload: Workload, aimed: _Path, sized: _Path | None, seed: int, where: str
) -> tuple[int, float]:
    """Return the number that brings a plan nearest to the hit rate, and that hit rate."""
    target = workload.target_hit_rate
    assert target is not None

    @cache
    def reach(value: int) -> float:
        values = {aimed: value}
        if sized is not None:
            values[sized] = _count(workload, sized, values, seed, where)
        return shared_share(build_plan(_filled(workload, values), seed), BLOCK)

    rising = aimed[0] == "sessions" or aimed[-1] == "tokens"
    most = _MOST_SESSIONS if aimed[0] == "sessions" else _MOST[str(aimed[-1])]

    def hopeless(value: int) -> bool:
        """Whether more sessions bring too little, going by what the last doubling brought."""
        if aimed[0] != "sessions" or value < _FEW_SESSIONS:
            return False
        gained = reach(value) - reach(value // 2)
        return reach(value) + _SLOWEST * max(gained, 0.0) < target - TOLERANCE

    beyond = _first(lambda value: (reach(value) >= target) == rising, most, hopeless)
    nearest = min((max(beyond - 1, 1), beyond), key=lambda value: abs(reach(value) - target))
    if abs(reach(nearest) - target) > TOLERANCE:
        raise InputError(
            f"target_hit_rate: expected what {_name(aimed)} can bring about, got {target:g}; "
            f"nearest is {reach(nearest):.3f}, with {nearest:,}",
            where=where,
            hint="longer prefixes, more turns and more sessions per prefix share more",
        )
    return nearest, reach(nearest)


def _first(holds: Callable[[int], bool], most: int, hopeless: Callable[[int], bool]) -> int:
    """Return the first number from 1 for which something holds, or where the search was given up.

    It is given up at about `most`, and at a power of two from which on it is `hopeless`.
    """
    high = 1
    while high < most and not holds(high):
        if hopeless(high):
            return high
        high *= 2
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return min(low, most)


def _count(
    workload: Workload, sized: _Path, values: dict[_Path, int], seed: int, where: str
) -> int:
    """Return how many nodes a level must have for the working set."""
    assert workload.working_set is not None
    wanted = workload.working_set.tokens
    level = int(sized[1])
    levels = _levels(workload, {**values, sized: 1})
    tokens = [
        prod(above.count or 1 for above in levels[: i + 1]) * _mean_tokens(levels[i], seed)
        for i in range(len(levels))
    ]
    above, each = sum(tokens[:level]), sum(tokens[level:])
    count = max(round((wanted - above) / each), 1)
    if abs(above + count * each - wanted) > wanted / 10:
        raise InputError(
            f"working_set: expected at least {above + each:,.0f} tokens, which one "
            f"{workload.prefixes[level].name} makes, got {wanted:,.0f}",
            where=where,
            hint="make the prefixes shorter, or the working set larger",
        )
    return count


def _mean_tokens(level: PrefixLevel, seed: int) -> float:
    """Return about the mean length of a node."""
    assert level.tokens is not None
    return mean_of(level.tokens, seeds.rng(seed, "mean", level.name))


def _levels(workload: Workload, values: dict[_Path, int]) -> tuple[PrefixLevel, ...]:
    """Return the levels with the numbers that were found."""
    levels = []
    for i, level in enumerate(workload.prefixes):
        count = values.get(("prefixes", i, "count"), level.count)
        tokens = values.get(("prefixes", i, "tokens"))
        length = level.tokens if tokens is None else Constant(tokens)
        levels.append(replace(level, count=count, tokens=length))
    return tuple(levels)


def _filled(workload: Workload, values: dict[_Path, int]) -> Workload:
    """Return the workload with the numbers that were found, wanting nothing any more."""
    count = values.get(("sessions", "count"), workload.sessions.count)
    return replace(
        workload,
        prefixes=_levels(workload, values),
        sessions=replace(workload.sessions, count=count),
        target_hit_rate=None,
        working_set=None,
    )


def _name(path: _Path) -> str:
    """Return a path as people write it."""
    return ".".join(map(str, path))
