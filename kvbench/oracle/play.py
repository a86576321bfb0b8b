"""A script played in virtual time: requests, a policy, pods, and no socket.

    run = play(script, Fleet(pods=4, policy="prefix_cost", config=…, time=…))
    for row in run: …
    run.summary()

When a request arrives:

- `timed`: at its time, or `think` seconds after the last of its predecessors has ended.
- `serial`: when the request before it has ended.
- `batch`: all at 0, in their order.

What happens at the same moment happens in this order: steps end and hand out their tokens, requests
arrive, engines see them (later, where a profile says what a request costs before it reaches the
engine), steps begin. The policy learns what a live router tells it: a placement when it decides,
the first token when its step ends, the outcome with the last token. It sees no pod's cache, only
what it has learned of it, unless it hears events (`Fleet.events`). Where there is one pod there is
nothing to choose, and no policy is asked.

Rows come in the order of the script: one that is done waits for those before it.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from kvbench.engine.values import EngineRequest
from kvbench.errors import InputError
from kvbench.oracle.pod import VirtualPod
from kvbench.oracle.row import Row, Tally
from kvbench.oracle.script import KEY_TOKENS
from kvbench.policies.decision import Decision, Outcome, RouteRequest
from kvbench.policies.names import DEFAULT
from kvbench.policies.table import make_policy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvbench.engine.timing import StepTime
    from kvbench.engine.values import EngineConfig, TokenOutput
    from kvbench.kvcache.blocks import Chain
    from kvbench.oracle.row import Summary
    from kvbench.oracle.script import Layout, Request, Script

Mode = Literal["timed", "serial", "batch"]

_ENDS, _ARRIVES, _QUEUES, _BEGINS = range(4)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a script is played on.

    Attributes:
        pods: How many, all alike.
        config: Their engines' settings.
        time: How long their steps take.
        request_s: What a request costs outside the engine before its first token, seconds.
        request_token_s: The same per token of its prompt.
        policy: Who chooses among them.
        seed: Of the policy's chance.
        skip: Whether steps in which everybody decodes are computed in one go; it changes nothing.
        events: Whether the policy hears the pods' KV events, at once and without loss: policies
            that can use an index know what each pod holds.
    """

    pods: int
    config: EngineConfig
    time: StepTime
    policy: str = DEFAULT
    seed: int = 0
    skip: bool = True
    request_s: float = 0.0
    request_token_s: float = 0.0
    join_s: float = 0.0
    events: bool = False


@dataclass(slots=True)
class _Flight:
    """A request under way."""

    position: int
    request: Request
    route: RouteRequest
    decision: Decision
    pod: VirtualPod
    arrived: float
    waiting_tokens: int
    chain: Chain
    first_token: float | None = None


class _Index:
    """What pods hold, as an index knows it to which all events have come."""

    def __init__(self, pods: dict[str, VirtualPod]) -> None:
        self._pods = pods

    def match(self, hashes: Sequence[int], block_size: int, pods: Sequence[str]) -> dict[str, int]:  # noqa: ARG002 - all pods have blocks of one size
        """Return how many of the blocks each of `pods` holds."""
        return {
            name: len(self._pods[name].engine.pool.lookup(hashes, len(hashes))) for name in pods
        }


class Play:
    """A script being played; iterate over it for rows, once.

    Raises:
        InputError: There is no such policy, a setting makes no sense, or a request cannot fit.
    """

    def __init__(self, script: Script, fleet: Fleet, mode: Mode) -> None:
        names = [f"pod-{number}" for number in range(1, fleet.pods + 1)]
        if not names:
            raise InputError(f"pods: expected at least 1, got {fleet.pods}")
        self._script = script
        self._fleet = fleet
        self._mode = mode
        self._pods = {
            name: VirtualPod(name, fleet.config, fleet.time, skip=fleet.skip) for name in names
        }
        index = _Index(self._pods) if fleet.events else None
        room = (fleet.config.num_gpu_blocks - 1) * fleet.config.block_size
        sizes = dict.fromkeys(names, room)  # as real pods say in their metrics
        self._policy = make_policy(fleet.policy, fleet.seed, index, sizes)
        self._states = [pod.state for pod in self._pods.values()]
        self._tally = Tally(script.name, fleet.policy, names)
        self._flights: dict[str, _Flight] = {}
        # (moment, what, order, position of a request or name of a pod)
        self._agenda: list[tuple[float, int, int, int | str]] = []
        self._order = itertools.count()
        # Who waits for the request at a position, and how many a request still waits for.
        self._followers: dict[int, list[int]] = {}
        self._waits_for = [0] * len(script.requests)
        if fleet.join_s > 0 and len(names) < 2:
            raise InputError("pods: expected at least 2 where the last one joins later, got 1")
        check(script, fleet.config)

    def __iter__(self) -> Iterator[Row]:
        self._schedule_first()
        done: dict[int, Row] = {}
        following = 0
        while self._agenda:
            now, what, _, whom = heapq.heappop(self._agenda)
            if isinstance(whom, int):
                (self._arrive if what == _ARRIVES else self._queue)(now, whom)
                continue
            pod = self._pods[whom]
            if what == _BEGINS:
                if pod.begin(now):
                    self._await(pod)
                continue
            if pod.wake != now:  # it was cut short, and has ended already
                continue
            done.update(self._end_step(pod, now))
            while following in done:
                row = done.pop(following)
                self._tally.add(row)
                yield row
                following += 1

    def summary(self) -> Summary:
        """Return what the rows add up to; all of them must have been taken."""
        return self._tally.summary([pod.engine for pod in self._pods.values()])

    def _schedule_first(self) -> None:
        """Put on the agenda what waits for nothing, and note who waits for whom."""
        for position, request in enumerate(self._script.requests):
            after: tuple[int, ...] = ()
            at = 0.0
            if self._mode == "serial" and position:
                after = (position - 1,)
            elif self._mode == "timed":
                after = request.after if request.at is None else ()
                at = request.think if request.at is None else request.at
            self._waits_for[position] = len(after)
            for one in after:
                self._followers.setdefault(one, []).append(position)
            if not after:
                self._put(at, _ARRIVES, position)

    def _put(self, moment: float, what: int, whom: int | str) -> None:
        """Put on the agenda."""
        heapq.heappush(self._agenda, (moment, what, next(self._order), whom))

    def _await(self, pod: VirtualPod) -> None:
        """Come back to a pod when what it does is done."""
        if pod.wake is not None:
            self._put(pod.wake, _ENDS, pod.state.name)

    def _arrive(self, now: float, position: int) -> None:
        """Route a request; its pod's engine sees it when what is before the engine is done."""
        request = self._script.requests[position]
        if request.reset_before:
            self._reset()
        name, prompt = str(position), request.prompt
        layout = prompt.lay_out(self._fleet.config.block_size, name, keyed=len(self._pods) > 1)
        self._flights[name] = self._route(position, request, layout, now)
        fleet = self._fleet
        outside = fleet.request_s + fleet.request_token_s * request.prompt_tokens
        if outside:
            self._put(now + outside, _QUEUES, position)
        else:
            self._queue(now, position)

    def _queue(self, now: float, position: int) -> None:
        """Hand a request to its pod's engine."""
        flight = self._flights[str(position)]
        request, pod = flight.request, flight.pod
        wake, tokens = pod.wake, range(request.prompt_tokens)
        next_token = request.prompt.next_token
        pod.add(
            EngineRequest(str(position), tokens, request.max_tokens, next_token), flight.chain, now
        )
        if wake is None:
            self._put(now, _BEGINS, pod.state.name)
        elif pod.wake != wake:
            self._await(pod)

    def _route(self, position: int, request: Request, layout: Layout, now: float) -> _Flight:
        """Choose a pod, and tell the policy and the pod's state."""
        route = RouteRequest(
            id=str(position),
            model=self._script.name,
            blocks=layout.keys,
            block_tokens=KEY_TOKENS,
            prompt_tokens=request.prompt_tokens,
            session=request.session,
        )
        if self._fleet.events:
            size = self._fleet.config.block_size
            usable = tuple(layout.chain.hashes[: (request.prompt_tokens - 1) // size])
            route = msgspec.structs.replace(route, hashes=usable, hash_tokens=size)
        states = self._states[:-1] if now < self._fleet.join_s else self._states
        if len(states) == 1:
            decision = Decision(states[0].name, self._policy.name, "only", 0, ())
        else:
            decision = self._policy.choose(route, states, now)
            self._policy.placed(route, decision.pod, now)
        pod = self._pods[decision.pod]
        waiting = max(request.prompt_tokens - decision.matched_tokens, 0)
        pod.state.in_flight += 1
        pod.state.in_flight_prefill_tokens += waiting
        return _Flight(position, request, route, decision, pod, now, waiting, layout.chain)

    def _reset(self) -> None:
        """Reset all prefix caches, as far as the pods can, and tell the policy."""
        self._tally.resets += 1
        for pod in self._pods.values():
            if not pod.engine.reset_prefix_cache():
                self._tally.resets_refused += 1
            self._policy.forget(pod.state.name)

    def _end_step(self, pod: VirtualPod, now: float) -> Iterator[tuple[int, Row]]:
        """Hand out what a step has brought; yield the rows of requests that have ended."""
        for output in pod.finish():
            flight = self._flights[output.request_id]
            if flight.first_token is None:
                flight.first_token = now
                pod.state.in_flight_prefill_tokens -= flight.waiting_tokens
            if output.finish_reason is not None:
                del self._flights[output.request_id]
                yield flight.position, self._finish(flight, output, now)
        if pod.engine.has_work:
            self._put(now, _BEGINS, pod.state.name)

    def _finish(self, flight: _Flight, output: TokenOutput, now: float) -> Row:
        """Take leave of a request that has ended, and schedule who has waited for that."""
        request, decision, arrived = flight.request, flight.decision, flight.arrived
        assert flight.first_token is not None
        ttft = flight.first_token - arrived
        flight.pod.state.in_flight -= 1
        if decision.table:
            outcome = Outcome(ttft, request.prompt_tokens, output.cached_tokens)
            self._policy.finished(flight.route, decision, outcome, now)
        self._release(flight.position, now)
        return Row(
            index=request.index,
            session=request.session,
            turn=request.turn,
            group=request.group,
            pod=decision.pod,
            reason=decision.reason,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=output.cached_tokens,
            predicted_tokens=decision.matched_tokens,
            ceiling_tokens=request.ceiling_tokens,
            completion_tokens=request.max_tokens,
            arrival_s=arrived,
            ttft_s=ttft,
            e2e_s=now - arrived,
        )

    def _release(self, position: int, now: float) -> None:
        """Schedule those who have waited for a request that has ended, and for nothing else."""
        for follower in self._followers.pop(position, ()):
            self._waits_for[follower] -= 1
            if not self._waits_for[follower]:
                timed = self._mode == "timed"
                think = self._script.requests[follower].think if timed else 0.0
                self._put(now + think, _ARRIVES, follower)


def play(script: Script, fleet: Fleet, mode: Mode = "timed") -> Play:
    """Return a script to be played on a fleet: an iterator over rows, with a summary at its end.

    Raises:
        InputError: As `Play`; or the script has no times and `mode` is "timed".
    """
    if mode == "timed" and not script.timed:
        raise InputError(
            "expected times, got a request log without them",
            where=script.where(0),
            hint="play it one after the other (--serial) or all at once (--batch)",
        )
    return Play(script, fleet, mode)


def check(script: Script, config: EngineConfig) -> None:
    """Refuse requests that a pod could never answer, as vLLM's server does, with their place.

    Raises:
        InputError: A request is longer than `max_model_len`, or than the pool.
    """
    room = (config.num_gpu_blocks - 1) * config.block_size
    for position, request in enumerate(script.requests):
        tokens = request.prompt_tokens + request.max_tokens
        if tokens - 1 > room:  # the last token is never computed
            raise InputError(
                f"prompt and answer: expected at most {room + 1} tokens, which is what "
                f"{config.num_gpu_blocks} blocks of {config.block_size} hold, got "
                f"{request.prompt_tokens} + {request.max_tokens}",
                where=script.where(position),
                hint="raise --blocks; one of them is the null block, which holds no tokens",
            )
        if tokens > config.max_model_len:
            raise InputError(
                f"prompt and answer: expected at most {config.max_model_len} tokens "
                f"(--max-model-len), got {request.prompt_tokens} + {request.max_tokens}",
                where=script.where(position),
                hint="raise --max-model-len, or shorten the request",
            )
