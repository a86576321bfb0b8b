"""Tokens without token ids: prompts as paths of named spans, and block chains made of them.

For a cache it does not matter what the tokens of a prompt are, only which of them are the same. A
prompt is a path of (key, tokens) pairs: equal keys behind equal paths are equal tokens, and where
one of two spans is shorter, it is the beginning of the longer one (the rule of `Segment`). All
prompts of a simulation form one tree of places, and a span walked from a place is a *run*: a number
for "these tokens, after exactly those", however far it goes. A block is named by the run in which
it ends and its position there, so a prompt of a hundred thousand tokens costs a few dictionary
look-ups, and blocks of any size can be made of the same walk.

Refused: nothing. Token ids of a chat template are spans of one token.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.kvcache.blocks import BlockHash

Key: TypeAlias = str | int
Run: TypeAlias = tuple[int, int, int]
"""A run's number, and the tokens of the prompt before and up to its end."""

_POSITION_BITS = 24  # blocks that end in one run: at one token each, 16 million


class Paths:
    """The tree of all prompts of a simulation."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._runs: dict[tuple[int, Key], int] = {}
        # (place, key, tokens): the run, and the place behind it.
        self._steps: dict[tuple[int, Key, int], tuple[int, int]] = {}

    def walk(self, path: Iterable[tuple[Key, int]]) -> list[Run]:
        """Return the runs of a path from the root."""
        steps = self._steps
        runs: list[Run] = []
        place = length = 0
        for key, tokens in path:
            known = steps.get((place, key, tokens))
            if known is None:
                run = self._runs.get((place, key))
                if run is None:
                    run = self._runs[place, key] = next(self._numbers)
                known = steps[place, key, tokens] = (run, next(self._numbers))
            runs.append((known[0], length, length + tokens))
            length += tokens
            place = known[1]
        return runs

    def unique(self, start: int, tokens: int) -> Run:
        """Return a run of `tokens` behind `start`, which nobody else will ever walk."""
        return next(self._numbers), start, start + tokens


def hash_runs(runs: Iterable[Run], block_size: int) -> list[BlockHash]:
    """Return one number for each full block of a walk: equal numbers, equal tokens up to there."""
    hashes: list[BlockHash] = []
    for run, start, end in runs:
        count = end // block_size - start // block_size
        if count:
            first = run << _POSITION_BITS
            hashes.extend(range(first, first + count))
    return hashes


class SpanChain:
    """A chain of blocks over a walk: a prompt, which grows by its answer.

    Args:
        runs: The walk of prompt and answer.
        prompt_tokens: How many of its tokens are the prompt.
        block_size: Tokens per block.
        owner: Whose it is.
    """

    __slots__ = ("_length", "_whole", "block_size", "hashes", "owner")

    def __init__(
        self, runs: Iterable[Run], prompt_tokens: int, block_size: int, owner: str
    ) -> None:
        self._whole = hash_runs(runs, block_size)
        self._length = prompt_tokens
        self.block_size = block_size
        self.hashes = self._whole[: prompt_tokens // block_size]
        self.owner = owner

    def __len__(self) -> int:
        return self._length

    def append(self, _token_id: int) -> None:
        """Grow by one token."""
        self._length += 1
        if self._length % self.block_size == 0:
            self.hashes.append(self._whole[len(self.hashes)])

    def extend(self, _token_ids: Iterable[int], count: int) -> None:
        """Grow by `count` tokens; what they are is not read."""
        self._length += count
        self.hashes += self._whole[len(self.hashes) : self._length // self.block_size]
