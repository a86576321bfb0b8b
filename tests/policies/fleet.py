"""Pods in virtual time, for policies to be played against: LRU caches, prefill in turn, decode.

A tenth of the real thing: no batching, no preemption. Enough to tell a policy that keeps prefixes
together and pods busy from one that does not.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from kvbench.policies.decision import Outcome, RouteRequest
from kvbench.policies.pod_state import PodState

BLOCK = 64


@dataclass
class FakePod:
    """A pod: its cache in blocks, and when its prefill queue is empty."""

    state: PodState
    capacity: int
    cache: OrderedDict = field(default_factory=OrderedDict)
    free_at: float = 0.0
    work: int = 0

    def serve(self, request: RouteRequest, now: float) -> tuple[int, float]:
        """Return the tokens found cached, and when the first token comes."""
        usable = request.blocks[: (request.prompt_tokens - 1) // BLOCK]
        hits = itertools.takewhile(self.cache.__contains__, usable)
        cached = sum(1 for _ in hits) * BLOCK
        for block in reversed(request.blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.capacity:
            self.cache.popitem(last=False)
        uncached = request.prompt_tokens - cached
        self.work += uncached
        self.free_at = max(self.free_at, now) + 0.005 + uncached / 10_000
        return cached, self.free_at + 0.0005 * self.state.in_flight


@dataclass(frozen=True)
class Played:
    """What came of it."""

    hit_rate: float
    ceiling: float
    busiest: float  # uncached work of the busiest pod over the mean
    mean_ttft: float


def prompt(group: int, session: int, turn: int, shared: int = 6000) -> tuple[list[int], int]:
    """Return the block keys and the tokens of a turn: a shared beginning, then the session's."""
    tokens = shared + 150 + 300 * turn
    return [
        group * 1_000_000 + i if (i + 1) * BLOCK <= shared else 10**9 + session * 10_000 + i
        for i in range(tokens // BLOCK)
    ], tokens


class Play:
    """Sessions of shared prompts, so many at once, played against a policy in virtual time."""

    def __init__(self, policy, *, groups, sessions, turns, capacity, pods, seed):
        self.policy = policy
        self.turns = turns
        self.chance = random.Random(seed)
        self.pods = {f"p{i}": FakePod(PodState(f"p{i}"), capacity) for i in range(pods)}
        self.waiting = [(session, self.chance.randrange(groups)) for session in range(sessions)]
        self.agenda: list = []
        self.order = itertools.count()
        self.endless: set[int] = set()
        self.total = self.hits = self.ceiling = 0
        self.ttfts: list[float] = []

    def run(self, at_once: int) -> Played:
        """Play to the end."""
        for i in range(at_once):
            self.later(i * 1e-4, self.send, *self.waiting.pop(), 0)
        while self.agenda:
            now, _, act, what = heapq.heappop(self.agenda)
            act(now, *what)
        work = [pod.work for pod in self.pods.values()]
        return Played(
            self.hits / self.total,
            self.ceiling / self.total,
            max(work) * len(work) / sum(work),
            sum(self.ttfts) / len(self.ttfts),
        )

    def later(self, moment, act, *what):
        """Put on the agenda."""
        heapq.heappush(self.agenda, (moment, next(self.order), act, what))

    def send(self, now, session, group, turn):
        """Route a turn and serve it."""
        blocks, tokens = prompt(group, session, turn)
        known = itertools.takewhile(self.endless.__contains__, blocks[: (tokens - 1) // BLOCK])
        self.ceiling += sum(1 for _ in known) * BLOCK
        self.endless.update(blocks)
        request = RouteRequest(f"{session}/{turn}", "m", blocks, BLOCK, tokens, f"s{session}")
        decision = self.policy.choose(request, [pod.state for pod in self.pods.values()], now)
        self.policy.placed(request, decision.pod, now)
        pod = self.pods[decision.pod]
        believed = tokens - decision.matched_tokens
        pod.state.in_flight += 1
        pod.state.in_flight_prefill_tokens += believed
        cached, first = pod.serve(request, now)
        self.total, self.hits = self.total + tokens, self.hits + cached
        self.ttfts.append(first - now)
        self.later(first, self.first_token, pod, believed)
        outcome = Outcome(first - now, tokens, cached)
        following = (session, group, turn + 1)
        self.later(
            first + self.chance.uniform(0.5, 1.5), self.end, request, decision, outcome, following
        )

    def first_token(self, _now, pod, believed):
        """Take the prompt off the pod's prefill queue."""
        pod.state.in_flight_prefill_tokens -= believed

    def end(self, now, request, decision, outcome, following):
        """Tell the policy; send what follows."""
        self.pods[decision.pod].state.in_flight -= 1
        self.policy.finished(request, decision, outcome, now)
        if following[2] < self.turns:
            self.later(now, self.send, *following)
        elif self.waiting:
            self.later(now, self.send, *self.waiting.pop(), 0)


def play(policy, *, groups=40, sessions=100, turns=4, at_once=16, capacity=10**9, pods=4, seed=1):
    """Return what came of it."""
    table = Play(
        policy, groups=groups, sessions=sessions, turns=turns, capacity=capacity, pods=pods,
        seed=seed,
    )  # fmt: skip
    return table.run(at_once)
