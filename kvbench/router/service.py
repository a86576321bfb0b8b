"""The router as a server: which path is answered how, probes, and its end.

| path | answered |
|---|---|
| `POST` to `/v1/chat/completions`, `/v1/completions`, | by the pod that the policy chooses |
| `/v1/responses`, `/v1/messages` | |
| everything else under `/v1/`, `/tokenize`, `/detokenize` | by the least loaded pod |
| `POST /reset_prefix_cache` | by all pods: 200 if all answer 200; policies forget |
| `GET /health` | 200 if any pod is offered, else 503 |
| `GET /pods` | what is known of each pod |
| `GET /decisions?limit=100` | the last decisions, the newest first, and what came of them |
| `GET /decisions/ID` | those on the request of that id |
| `GET /metrics` | the router's part of the metric catalogue |

Anything else is 404. A prompt that is not JSON is refused with 400, before any pod is asked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvbench.clock import utc as utc_now
from kvbench.errors import InputError
from kvbench.http.server import Server, serve
from kvbench.kvcache.ledger import Ledger
from kvbench.policies.decision import RouteRequest
from kvbench.policies.names import DEFAULT
from kvbench.router.address import parse_address
from kvbench.router.answers import answer_json, refuse
from kvbench.router.books import Books, WatchedIndex
from kvbench.router.fetch import Answer, fetch
from kvbench.router.fleet import Fleet, Policies
from kvbench.router.forward import Forwarding, Limits
from kvbench.router.journal import Journal
from kvbench.router.keys import BodyError, read_prompt
from kvbench.router.membership import Membership
from kvbench.router.probing import probe_for_ever
from kvbench.router.roster import Roster
from kvbench.router.tokens import PromptTokens
from kvbench.zmqfeed.sources import parse_pod
from kvbench.zmqfeed.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from kvbench.clock import Clock
    from kvbench.http.server import Exchange
    from kvbench.policies.decision import Policy
    from kvbench.router.address import Address
    from kvbench.router.keys import Prompt
    from kvbench.router.tokens import Reading

logger = logging.getLogger(__name__)

_ROUTED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
_PASSED = frozenset({"/tokenize", "/detokenize"})
_MOST_AT_ONCE = 4096  # characters: encoding them takes a millisecond
_MOST_SHOWN = 1000
_MOST_BODY = 256 * 2**20  # a long prompt with pictures in it


@dataclass(frozen=True, slots=True)
class Settings:
    """How a router behaves.

    Attributes:
        policy: Which pod gets a request, unless the request says otherwise.
        seed: Of every random choice.
        allow_policy_header: Whether a request may say otherwise, in `x-kvbench-policy`.
        limits: How long a pod may take.
        probe_every_s: Seconds between two probes of a pod; 0 is never.
        probe_timeout_s: Seconds that a probe may take.
        tokenizer: Directory of the models' tokenizer; None takes each model's own root.
        shadows: Policies that follow the traffic without serving it.
        decision_log: File that gets a line for each decision.
    """

    policy: str = DEFAULT
    seed: int = 0
    allow_policy_header: bool = False
    limits: Limits = field(default_factory=Limits)
    probe_every_s: float = 1.0
    probe_timeout_s: float = 5.0
    tokenizer: Path | None = None
    shadows: tuple[str, ...] = ()
    decision_log: Path | None = None


class Router:
    """A router in front of pods.

    Args:
        pods: Their URLs.
        settings: How it behaves.
        clock: What time it is.
        utc: Calendar seconds.

    Raises:
        InputError: A URL is none, or there is no such policy; or a file of the settings is wrong.
    """

    def __init__(
        self,
        pods: Sequence[str],
        settings: Settings,
        clock: Clock,
        utc: Callable[[], float] = lambda: utc_now().timestamp(),
    ) -> None:
        self._settings = settings
        self.roster = Roster()
        self.roster.name("--pod", _once(pods))
        index = WatchedIndex(Ledger(utc), clock)
        tokens, journal = PromptTokens(settings.tokenizer), Journal(settings.decision_log)
        self.fleet = Fleet(
            Membership(),
            Policies(settings.policy, settings.seed, index),
            settings.limits,
            clock,
            Books(index, tokens, journal, utc),
        )
        self.fleet.account.shadow(settings.shadows, settings.policy, settings.seed)
        self._subscriber: Subscriber | None = None
        self._encoding = ThreadPoolExecutor(2, "tokenise")
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen and probe; return the URL.

        Raises:
            TargetError: The address cannot be bound.
        """
        self._server = await serve(self.handle, host, port, max_body=_MOST_BODY)
        self._subscriber = Subscriber(self.fleet.index.ledger)
        self.gather_pods()
        self._spawn(self._sweep())
        return self._server.url

    async def stop(self, grace_s: float) -> None:
        """Refuse new clients, let requests end for `grace_s` seconds, cut what is left."""
        if self._server is not None:
            await self._server.close(grace_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self.fleet.pools.values():
            pool.close()
        self._encoding.shutdown(wait=False, cancel_futures=True)
        if self._subscriber is not None:
            self._subscriber.close()
        self.fleet.account.journal.close()

    def gather_pods(self) -> None:
        """Take in the pods that the roster wants and are not there; send the others away."""
        wanted, there = self.roster.wanted(), self.fleet.membership.pods
        for name in [name for name, pod in there.items() if wanted.get(name) != pod.address]:
            self._lose(name)
        for name, address in wanted.items():
            if name not in there:
                self._gain(address)

    def _gain(self, address: Address) -> None:
        """Take in a pod."""
        pod = self.fleet.add(address)
        source = self.roster.sources.get(pod.name)
        if source is not None and self._subscriber is not None:
            self._subscriber.follow(pod.name, source)
        every_s, timeout_s = self._settings.probe_every_s, self._settings.probe_timeout_s
        if every_s > 0:
            work = probe_for_ever(self.fleet, pod, every_s, timeout_s)
            self._probes[pod.name] = self._spawn(work)

    def _lose(self, name: str) -> None:
        """Send a pod away: it gets no more requests, and those that it has end."""
        if name in self._probes:
            self._probes.pop(name).cancel()
        if self._subscriber is not None:
            self._subscriber.drop(name)
        self.fleet.remove(name)

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, now or later."""
        request = exchange.request
        if request.path in _ROUTED and request.method == "POST":
            self._route(exchange)
        elif request.path.startswith("/v1/") or request.path in _PASSED:
            nothing = RouteRequest(self._identity(request.head.named), "", (), 1, 0)
            Forwarding(self.fleet, exchange, nothing, None, self.fleet.policies.balance).begin()
        elif request.path == "/reset_prefix_cache":
            if request.method == "POST":
                self._spawn(self._reset(exchange))
            else:
                self._refuse(exchange, HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed")
        elif request.method not in {"GET", "HEAD"} or not self._show(exchange):
            self._refuse(
                exchange, HTTPStatus.NOT_FOUND, f"The router does not serve {request.path}."
            )

    def _route(self, exchange: Exchange) -> None:
        """Send a prompt where the policy says."""
        headers = exchange.request.head.named
        try:
            policy = self._policy(headers.get(b"x-kvbench-policy"))
            began = self.fleet.clock.now()
            prompt = read_prompt(exchange.request.body)
            self.fleet.meters.stages.observe("parse", value=self.fleet.clock.now() - began)
        except (BodyError, InputError) as error:
            self._refuse(exchange, HTTPStatus.BAD_REQUEST, str(error))
            return
        ratio = self.fleet.bytes_per_token.of(prompt.model)
        session = headers.get(b"x-session-id", b"").decode("latin-1")
        request = prompt.request(self._identity(headers), session, ratio)
        reading = self.fleet.read(exchange.request.body, prompt)
        if reading is None:
            Forwarding(self.fleet, exchange, request, prompt, policy).begin()
        elif reading.characters <= _MOST_AT_ONCE:
            began = self.fleet.clock.now()
            encoded = reading.encode()
            self.fleet.meters.stages.observe("tokenise", value=self.fleet.clock.now() - began)
            request = self.fleet.exactly(request, prompt, reading, encoded)
            Forwarding(self.fleet, exchange, request, prompt, policy).begin()
        else:
            self._spawn(self._route_later(exchange, request, prompt, policy, reading))

    async def _route_later(
        self,
        exchange: Exchange,
        request: RouteRequest,
        prompt: Prompt,
        policy: Policy,
        reading: Reading,
    ) -> None:
        """Send a prompt where the policy says, when it is tokenised: not here, as it is long."""
        loop, began = asyncio.get_running_loop(), self.fleet.clock.now()
        encoded = await loop.run_in_executor(self._encoding, reading.encode)
        self.fleet.meters.stages.observe("tokenise", value=self.fleet.clock.now() - began)
        if exchange.closed:
            self.fleet.meters.requests.add("", "gone")
            return
        request = self.fleet.exactly(request, prompt, reading, encoded)
        Forwarding(self.fleet, exchange, request, prompt, policy).begin()

    def _policy(self, wanted: bytes | None) -> Policy:
        """Return the policy that the request asks for, if it may, else the router's own."""
        if wanted is None:
            return self.fleet.policies.default
        if not self._settings.allow_policy_header:
            raise InputError(
                "x-kvbench-policy: this router does not let requests choose their policy; "
                "--allow-policy-header does"
            )
        return self.fleet.policies.named(wanted.decode("latin-1"))

    def _identity(self, headers: dict[bytes, bytes]) -> str:
        known = headers.get(b"x-request-id")
        return known.decode("latin-1") if known else f"r{next(self._numbers)}"

    def _refuse(self, exchange: Exchange, status: HTTPStatus, message: str) -> None:
        self.fleet.meters.refusals.add(str(status.value))
        refuse(exchange, status, message)

    def _show(self, exchange: Exchange) -> bool:
        """Answer what the router knows of itself; return whether the path is one of these."""
        fleet, now = self.fleet, self.fleet.clock.now()
        match exchange.request.path.rstrip("/"):
            case "/health":
                if fleet.membership.offered(now):
                    exchange.respond(200, b"", None)
                else:
                    sentence = fleet.membership.why_nobody()
                    self._refuse(exchange, HTTPStatus.SERVICE_UNAVAILABLE, sentence)
            case "/pods":
                answer_json(exchange, {"pods": fleet.membership.listing(now)})
            case "/decisions":
                answer_json(exchange, {"decisions": fleet.account.journal.latest(_most(exchange))})
            case path if path.startswith("/decisions/"):
                found = fleet.account.journal.of(path.removeprefix("/decisions/"))
                if found:
                    answer_json(exchange, {"decisions": found})
                else:
                    self._refuse(exchange, HTTPStatus.NOT_FOUND, "No such decision is kept.")
            case "/metrics":
                fleet.meters.read_pods(fleet.membership, now)
                fleet.meters.read_ledger(fleet.index.ledger)
                fleet.meters.read_tokens(fleet.tokens)
                exchange.respond(200, generate_latest(fleet.meters.registry), CONTENT_TYPE_LATEST)
            case _:
                return False
        return True

    async def _reset(self, exchange: Exchange) -> None:
        """Have all pods empty their prefix caches, and forget what they held."""
        pods = list(self.fleet.membership.pods.values())
        timeout_s = self._settings.probe_timeout_s
        answers = await asyncio.gather(
            *(
                fetch(
                    self.fleet.pools[pod.name],
                    pod.address,
                    "POST",
                    "/reset_prefix_cache",
                    timeout_s,
                )
                for pod in pods
            )
        )
        for pod in pods:
            self.fleet.forget(pod.name)
        if all(answer.status == HTTPStatus.OK for answer in answers):
            answer_json(exchange, {"success": all(_agrees(answer) for answer in answers)})
            return
        troubles = "; ".join(
            f"{pod.name}: {answer.trouble or answer.status}"
            for pod, answer in zip(pods, answers, strict=True)
            if answer.status != HTTPStatus.OK
        )
        self._refuse(exchange, HTTPStatus.BAD_GATEWAY, f"Not every pod was reset: {troubles}.")

    async def _sweep(self) -> None:
        """Enforce the limits."""
        limits = self._settings.limits
        tick = min(1.0, limits.first_byte_s / 4, limits.idle_s / 4)
        while True:
            await asyncio.sleep(tick)
            self.fleet.sweep()
            self.fleet.account.journal.flush()
            if self._subscriber is not None:
                self._subscriber.sweep()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something beside the server, for as long as the server."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _once(pods: Sequence[str]) -> Sequence[str]:
    """Return the pods, of which there is at least one, and none twice.

    Raises:
        InputError: It is not so.
    """
    if not pods:
        raise InputError(
            "--pod: expected at least one pod, got none", hint="--pod http://127.0.0.1:8000"
        )
    names = [parse_address(parse_pod(pod)[0]).name for pod in pods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--pod: {name} is given twice")
    return pods


def _most(exchange: Exchange) -> int:
    """Return how many decisions are asked for: `?limit=`, or 100."""
    values = parse_qs(exchange.request.query).get("limit", ["100"])
    return min(int(values[0]), _MOST_SHOWN) if values[0].isdecimal() else 100


def _agrees(answer: Answer) -> bool:
    """Return whether a pod that answered 200 has done it; it may say otherwise in its body."""
    return b'"success":false' not in answer.body.replace(b" ", b"")
