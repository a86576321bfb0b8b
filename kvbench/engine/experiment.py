"""What is measured to fit the time model: which prompts, how much of them cached, how many at once.

- *Prefills*: prompts whose uncached part is spread evenly over the powers from 1 token to the
  longest, a third of them with nothing cached and the rest after cached prefixes of all lengths.
  All prefixes are the beginning of one text, so one warm-up serves them all.
- *Decodes*: batches of 1, 2, 4, … sequences, with short and with long contexts.
- Every fourth prefill is *held out*: it is measured like the others and never shown to the fit.
- Everything is measured in rounds, each in an order of its own: a machine that warms up, slows down
  or is disturbed for a while bends no constant, and shows as scatter between rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench import seeds
from kvbench.errors import InputError

if TYPE_CHECKING:
    from random import Random

FEWEST_POINTS = 20
"""Points below which there is not enough to fit and to hold out."""

DECODED = 32
"""Tokens that each sequence of a batch decodes."""

_SHORT = 32  # tokens of a short context


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt.

    Attributes:
        new: Tokens that are to be computed.
        cached: Tokens before them that are to be found in the cache: whole blocks.
        held_out: Whether the fit may not see it.
    """

    new: int
    cached: int
    held_out: bool


@dataclass(frozen=True, slots=True)
class Decode:
    """A batch.

    Attributes:
        sequences: How many decode together.
        context: Tokens of each prompt.
    """

    sequences: int
    context: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a pod can take.

    Attributes:
        longest: Most tokens of a prompt.
        block_size: Tokens per block.
        most_sequences: Largest batch to try.
        kv_tokens: Tokens that its cache holds.
    """

    longest: int
    block_size: int
    most_sequences: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """What to measure.

    Attributes:
        prefix: Tokens of the text whose beginnings are the cached prefixes.
        points: Prefills, then decodes.
        rounds: For each round, the numbers of the points in its order.
    """

    prefix: int
    points: tuple[Prefill | Decode, ...]
    rounds: tuple[tuple[int, ...], ...]


def design(points: int, rounds: int, bounds: Bounds, seed: int) -> Experiment:
    """Return what to measure: a quarter of the points are decodes.

    Raises:
        InputError: There are too few points, or the pod has room for too little.
    """
    if points < FEWEST_POINTS:
        raise InputError(f"--points: expected at least {FEWEST_POINTS}, got {points}")
    room = min(bounds.longest, bounds.kv_tokens // 2)
    if room < 8 * bounds.block_size:
        raise InputError(
            f"prompts of up to {room} tokens are too short to measure with blocks of "
            f"{bounds.block_size}",
            hint="the pod needs a longer --max-model-len or a larger KV cache",
        )
    rng = seeds.rng(seed, "calibrate", "design")
    decodes = _decodes(max(1, points // 4), bounds, room)
    prefills = _prefills(points - len(decodes), room, bounds.block_size, rng)
    everything: tuple[Prefill | Decode, ...] = (*prefills, *decodes)
    orders = tuple(
        tuple(rng.sample(range(len(everything)), len(everything))) for _ in range(rounds)
    )
    return Experiment(max(prefill.cached for prefill in prefills), everything, orders)


def _prefills(count: int, longest: int, block_size: int, rng: Random) -> list[Prefill]:
    """Return prompts of all lengths, uncached and after cached prefixes."""
    shares = [(i + rng.random()) / count for i in range(count)]
    cuts = [(i + rng.random()) / count for i in range(count)]
    rng.shuffle(cuts)
    prefills = []
    for i, (share, cut) in enumerate(zip(shares, cuts, strict=True)):
        new = max(1, int(longest**share))
        blocks = (longest - new) // block_size
        cached = 0 if i % 3 == 0 or not blocks else block_size * math.ceil(blocks * cut**2)
        prefills.append(Prefill(new, cached, held_out=i % 4 == 2))
    return prefills


def _decodes(count: int, bounds: Bounds, room: int) -> list[Decode]:
    """Return batches: sizes in powers of two, each with a short and a long context if they fit."""
    fitting = []
    size = 1
    while size <= bounds.most_sequences:
        share = bounds.kv_tokens // (2 * size) - DECODED
        contexts = {min(_SHORT, share), min(room - DECODED, share)}
        fitting += [Decode(size, context) for context in sorted(contexts) if context > 0]
        size *= 2
    if len(fitting) <= count:
        return fitting
    return [fitting[i * (len(fitting) - 1) // max(1, count - 1)] for i in range(count)]
