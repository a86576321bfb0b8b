"""One client's request on its way through: choose a pod, send, pass the answer on, learn from it.

Rules:

- As long as no byte of an answer has gone to the client, a failed attempt is made again on another
  pod; that a stream begins, which servers say before its first token, goes to the client with that
  token. An attempt fails: no connection, a connection that broke, an answer that was no HTTP. This
  holds too where the pod had the whole request before it died: generating twice costs time and
  changes nothing. An idle connection that turns out to be closed costs a new connection to the same
  pod, and no blame.
- An answer of 503, 429 or 508 is passed on only if no other pod is offered: who says so has done
  nothing yet. It would also be the pod with the least to do, and draw all traffic. But of what
  another router has sent here the second 508 is passed on: else routers that have only each other
  ask all others in every order.
- A 4xx of a pod that has given several in a row is not passed on before another pod has been asked:
  what that one says of the same prompt tells whether the client errs, or the first pod.
- At most four pods are sent a request, for it may be what kills them. Those that could not even be
  connected to do not count.
- After that byte nothing is repeated. A pod that breaks off has its client cut off too, for only so
  can the client tell the answer from a whole one.
- A pod that is too slow for the limits is given up, not replaced: the next one would be slower.
  One that is found to sleep, or to answer nobody, is replaced if another is offered.
- A client that leaves has its request cancelled at once, by closing the connection to the pod.
- However a request ends, its place on the pod is given back, once.
- Bytes pass through as they come; of a stream, whole lines behind the first token go straight from
  the pod's connection to the client's. A client that reads too slowly stops the reading from the
  pod; one that reads nothing for as long as a pod may pause is cut, or its place would be held for
  ever.
- The body of a request is kept until its answer has begun, for another attempt, and no longer.
- The first token is the first of an answer that is more than a comment, or than that a response
  has begun, which servers say before they compute it. If it is an error, as of an engine that fails
  after its server has said 200, the answer counts as one of that status.
- An answer in one piece does not show its first token: the prefill is taken to be done when it was
  expected to be. How long it took is known afterwards if it turns out to have been one token.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from kvbench.policies.decision import Outcome
from kvbench.router.answers import ENDING, refuse
from kvbench.router.heads import length_line, response_head, stay
from kvbench.router.membership import Lease
from kvbench.router.responses import RESPONSES, Preamble
from kvbench.router.upstream import in_words
from kvbench.router.usage import UsageFinder

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from kvbench.http.server import Exchange
    from kvbench.policies.decision import Decision, End, Policy, RouteRequest
    from kvbench.router.fleet import Fleet
    from kvbench.router.heads import Head
    from kvbench.router.keys import Prompt
    from kvbench.router.membership import Pod
    from kvbench.router.upstream import Failure, Upstream

logger = logging.getLogger(__name__)

_MOST_ATTEMPTS: Final = 4
_OK: Final = HTTPStatus.OK.value
_LOOP: Final = HTTPStatus.LOOP_DETECTED.value
_ELSEWHERE: Final = frozenset({
    HTTPStatus.TOO_MANY_REQUESTS.value, HTTPStatus.SERVICE_UNAVAILABLE.value, _LOOP,
})  # fmt: skip
_NEVER: Final = math.inf
_LONGEST_PREAMBLE: Final = 2**18  # bytes that are kept: it says twice what was asked
_NO_TOKEN: Final = (b":", b'data: {"error"', b"event: error")  # a comment keeps a stream alive


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a pod may take.

    Attributes:
        connect_s: Seconds for a connection.
        first_byte_s: Seconds from the request to the answer's head, or a stream's first token.
        idle_s: Seconds between pieces of an answer.
    """

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    idle_s: float = 300.0


class Forwarding:
    """A request under way.

    Attributes:
        deadline: When it has taken too long, seconds on the fleet's clock.
        on_end: Called once, however it ends.
    """

    __slots__ = (
        "_among", "_arrived", "_chunked", "_connecting", "_dechunk", "_decision", "_doubted",
        "_exchange", "_first_piece", "_fleet", "_keep_alive", "_lease", "_looped", "_pod",
        "_policy", "_preamble", "_prompt", "_request", "_sent", "_slow", "_spent", "_status",
        "_tried", "_troubles", "_unsent", "_upstream", "_usage", "deadline", "on_end",
    )  # fmt: skip

    def __init__(
        self,
        fleet: Fleet,
        exchange: Exchange,
        request: RouteRequest,
        prompt: Prompt | None,
        policy: Policy,
        *,
        arrived: float,
        among: Container[str] | None = None,
    ) -> None:
        self._among = among
        self.on_end: Callable[[], None] | None = None
        self._fleet = fleet
        self._exchange = exchange
        self._request = request
        self._prompt = prompt
        self._policy = policy
        self._tried: tuple[str, ...] = ()
        self._spent = 0  # pods that have been sent the request in vain
        self._troubles: tuple[str, ...] = ()
        self._doubted: tuple[Pod, ...] = ()  # whose 4xx others are to confirm
        self._decision: Decision
        self._pod: Pod | None = None
        self._lease: Lease | None = None
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._usage: UsageFinder | None = None
        self._preamble: Preamble | None = None
        if prompt is not None:
            if prompt.tells:
                self._usage = UsageFinder()
            if exchange.request.head.path == RESPONSES:
                self._preamble = Preamble(stream=prompt.stream)
        self._arrived, self._sent = arrived, 0.0
        self._first_piece: float | None = None
        self._status = 0
        self._unsent = b""
        self._chunked = self._dechunk = self._keep_alive = self._looped = False
        self._slow = False  # whether the client has yet to take what has come
        self.deadline = _NEVER
        exchange.on_close = self._client_left
        exchange.on_pause = self._client_slow
        exchange.on_resume = self._client_ready

    # Choosing and sending.

    def begin(self, waited_s: float = 0.0) -> None:
        """Send the request to a pod, or refuse it; how long it waited in the queue is not ours."""
        self._fleet.under_way.add(self)
        self._arrived += waited_s
        self._attempt()

    def _attempt(self) -> None:
        """Choose a pod and send; a request ends, whatever breaks."""
        try:
            self._place()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the request
            self._broken(error)

    def _place(self) -> None:
        """Choose among the pods that have not failed this request."""
        fleet, request = self._fleet, self._request
        now = fleet.now()
        pods = fleet.membership.offered(now, self._tried, self._among)
        if not pods or self._spent >= _MOST_ATTEMPTS:
            pods = self._last_word()
        if not pods:
            self._give_up()
            return
        if self._tried:
            fleet.meters.retries.add(self._tried[-1])
        fleet.settle(now)
        states = [pod.state for pod in pods]
        if self._prompt is None:
            decision = self._policy.choose(request, states, now)
        else:
            decision = fleet.choose(self._policy, request, states, now)
        self._decision = decision
        pod = self._pod = fleet.membership.pods[decision.pod]
        self._lease = Lease(pod, max(request.prompt_tokens - decision.matched_tokens, 0))
        upstream = fleet.pools[decision.pod].idle()
        if upstream is not None:
            self._send(upstream)
        else:
            self._connect(pod)

    def _last_word(self) -> list[Pod]:
        """Return a pod whose 4xx nobody else could judge, if there is one: then its word holds."""
        doubted, self._doubted = self._doubted, ()
        pods = self._fleet.membership.pods
        return [pod for pod in doubted if pods.get(pod.name) is pod][:1]

    def _connect(self, pod: Pod) -> None:
        """Make a connection, then send."""
        self.deadline = _NEVER  # connecting has a limit of its own
        self._connecting = asyncio.get_running_loop().create_task(self._connected(pod))

    async def _connected(self, pod: Pod) -> None:
        try:
            upstream = await self._fleet.pools[pod.name].connect(self._fleet.limits.connect_s)
        except TimeoutError:
            self.failed("connect_timeout", "could not be connected to in time")
        except (OSError, UnicodeError) as error:  # a host name may be none
            if isinstance(error, ConnectionRefusedError):
                self._fleet.forget(pod.name)  # nobody listens: what it held is gone
            self.failed("connect", f"could not be connected to: {in_words(error)}")
        else:
            try:
                self._send(upstream)
            except Exception as error:  # noqa: BLE001 - the same
                self._broken(error)

    def _send(self, upstream: Upstream) -> None:
        """Hand the request to the pod."""
        fleet, request, decision = self._fleet, self._exchange.request, self._decision
        self._connecting = None
        self._upstream = upstream
        self._sent = sent = fleet.now()
        self.deadline = sent + fleet.limits.first_byte_s
        head, body = request.head, request.body
        first, rest = fleet.pools[decision.pod].request_head(head)
        line = length_line(head.method, len(body))
        upstream.ask(self, head.method, b"%b%b%b" % (first, line, rest), body)
        prompt, lease, expected_s = self._prompt, self._lease, decision.expected_s
        if (
            prompt is not None
            and not prompt.stream
            and lease is not None
            and expected_s is not None
        ):
            fleet.expect_first_token(sent + expected_s, lease)

    # What the pod's connection tells.

    def answered(self, head: Head, length: int) -> None:
        """Make the head to pass on, with what was decided; it leaves with what comes behind it."""
        fleet, pod, decision = self._fleet, self._pod, self._decision
        status = self._status = head.status
        assert pod is not None
        if status in _ELSEWHERE and not self._goes_round(status) and self._another(pod):
            self._drop()
            self.failed("unavailable", f"answered {status}")
            return
        if status >= 400 and self._doubtful(pod, status):
            self._drop()
            self._doubted = (*self._doubted, pod)
            self._spent += 1
            self._elsewhere(pod, f"answered {status}")
            return
        if self._doubted and _well(status):
            for other in self._doubted:
                fleet.membership.judged(other, pod.name, status, fleet.now())
        if 300 <= status < 400:
            head = stay(head, pod.address)
        asked = self._exchange.request.head
        self._chunked = head.chunked
        self._dechunk = self._chunked and asked.http_1_0
        self._keep_alive = head.framed and asked.keep_alive and not asked.http_1_0
        if pod.trouble is not None and _well(status):
            fleet.membership.answered(pod)
        fleet.meters.added_latency.observe(value=self._sent - self._arrived)
        ours = b"%bx-kvbench-predicted-tokens: %d\r\n" % (
            _who_and_why(decision.pod, decision.policy, decision.reason),
            decision.matched_tokens,
        )
        self._unsent = response_head(
            head, length, ours, keep_alive=self._keep_alive, dechunk=self._dechunk
        )

    def _goes_round(self, status: int) -> bool:
        """Return whether a request of another router's comes back for the second time."""
        if status != _LOOP or b"via" not in self._exchange.request.head.named:
            return False
        before, self._looped = self._looped, True
        return before

    def _doubtful(self, pod: Pod, status: int) -> bool:
        """Return whether another pod is to be asked what it thinks of a prompt that was refused."""
        refused = self._prompt is not None and _well(status)
        return refused and self._another(pod) and self._fleet.membership.doubts(pod)

    def _another(self, pod: Pod) -> bool:
        """Return whether another pod could be asked."""
        fleet, tried = self._fleet, (*self._tried, pod.name)
        offered = fleet.membership.offered(fleet.now(), tried, self._among)
        return bool(offered) and self._spent + 1 < _MOST_ATTEMPTS

    def arrived(self, raw: bytes, pieces: tuple[bytes, ...]) -> None:
        """Pass a piece of the body on; look at it in passing."""
        fleet, usage = self._fleet, self._usage
        now = fleet.now()
        if (
            pieces
            and self._first_piece is None
            and (
                (self._preamble is None and not pieces[0].startswith(_NO_TOKEN))
                or self._answers(pieces)
            )
        ):
            self._first_piece = now
            if self._lease is not None:
                self._lease.first_token()
        if self._chunked:
            raw = self._let_through(raw, pieces)
        if self._unsent:
            raw, self._unsent = self._unsent + raw, b""
            if self._first_piece is None and self._computes(pieces, raw):
                self._unsent = raw
                return
            self._exchange.request.body = b""
        self.deadline = now + fleet.limits.idle_s
        if usage is not None:
            for piece in pieces:
                usage.feed(piece)
        if raw:
            self._exchange.raw_write(raw)

    def _computes(self, pieces: tuple[bytes, ...], unsent: bytes) -> bool:
        """Return whether a pod that has only said that it will stream is at the prompt yet.

        What it has said is kept until there is a token, so that another pod can still be asked; but
        not what keeps the client's connection alive.
        """
        prompt = self._prompt
        if prompt is None or not prompt.stream or self._status >= 400:
            return False
        about = self._exchange.request.head.path == RESPONSES and len(unsent) < _LONGEST_PREAMBLE
        return not pieces or (about and not pieces[0].startswith(b":"))

    def _let_through(self, raw: bytes, pieces: tuple[bytes, ...]) -> bytes:
        """Return what the client is sent of chunks.

        Behind the first token, whole lines are sent as they are: those that follow may pass by.
        """
        if self._dechunk:
            return b"".join(pieces)
        upstream, usage = self._upstream, self._usage
        assert upstream is not None
        if upstream.counted and usage is not None:
            usage.feed(upstream.counted)
            upstream.counted = b""
        whole = self._first_piece is not None and pieces and pieces[-1].endswith(b"\n")
        upstream.sink = self._exchange.sink if whole else None
        return raw

    def overdue(self, now: float) -> bool:
        """Return whether it has taken too long; to be asked now and then."""
        upstream = self._upstream
        if (upstream is not None and upstream.moved) or (self._slow and self._exchange.moves()):
            self.deadline = now + self._fleet.limits.idle_s
        if upstream is not None:
            upstream.moved = False
        return self.deadline < now

    def _answers(self, pieces: tuple[bytes, ...]) -> bool:
        """Return whether what an answer begins with has its first token.

        A stream that has an error in its place counts as answered with that.
        """
        preamble = self._preamble = self._preamble or Preamble(stream=True)
        if self._exchange.request.head.path == RESPONSES:
            self._fleet.responses.read(pieces[0], self._decision.pod)
        over = preamble.over(pieces)
        self._status = preamble.error or self._status
        return over and not preamble.error

    def completed(self) -> None:
        """End the answer and learn from it."""
        fleet, pod, status = self._fleet, self._pod, self._status
        assert pod is not None
        if status < 400:
            if pod.trouble is not None or (pod.refusals and self._prompt is not None):
                fleet.membership.succeeded(pod)
        elif _well(status):
            if self._prompt is not None:
                fleet.membership.refused(pod)
        else:
            self._blame(pod, f"answered {status}")
        self._end(f"{status // 100}xx", self._outcome())
        if self._unsent:
            self._exchange.raw_write(self._unsent)
        self._exchange.raw_end(keep_alive=self._keep_alive)

    def failed(self, failure: Failure, why: str) -> None:
        """Try elsewhere if the client has seen nothing yet, else cut it off."""
        fleet, pod = self._fleet, self._pod
        assert pod is not None
        self._upstream = self._connecting = None
        if failure == "stale":
            self._connect(pod)
            return
        fleet.meters.errors.add(pod.name, failure)
        self._blame(pod, why)
        if failure not in {"connect", "connect_timeout"}:
            self._spent += 1
        if self._exchange.started:
            self._end("cut", self._in_vain("cut"))
            self._exchange.abort(reset=True)
            return
        self._elsewhere(pod, why)

    def _blame(self, pod: Pod, why: str) -> None:
        """Take note that a pod has failed; not one that gets back what it has sent here itself."""
        if self._status != _LOOP or b"via" not in self._exchange.request.head.named:
            self._fleet.membership.failed(pod, why, self._fleet.now())

    def _elsewhere(self, pod: Pod, why: str) -> None:
        """Try another pod."""
        self._tried = (*self._tried, pod.name)
        self._troubles = (*self._troubles, f"{pod.name} {why}")
        self._leave(self._in_vain("failed"))
        self._status, self._unsent = 0, b""
        if self._preamble is not None:
            self._preamble = Preamble(stream=self._prompt is not None and self._prompt.stream)
        self._attempt()

    # What the client, and time, tell.

    def _client_left(self, end: End = "gone") -> None:
        """Cancel the request."""
        self._drop()
        self._end("gone", self._in_vain(end))

    def _client_slow(self) -> None:
        """Read no more from the pod until the client does; it may pause for as long as a pod."""
        if self._upstream is not None:
            self._slow = True
            self._upstream.pause()
            self.deadline = self._fleet.now() + self._fleet.limits.idle_s

    def _client_ready(self) -> None:
        """Read on."""
        if self._upstream is not None and self._slow:
            self._slow = False
            self._upstream.resume()
            self.deadline = self._fleet.now() + self._fleet.limits.idle_s

    def stop(self) -> None:
        """Cut a client off that is still there, or tell one that has seen nothing: the end."""
        self._drop()
        self._end("stopped", self._in_vain("stopped"))
        if self._exchange.started:
            self._exchange.abort(reset=True)
        else:
            self._exchange.last_on_connection()
            refuse(self._exchange, HTTPStatus.SERVICE_UNAVAILABLE, ENDING)

    def leave(self, pod: Pod, why: str) -> None:
        """Try another pod, if there is one and this one has not begun to answer: it is down."""
        if self._pod is pod and not self._exchange.started and self._another(pod):
            self._drop()
            self._fleet.meters.errors.add(pod.name, "unavailable")
            self._spent += 1
            self._elsewhere(pod, why)

    def too_late(self) -> None:
        """Give up a pod that takes too long, or a client that does not take its answer."""
        if self._slow:
            self._client_left("unread")
            self._exchange.abort(reset=True)
            return
        fleet, pod = self._fleet, self._pod
        assert pod is not None
        fleet.meters.errors.add(pod.name, "timeout")
        fleet.membership.failed(pod, "took too long to answer", fleet.now())
        self._drop()
        if self._exchange.started:
            self._end("cut", self._in_vain("timeout"))
            self._exchange.abort(reset=True)
        else:
            self.refuse(HTTPStatus.GATEWAY_TIMEOUT, f"{pod.name} took too long to answer.")

    # Ending.

    def _give_up(self) -> None:
        """Refuse: no pod is left."""
        if self._troubles:
            troubles = "; ".join(self._troubles)
            self.refuse(HTTPStatus.BAD_GATEWAY, f"No pod could answer: {troubles}.")
        else:
            sentence = self._fleet.membership.why_nobody(self._among)
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, sentence)

    def refuse(self, status: HTTPStatus, message: str, retry_after_s: int = 1) -> None:
        """Answer with an error of the router's own."""
        end: End = "timeout" if status is HTTPStatus.GATEWAY_TIMEOUT else "broken"
        self._end(f"{status // 100}xx", self._in_vain(end))
        self._fleet.meters.refusals.add(str(status.value))
        refuse(self._exchange, status, message, retry_after_s=retry_after_s)

    def _broken(self, error: Exception) -> None:
        """End after an exception, which is a bug: no pod is to blame, and no client waits."""
        logger.error("request %r: the router failed", self._request.id, exc_info=error)
        self._drop()
        if self._exchange.started:
            self._end("cut", self._in_vain("broken"))
            self._exchange.abort(reset=True)
        else:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "The router failed; its log says how.")

    def _drop(self) -> None:
        """Close the connection to the pod, or stop making one."""
        upstream, connecting = self._upstream, self._connecting
        self._upstream = self._connecting = None
        if upstream is not None:
            upstream.drop()
        if connecting is not None:
            connecting.cancel()

    def _leave(self, outcome: Outcome) -> None:
        """Give back the place on the pod and tell the policy."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
            if self._prompt is not None:
                self._fleet.finished(self._policy, self._request, self._decision, outcome)
        self._pod = None

    def _end(self, status: str, outcome: Outcome) -> None:
        """Close the books on this request, however it went."""
        fleet, pod = self._fleet, self._pod
        fleet.under_way.discard(self)
        exchange = self._exchange  # it held on to this object, as this object does to it
        exchange.on_close = exchange.on_pause = exchange.on_resume = None
        fleet.meters.requests.add("" if pod is None else pod.state.name, status)
        self._upstream = None
        try:
            self._leave(outcome)
        finally:
            ended, self.on_end = self.on_end, None
            if ended is not None:
                ended()

    def _outcome(self) -> Outcome:
        """Return what an answer in full has taught, and count it."""
        prompt, usage, status = self._prompt, self._usage, self._status
        if prompt is None or status != _OK:
            return Outcome(end="answered", status=status)
        fleet, decision, ttft = self._fleet, self._decision, None
        meters, name, first = fleet.meters, decision.pod, self._first_piece
        tokens, cached = (None, None) if usage is None else usage.tokens()
        if first is not None:
            if prompt.stream:
                ttft = first - self._sent
                meters.ttft.observe(name, value=ttft)
            elif usage is not None and usage.brief():
                ttft = first - self._sent
        if tokens is not None:
            if not prompt.counted:
                fleet.bytes_per_token.learn(prompt.model, prompt.size, tokens)
            if cached is not None:
                meters.prompt_tokens.add(name, by=tokens)
                meters.predicted_tokens.add(name, by=decision.matched_tokens)
                meters.cached_tokens.add(name, by=cached)
        return Outcome(ttft, tokens, cached, served=True, end="answered", status=status)

    def _in_vain(self, end: End) -> Outcome:
        """Return what becomes of a request that its pod does not answer in full."""
        lease = self._lease
        prefilled = lease is not None and lease.prefilled
        return Outcome(end=end, status=self._status, prefilled=prefilled)


@lru_cache(1024)
def _who_and_why(pod: str, policy: str, reason: str) -> bytes:
    """Return the header lines that say who was chosen, by whom, and why."""
    lines = f"x-kvbench-pod: {pod}\r\nx-kvbench-policy: {policy}\r\nx-kvbench-reason: {reason}\r\n"
    return lines.encode("latin-1")


def _well(status: int) -> bool:
    """Return whether a pod that answers so can be sent more."""
    return status < 500 and status not in _ELSEWHERE
