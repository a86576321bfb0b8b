"""From a workload and a seed to the plan.

Every session draws from a generator of its own, so a change to one session, or more sessions,
leaves the others as they were. Turns are numbered in the order in which they would be due if
answers took no time: the start of the session plus the pauses so far. That is the order in which
an idle server sees them, and the order in which the ceiling is computed.

Keys of segments: `prefix/<path in the tree>`, `user/<session>/<turn>`, `answer/<session>/<turn>`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench import seeds
from kvbench.errors import InputError
from kvbench.workload.distributions import draw_rank, draw_whole
from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment
from kvbench.workload.spec import (
    Arrival,
    BurstArrival,
    ConstantArrival,
    GammaArrival,
    PoissonArrival,
    Workload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MOST_TURNS = 2_000_000
"""Of one plan: what fits into the memory of one process."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A turn before it has its index: when it would be due on an idle server, and the rest."""

    when: float
    session: int
    turn: int
    at: float | None
    think: float
    group: str
    messages: tuple[Message, ...]
    max_tokens: int


def build_plan(workload: Workload, seed: int) -> Plan:
    """Return the plan of `workload` under `seed`: the same arguments, the same plan.

    Raises:
        InputError: It would have more than `MOST_TURNS` turns.
    """
    starts = arrivals(workload.arrival, seeds.rng(seed, "arrival"))
    due: list[_Due] = []
    for session, start in zip(range(workload.sessions.count), starts, strict=False):
        due += _session(workload, seed, session, start)
        if len(due) > MOST_TURNS:
            raise InputError(
                f"expected at most {MOST_TURNS:,} turns, got more",
                where=workload.name,
                hint="use fewer sessions or turns, or run several workloads",
            )
    due.sort(key=lambda d: (d.when, d.session, d.turn))
    width = len(str(workload.sessions.count - 1))
    turns = tuple(
        PlannedTurn(
            index=index,
            session=f"s{d.session:0{width}d}",
            turn=d.turn,
            group=d.group,
            at=d.at,
            think=d.think,
            messages=d.messages,
            max_tokens=d.max_tokens,
            answer_key=f"answer/{d.session}/{d.turn}",
        )
        for index, d in enumerate(due)
    )
    return Plan(workload.name, seed, workload.api, workload.history, turns)


def arrivals(arrival: Arrival, rng: Random) -> Iterator[float]:
    """Yield the seconds at which sessions begin, without end; the first begins at 0."""
    if isinstance(arrival, BurstArrival):
        for burst in itertools.count():
            yield from itertools.repeat(burst * arrival.every, arrival.size)
    elif isinstance(arrival, ConstantArrival):
        for i in itertools.count():  # a product, where a sum would collect rounding errors
            yield i / arrival.rate
    else:
        now = 0.0
        while True:
            yield now
            now += _gap(arrival, rng)


def _gap(arrival: PoissonArrival | GammaArrival, rng: Random) -> float:
    """Return the seconds between two sessions."""
    if isinstance(arrival, GammaArrival):
        return rng.gammavariate(arrival.shape, 1 / (arrival.rate * arrival.shape))
    return rng.expovariate(arrival.rate)


def _session(workload: Workload, seed: int, session: int, start: float) -> Iterator[_Due]:
    """Yield the turns of one session, each with the whole conversation before it."""
    rng = seeds.rng(seed, "session", session)
    group, prefix = _prefix(workload, seed, rng)
    spec = workload.sessions
    history: tuple[Message, ...] = (Message("system", prefix),) if prefix else ()
    when = start
    for turn in range(1, draw_whole(spec.turns, rng) + 1):
        think = spec.think.draw(rng) if turn > 1 else 0.0
        when += think
        user, answer = draw_whole(spec.user_tokens, rng), draw_whole(spec.answer_tokens, rng)
        if user:
            history += (Message("user", (Segment(f"user/{session}/{turn}", user),)),)
        yield _Due(when, session, turn, start if turn == 1 else None, think, group, history, answer)
        history += (Message("assistant", (Segment(f"answer/{session}/{turn}", answer),)),)


def _prefix(workload: Workload, seed: int, rng: Random) -> tuple[str, tuple[Segment, ...]]:
    """Walk down the prefix tree; return the leaf's name and the texts on the way."""
    path, segments = "", []
    for level in workload.prefixes:
        child = draw_rank(rng, level.count, level.popularity.exponent)
        path += f"{'/' if path else ''}{level.name}-{child}"
        tokens = draw_whole(level.tokens, seeds.rng(seed, "prefix", path))
        segments.append(Segment(f"prefix/{path}", tokens))
    return path or "all", tuple(segments)
