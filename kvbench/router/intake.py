"""What becomes of a request: which path is answered how, and past which limits.

| path | answered |
|---|---|
| `POST` to `/v1/chat/completions`, `/v1/completions`, | by the pod that the policy chooses |
| `/v1/responses`, `/v1/messages` | |
| `GET /v1/models`, `/v1/models/ID` | all models of all pods, or one |
| `POST /reset_prefix_cache` | by all pods: 200 if all answer 200; policies forget |
| `GET /health`, `/pods`, `/decisions`, `/metrics` | by the router itself: see `pages` |
| everything else | by the least loaded pod that serves the model, but controls of one pod: 404 |

What continues a response, or asks for one, goes to the pod that made it.

A body that is compressed is unpacked, bounded as others are, and sent on plain.
A request that this router has passed on before is 508: whoever sent it back can send it elsewhere.
A model that no pod serves is 404; another method on a page of the router's is 405; a prompt that is
not JSON is 400, before any pod is asked. Where
there are keys, everything but `/health` and `/metrics` needs one. While the router ends, what is
under way is answered, and everything new is 503.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from kvbench.errors import InputError
from kvbench.http.server import Request
from kvbench.policies.decision import RouteRequest
from kvbench.router.answers import ENDING, answer_json
from kvbench.router.bodies import CodingError, as_utf8, coding, form_field, uncoded, unpack
from kvbench.router.forward import Forwarding
from kvbench.router.heads import goes_round
from kvbench.router.journal import LONGEST_ID
from kvbench.router.keys import BodyError, read_model
from kvbench.router.models import UnknownModelError
from kvbench.router.pages import is_page
from kvbench.router.paths import MODELS, PROMPTS, RESET, passed_on
from kvbench.router.responses import asked_for
from kvbench.router.waiting import Refusal, Visit, WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from kvbench.http.server import Exchange, Head
    from kvbench.policies.decision import Policy
    from kvbench.router.access import Access, Holder
    from kvbench.router.fleet import Fleet
    from kvbench.router.keys import Prompt
    from kvbench.router.pages import Pages
    from kvbench.router.settings import Settings
    from kvbench.router.tokens import Reading

logger = logging.getLogger(__name__)

_OPEN: Final = frozenset({"/health", "/metrics"})
_LOOP: Final = (
    "The request goes round: this router has passed it on before, or three others have. It is "
    "among its own pods, or among those of a router that is one of its pods. GET /pods says which; "
    "take it out of --pod, the pods file or the DNS name, or DELETE it on the admin port."
)
_ONE_MODEL: Final = MODELS + "/"
_MOST_AT_ONCE: Final = 4096  # characters: encoding them takes a millisecond


class Intake:
    """Takes in requests.

    Args:
        fleet: The pods, and all that requests share.
        pages: What the router answers itself.
        access: The keys.
        settings: How the router behaves.
        spawn: Runs something beside the server.

    Attributes:
        room: Where requests wait, if so many may be under way and no more.
    """

    def __init__(
        self,
        fleet: Fleet,
        pages: Pages,
        access: Access,
        settings: Settings,
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._fleet = fleet
        self._pages = pages
        self._access = access
        self._allow_policy_header = settings.allow_policy_header
        self._spawn = spawn
        self._max_body = settings.max_body
        self._numbers = itertools.count()
        self._encoding = ThreadPoolExecutor(2, "tokenise")
        self._unpacking = ThreadPoolExecutor(1, "unpack")  # what takes long holds up its like alone
        self.room: WaitingRoom | None = None
        if settings.max_in_flight is not None:
            self.room = WaitingRoom(
                settings.max_in_flight,
                settings.queue,
                settings.patience_s,
                lambda seconds: fleet.meters.queue_seconds.observe(value=seconds),
            )

    def close(self) -> None:
        """Tokenise and unpack nothing more."""
        for threads in (self._encoding, self._unpacking):
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether anything is under way, or waits for it."""
        return bool(self._fleet.under_way) or (self.room is not None and self.room.waiting > 0)

    # The three ways to answer: to all, to those who have a key, and at the end.

    def handle(self, exchange: Exchange, holder: Holder | None = None) -> None:
        """Answer one request, now or later; `holder` has its key, if keys are asked for."""
        head = exchange.request.head
        method, path = head.method, head.path
        if b"via" in head.named and goes_round(head, self._fleet.router):
            self._pages.refuse(exchange, HTTPStatus.LOOP_DETECTED, _LOOP)
        elif b"content-encoding" in head.named and (how := coding(head)):
            self._spawn(self._unpack(exchange, how, holder))
        elif path in PROMPTS and method == "POST":
            self._route(exchange, holder)
        elif path == MODELS and method == "GET":
            self._list_models(exchange, holder)
        elif path.startswith(_ONE_MODEL) and method == "GET":
            self._show_model(exchange, path.removeprefix(_ONE_MODEL), holder)
        elif path == RESET and method == "POST":
            self.reset(exchange)
        elif method in {"GET", "HEAD"} and self._pages.show(exchange):
            pass
        elif method == "TRACE" or path == RESET or is_page(path):
            self._pages.refuse(exchange, HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed")
        elif passed_on(path):
            self._pass(exchange, holder)
        else:
            sentence = f"The router does not serve {path}."
            self._pages.refuse(exchange, HTTPStatus.NOT_FOUND, sentence)

    def authorize(self, exchange: Exchange) -> None:
        """Answer those who have a key."""
        head = exchange.request.head
        holder = self._access.of(head.named)
        if holder is not None:
            self._fleet.meters.key_requests.add(holder.name)
        elif head.path not in _OPEN and not _is_preflight(head):
            sentence = "Expected an API key of ours: authorization: Bearer KEY or x-api-key: KEY."
            self._pages.refuse(exchange, HTTPStatus.UNAUTHORIZED, sentence)
            return
        self.handle(exchange, holder)

    def turn_away(self, exchange: Exchange) -> None:
        """Refuse: the router ends. It goes on telling how it is."""
        exchange.last_on_connection()
        if exchange.request.path not in _OPEN or not self._pages.show(exchange):
            self._pages.refuse(exchange, HTTPStatus.SERVICE_UNAVAILABLE, ENDING)

    def reset(self, exchange: Exchange) -> None:
        """Have all pods empty their prefix caches."""
        self._spawn(self._pages.reset(exchange))

    async def _unpack(self, exchange: Exchange, how: bytes, holder: Holder | None) -> None:
        """Answer a request whose body is compressed, as if it had come plain."""
        asked, loop = exchange.request, asyncio.get_running_loop()
        try:
            body = await loop.run_in_executor(
                self._unpacking, unpack, asked.body, how, self._max_body
            )
        except CodingError as error:
            self._pages.refuse(exchange, error.status, str(error))
            return
        plain = Request(uncoded(asked.head), body)
        if exchange.closed:
            self._fleet.meters.requests.add("", "gone")
        elif exchange.replace(plain):
            self.handle(exchange, holder)
        else:
            sentence = "Too much is being sent at once."
            self._pages.refuse(exchange, HTTPStatus.SERVICE_UNAVAILABLE, sentence)

    # What is sent to pods.

    def _route(self, exchange: Exchange, holder: Holder | None) -> None:
        """Send a prompt where the policy says."""
        fleet, asked = self._fleet, exchange.request
        headers, now = asked.head.named, fleet.now
        arrived = now()
        try:
            wanted = headers.get(b"x-kvbench-policy")
            policy = fleet.policies.default if wanted is None else self._policy(wanted)
            asked.body = as_utf8(asked.body)
            reading = fleet.read(asked.head.path, asked.body)
            if reading is None:
                prompt = fleet.chats.read(asked.body)
                fleet.meters.stages.observe("parse", value=now() - arrived)
        except (BodyError, InputError) as error:
            self._pages.refuse(exchange, HTTPStatus.BAD_REQUEST, str(error))
            return
        identity = self._identity(headers)
        session = headers.get(b"x-session-id", b"").decode("latin-1")
        if reading is None:
            ratio = fleet.bytes_per_token.of(prompt.model)
            request = prompt.request(identity, session, ratio)
            self._begin(
                exchange, request, prompt, policy, holder, arrived=arrived, about=prompt.continues
            )
        elif reading.characters <= _MOST_AT_ONCE:
            began = now()
            encoded = reading.encode()
            fleet.meters.stages.observe("tokenise", value=now() - began)
            request = fleet.exactly(identity, session, reading, encoded)
            self._begin(exchange, request, reading.prompt, policy, holder, arrived=arrived)
        else:
            self._spawn(
                self._route_later(
                    exchange, identity, session, policy, reading, holder=holder, arrived=arrived
                )
            )

    async def _route_later(
        self,
        exchange: Exchange,
        identity: str,
        session: str,
        policy: Policy,
        reading: Reading,
        *,
        holder: Holder | None,
        arrived: float,
    ) -> None:
        """Send a prompt where the policy says, when it is tokenised: not here, as it is long."""
        fleet, loop = self._fleet, asyncio.get_running_loop()
        began = fleet.now()
        try:
            encoded = await loop.run_in_executor(self._encoding, reading.encode)
            request = fleet.exactly(identity, session, reading, encoded)
        except Exception:
            logger.exception("request %r: its tokens could not be made", identity)
            request = RouteRequest(identity, reading.prompt.model, (), 1, 0, session or None)
        fleet.meters.stages.observe("tokenise", value=fleet.now() - began)
        if exchange.closed:
            fleet.meters.requests.add("", "gone")
        else:
            self._begin(exchange, request, reading.prompt, policy, holder, arrived=arrived)

    def _pass(self, exchange: Exchange, holder: Holder | None, model: str = "") -> None:
        """Send what has no prompt to the least loaded pod that serves the model it names."""
        fleet, request = self._fleet, exchange.request
        if request.body and fleet.models.several:
            kind = request.head.named.get(b"content-type", b"")
            model = form_field(kind, request.body, b"model") or read_model(request.body)
        nothing = RouteRequest(self._identity(request.head.named), model, (), 1, 0)
        self._begin(
            exchange, nothing, None, fleet.policies.balance, holder,
            arrived=fleet.now(), about=asked_for(request.path),
        )  # fmt: skip

    def _list_models(self, exchange: Exchange, holder: Holder | None) -> None:
        """Answer which models the pods serve, all together; a pod answers while none has said."""
        models = self._fleet.models.union()
        if models:
            answer_json(exchange, {"object": "list", "data": models})
        else:
            self._pass(exchange, holder)

    def _show_model(self, exchange: Exchange, name: str, holder: Holder | None) -> None:
        """Answer what one model is, as it stands in the list; its pods answer if it does not."""
        models = {str(entry["id"]): entry for entry in self._fleet.models.union()}
        if name in models:
            answer_json(exchange, models[name])
        else:
            self._pass(exchange, holder, name)

    def _begin(
        self,
        exchange: Exchange,
        request: RouteRequest,
        prompt: Prompt | None,
        policy: Policy,
        holder: Holder | None,
        *,
        arrived: float,
        about: str = "",
    ) -> None:
        """Send a request on its way, past the limits if there are any.

        It `arrived` at that moment; `about` is the id of the response that it is about, if any.
        """
        fleet = self._fleet
        try:
            among = fleet.serving(request.model, about)
        except UnknownModelError as error:
            self._pages.refuse(exchange, HTTPStatus.NOT_FOUND, str(error), "model")
            return
        forwarding = Forwarding(
            fleet, exchange, request, prompt, policy, arrived=arrived, among=among
        )
        if holder is None and self.room is None:
            forwarding.begin()
            return

        def turn_away(refusal: Refusal) -> None:
            fleet.meters.limited.add("" if holder is None else holder.name, refusal.limit)
            forwarding.refuse(refusal.status, refusal.sentence, refusal.retry_after_s)

        came = fleet.now()

        def enter() -> None:
            forwarding.begin(fleet.now() - came)

        visit = Visit(enter, turn_away, holder, self.room)
        forwarding.on_end = lambda: visit.end(fleet.now())
        visit.arrive(came)

    def _policy(self, wanted: bytes) -> Policy:
        """Return the policy that the request asks for, if it may."""
        if not self._allow_policy_header:
            raise InputError(
                "x-kvbench-policy: this router does not let requests choose their policy; "
                "--allow-policy-header does"
            )
        return self._fleet.policies.named(wanted.decode("latin-1"))

    def _identity(self, headers: Mapping[bytes, bytes]) -> str:
        known = headers.get(b"x-request-id")
        return known[:LONGEST_ID].decode("latin-1") if known else f"r{next(self._numbers)}"


def _is_preflight(head: Head) -> bool:
    """Return whether a browser asks if it may ask: without a key, and for the pod to say."""
    return head.method == "OPTIONS" and b"access-control-request-method" in head.named
