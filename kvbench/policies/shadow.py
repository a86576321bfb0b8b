"""A policy that follows live traffic and serves none of it: what would it have got?

Other choices would have left other caches and other queues. So a shadow has pods of its own, as
many and as large as the real ones, and they are simple: a cache is a list of blocks, the least
recently used goes first; prefill is done in turn, at the rate learned from the real pods; a request
is in flight as long as the real one. What is expected of a choice (cached tokens, time to first
token) is read off these pods before the request is put on them.

A request that was not served in the end (refused, cut off, given up by its client) counts for
nobody: what is not computed of it by then is taken off its virtual pod, and its policy is told as
the real one is. A prompt that is longer than a pod's cache is computed there and not kept.

The serving policy's real choices are played on such pods too (`follow`), so that both stand on the
same ground: what the model gets wrong, it gets wrong for both.

Where virtual pods cannot keep up with what the real ones were sent, no more than some thousands of
prompts are taken to wait; times go on to grow.

Not modelled: batching, preemption, blocks of answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from kvbench.policies.decision import Outcome
from kvbench.policies.held import Held
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import make_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.policies.decision import Decision, RouteRequest
    from kvbench.policies.rates import Rates

DEFAULT_BLOCKS = 32_768
"""Blocks of a pod that has not said how many it has."""

_MOST_WAITING = 4096  # prompts, on all pods of a shadow, whose first token is yet to come


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a choice.

    Attributes:
        pod: The pod.
        cached_tokens: Of the prompt, found in its cache.
        ttft_s: Seconds to the first token.
    """

    pod: str
    cached_tokens: int
    ttft_s: float


@dataclass(slots=True)
class _VirtualPod:
    """A pod of a shadow."""

    state: PodState
    cache: Held
    free_at: float = 0.0

    def held(self, blocks: Sequence[int]) -> int:
        """Return how many of the blocks are cached, from the start."""
        return self.cache.matched(blocks, -math.inf) if blocks else 0

    def touch(self, blocks: Sequence[int], now: float) -> None:
        """Cache blocks, the first as the most recently used, if there is room for all of them."""
        if len(blocks) <= self.cache.capacity:
            self.cache.touch(blocks, now)


@dataclass(slots=True)
class _Work:
    """A prompt on its pod."""

    pod: _VirtualPod
    ready_at: float  # computed
    seconds: float  # that this takes
    tokens: int  # that wait for their first token

    def settle(self) -> None:
        """Have none of its tokens wait any more."""
        self.pod.state.in_flight_prefill_tokens -= self.tokens
        self.tokens = 0

    def cancel(self, now: float) -> None:
        """Leave what is not computed yet."""
        self.settle()
        self.pod.free_at -= min(max(self.ready_at - now, 0.0), self.seconds)


class _VirtualFleet:
    """Pods of a shadow, which know exactly what they hold."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._pods: dict[str, _VirtualPod] = {}
        self._agenda: list[tuple[float, int, _Work]] = []  # first tokens to come
        self._under_way: dict[str, _Work] = {}
        self._count = 0

    def states(self, pods: Sequence[str], blocks: int, now: float) -> list[PodState]:
        """Return the states of `pods` at a moment; new ones have so many blocks."""
        while self._agenda and self._agenda[0][0] <= now:
            heappop(self._agenda)[2].settle()
        for name in pods:
            if name not in self._pods:
                self._pods[name] = _VirtualPod(PodState(name), Held(blocks))
        return [self._pods[name].state for name in pods]

    def match(self, hashes: Sequence[int], _block_size: int, pods: Sequence[str]) -> dict[str, int]:
        """Return how many of the blocks each of `pods` holds."""
        return {name: self._pods[name].held(hashes) for name in pods if name in self._pods}

    def place(self, request: RouteRequest, name: str, now: float) -> Expected:
        """Put a request on a pod; return what it gets there."""
        pod, rates = self._pods[name], self._rates
        self.ended(request.id, now, served=False)  # it may have been tried before
        blocks, size = request.blocks, request.block_tokens
        if request.hash_tokens:
            blocks, size = request.hashes, request.hash_tokens
        cached = min(pod.held(blocks) * size, max(request.prompt_tokens - 1, 0))
        uncached = max(request.prompt_tokens - cached, 0)
        pod.touch(blocks, now)
        seconds = rates.prefill * uncached
        pod.free_at = max(pod.free_at, now) + seconds
        ttft = pod.free_at - now + rates.base + rates.beside * pod.state.in_flight
        pod.state.in_flight += 1
        pod.state.in_flight_prefill_tokens += uncached
        self._count += 1
        work = self._under_way[request.id] = _Work(pod, pod.free_at, seconds, uncached)
        heappush(self._agenda, (now + ttft, self._count, work))
        if len(self._agenda) > _MOST_WAITING:
            heappop(self._agenda)[2].settle()
        return Expected(name, cached, ttft)

    def ended(self, identity: str, now: float, *, served: bool) -> None:
        """Take a request off its pod."""
        work = self._under_way.pop(identity, None)
        if work is None:
            return
        work.pod.state.in_flight -= 1
        if not served:
            work.cancel(now)

    def forget(self, name: str) -> None:
        """Empty a pod's cache."""
        if name in self._pods:
            pod = self._pods[name]
            pod.cache = Held(pod.cache.capacity)


class Shadow:
    """A policy on pods of its own.

    Args:
        name: The policy's name; None follows another's choices.
        seed: Of its chance.
        rates: What prefill takes: learned from the real pods, by somebody else.

    Raises:
        InputError: There is no such policy.
    """

    def __init__(self, name: str | None, seed: int, rates: Rates) -> None:
        self._fleet = _VirtualFleet(rates)
        self._policy = None if name is None else make_policy(name, seed, self._fleet)
        self._decided: dict[str, tuple[Decision | None, Expected]] = {}

    def place(
        self, request: RouteRequest, pods: Sequence[str], served: str, blocks: int, now: float
    ) -> Expected:
        """Choose for a request that was really sent to `served`; return what is expected.

        Args:
            request: The request.
            pods: The pods that were offered.
            served: Where it was really sent.
            blocks: Blocks of a pod.
            now: Seconds.
        """
        states = self._fleet.states(pods, blocks, now)
        decision, pod = None, served
        if self._policy is not None:
            decision = self._policy.choose(request, states, now)
            pod = decision.pod
            self._policy.placed(request, pod, now)
        expected = self._fleet.place(request, pod, now)
        self._decided[request.id] = (decision, expected)
        return expected

    def ended(self, request: RouteRequest, now: float, *, served: bool) -> Expected | None:
        """Take note that the real request has ended.

        Returns:
            What was expected of it, if it was served; None if it was not, or is not known.
        """
        self._fleet.ended(request.id, now, served=served)
        decision, expected = self._decided.pop(request.id, (None, None))
        if not served:
            expected = None
        if decision is not None and self._policy is not None:
            outcome = Outcome()
            if expected is not None:
                ttft, cached = expected.ttft_s, expected.cached_tokens
                outcome = Outcome(ttft, request.prompt_tokens, cached, served=True)
            self._policy.finished(request, decision, outcome, now)
        return expected

    def forget(self, pod: str) -> None:
        """Take note that a real pod has lost its cache: the virtual one loses its own."""
        self._fleet.forget(pod)
        if self._policy is not None:
            self._policy.forget(pod)
