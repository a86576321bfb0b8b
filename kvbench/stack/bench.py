"""Measures single points on one pod: the TTFT of a prompt, the gap between tokens of a batch.

Rules:

- Nothing is taken on trust: how much of a prompt was cached is what the pod said, in
  `cached_tokens`, and not what was planned.
- All words but those of the cached prefix are new every time.
"""

from __future__ import annotations

import asyncio
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvbench import seeds
from kvbench.engine.experiment import DECODED
from kvbench.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.engine.experiment import Decode, Prefill
    from kvbench.stack.ask import Answer
    from kvbench.stack.facts import Facts

_FIRST_ID, _IDS = 200, 800
"""Token ids that every vocabulary has, past the special ones at its start."""


class Asks(Protocol):
    """Who carries a prompt to a pod and its answer back: an `Asker`."""

    async def ask(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """Return the answer of exactly `max_tokens` to a prompt of token ids."""
        ...


class Bench:
    """Measures points on one pod.

    Args:
        facts: Of the pod.
        seed: Of the words.
        asker: Carries prompts to the pod.
    """

    def __init__(self, facts: Facts, seed: int, asker: Asks) -> None:
        self._facts = facts
        self._asker = asker
        self._rng = np.random.default_rng(seeds.derive(seed, "calibrate", "words"))
        self._prefix: list[int] = []

    async def warm_up(self, prefix: int) -> None:
        """Let the pod come to its senses, and put the prefix into its cache."""
        self._prefix = self._words(prefix)
        longest = self._facts.bounds.longest
        for length in (8, longest, 8, longest // 2, 8):
            await self._asker.ask(self._words(length), 8)
        if prefix:
            await self._asker.ask(self._prefix, 1)

    async def prefill(self, point: Prefill) -> tuple[int, float]:
        """Return how many tokens of a prompt were cached, and its TTFT in seconds.

        Raises:
            TargetError: The pod fails, or does not say what was cached.
        """
        cached, ttft = await self._prompt(point)
        if cached < point.cached:  # evicted meanwhile: put it back
            await self._asker.ask(self._prefix, 1)
            cached, ttft = await self._prompt(point)
        return cached, ttft

    async def _prompt(self, point: Prefill) -> tuple[int, float]:
        """Send a prompt that begins like the prefix and goes on like none before."""
        prompt = self._prefix[: point.cached] + self._words(point.new)
        answer = await self._asker.ask(prompt, 1)
        if answer.ttft is None:
            raise TargetError(f"{self._facts.url} sent no token")
        return _cached(answer), answer.ttft

    async def decode(self, point: Decode) -> float | None:
        """Return the median gap between tokens, in seconds, while all of a batch decode.

        None where they never all did, or a chunk brought several tokens: no gap can be told then.
        """
        prompts = [self._words(point.context) for _ in range(point.sequences)]
        asked = (self._asker.ask(prompt, DECODED) for prompt in prompts)
        answers = await asyncio.gather(*asked)
        stamps = [answer.fold.chunk_stamps for answer in answers]
        if not all(stamps):
            return None
        begin = max(stream[0] for stream in stamps)
        end = min(stream[-1] for stream in stamps)
        gaps = [
            later - sooner
            for stream in stamps
            for sooner, later in pairwise(stream)
            if begin <= sooner and later <= end
        ]
        if len(gaps) < DECODED // 4 or _merged(answers):
            return None
        return statistics.median(gaps)

    def _words(self, count: int) -> list[int]:
        """Return token ids that were never sent before."""
        ids: list[int] = self._rng.integers(_FIRST_ID, _FIRST_ID + _IDS, count).tolist()
        return ids


def _cached(answer: Answer) -> int:
    """Return what the pod found in its cache.

    Raises:
        TargetError: It does not say.
    """
    usage = answer.fold.usage
    if usage is None or usage.cached_tokens is None:
        raise TargetError(
            "the pod does not report cached_tokens",
            hint="start it with --enable-prompt-tokens-details: what was cached decides the TTFT",
        )
    return usage.cached_tokens


def _merged(answers: Sequence[Answer]) -> bool:
    """Whether many chunks brought more than one token."""
    tokens = sum(
        (answer.fold.usage and answer.fold.usage.completion_tokens) or 0 for answer in answers
    )
    return 2 * sum(len(answer.fold.chunk_stamps) for answer in answers) < tokens
