"""The client against a server that does as it is told: what it sends, and what it makes of answers.

Times are asserted as orders and bounds only; how accurate they are is measured by
`scripts/bench_load.py`.
"""

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from fakes_target import (
    CLOSE,
    CUT,
    END,
    HANG,
    HEAD,
    Asked,
    ScriptedTarget,
    answer,
    chunk,
    delta,
    event,
    plain,
)

from kvbench.clock import WallClock
from kvbench.errors import TargetError
from kvbench.load.client import Client, Timeouts, resolve
from kvbench.load.outcome import judge
from kvbench.load.reply import Reply
from kvbench.load.request import RequestForm
from kvbench.load.target import Target
from kvbench.openai.stream import StreamFold

SHORT = Timeouts(connect=0.3, idle=0.15, total=0.6)
LONG = Timeouts(connect=10, idle=10, total=10)


class Caller:
    """A client with its target, and a way to wait for one answer."""

    def __init__(self, server: ScriptedTarget, client: Client) -> None:
        """Use `client` to ask `server`."""
        self.server = server
        self.client = client
        self.form = RequestForm(Target.parse(server.url), "chat")

    async def ask(self, body: bytes = b"{}", session: str = "s") -> Reply:
        """Post, and return the settled reply."""
        future = asyncio.get_running_loop().create_future()
        reply = Reply(StreamFold())
        self.client.post(self.form.post("id", session, body), reply, future.set_result)
        await future
        reply.settle()
        return reply


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has come about."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


def call(script, use: Callable, timeouts: Timeouts = LONG):
    """Run `use(caller)` against a server with this script, and return what it returns."""

    async def main():
        """Serve and use."""
        async with ScriptedTarget(script) as server:
            target = Target.parse(server.url)
            address = await resolve(target, 1)
            client = Client(target, address, WallClock(), timeouts, max_idle=8)
            try:
                return await use(Caller(server, client))
            finally:
                client.close()

    return uvloop.run(main())


def ask_once(steps, timeouts: Timeouts = LONG) -> Reply:
    """Return the reply to one request that is answered with `steps`."""
    return call(lambda _asked: steps, lambda caller: caller.ask(), timeouts)


def verdict(reply: Reply) -> tuple[str, str] | None:
    """Return what went wrong, as the row would have it."""
    return judge(reply, reply.fold)


def test_an_answer_is_read_whole_with_its_usage():
    """Tokens, finish reason and counts are the server's."""
    reply = ask_once(answer(5, cached=7))
    assert verdict(reply) is None
    assert reply.fold.text == " w0 w1 w2 w3 w4"
    assert (reply.fold.usage.completion_tokens, reply.fold.usage.cached_tokens) == (5, 7)
    assert reply.fold.finish_reason == "length"


def test_times_come_in_the_order_in_which_things_happen():
    """The head comes at once, the first token later, the last token last."""
    reply = ask_once(answer(3, gap=0.02, first=0.03))
    fold = reply.fold
    times = [reply.sent, reply.headers_at, *fold.chunk_stamps, reply.end]
    assert times == sorted(times)
    assert fold.first_token - reply.headers_at > 0.02
    assert fold.first_token - reply.sent < fold.last_token - reply.sent
    assert fold.chunk_stamps[0] == fold.first_token


def test_the_role_alone_is_no_token():
    """It comes before the first token here, and must not be taken for it."""
    steps = [HEAD, chunk(event(delta(None))), 0.05, *answer(2)[2:]]
    reply = ask_once(steps)
    assert reply.fold.first_token - reply.headers_at > 0.03


def test_several_chunks_in_one_read_show_as_such():
    """Then the time of the first token is an upper bound."""
    both = event(delta(" a")) + event(delta(" b"))
    reply = ask_once([HEAD, chunk(both), 0.03, chunk(event(b"[DONE]")) + END])
    assert reply.fold.first_read_chunks == 2
    assert verdict(reply) is None


def test_usage_without_cached_tokens_leaves_them_unknown():
    """Unknown is None, never 0."""
    reply = ask_once(answer(2, cached=None))
    assert reply.fold.usage.completion_tokens == 2
    assert reply.fold.usage.cached_tokens is None


def test_carriage_returns_and_split_events_change_nothing():
    """A chunk of HTTP need not be an event."""
    stream = (event(delta(" a", "stop")) + event(b"[DONE]")).replace(b"\n", b"\r\n")
    pieces = [chunk(stream[i : i + 7]) for i in range(0, len(stream), 7)]
    reply = ask_once([HEAD, *pieces, END])
    assert verdict(reply) is None
    assert reply.fold.text == " a"


def test_a_stream_may_end_with_the_connection():
    """HTTP allows a response without length and without chunks."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    reply = ask_once([head, event(delta(" a")), event(b"[DONE]"), CLOSE])
    assert verdict(reply) is None
    assert reply.fold.text == " a"


def test_interim_responses_are_read_over():
    """103 and 100 come before the response proper."""
    reply = ask_once([b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", 0.01, *answer(2)])
    assert verdict(reply) is None
    assert "link" not in reply.headers


BROKEN = [
    pytest.param(plain(500, b"oops", "text/plain"), "http", "500: oops", id="a plain 500"),
    pytest.param(
        plain(429, b'{"error":{"message":"slow down","code":429}}'),
        "http",
        "429: slow down",
        id="a 429 in OpenAI's form",
    ),
    pytest.param(plain(400, b'{"message":"too long"}'), "http", "400: too long", id="a flat 400"),
    pytest.param(plain(503, b""), "http", "503: (empty body)", id="an empty 503"),
    pytest.param(plain(302, b""), "protocol", "expected status 200, got 302", id="a redirect"),
    pytest.param(
        plain(200, b'{"choices":[]}'),
        "protocol",
        "expected an event stream, got application/json",
        id="JSON instead of a stream",
    ),
    pytest.param(
        [HEAD, chunk(event({"error": {"message": "out of memory"}})), END],
        "server",
        "out of memory",
        id="an error object in the stream",
    ),
    pytest.param(
        [HEAD, chunk(event(delta(" a"))), END],
        "cut",
        "the stream ended without [DONE]",
        id="a stream that ends too early",
    ),
    pytest.param(
        [HEAD, chunk(event(delta(" a"))), CUT],
        "cut",
        "Connection reset by peer in the middle of the response",
        id="a connection reset in mid-stream",
    ),
    pytest.param(
        [HEAD, chunk(event(delta(" a"))), CLOSE],
        "cut",
        "the server closed the connection in the middle of the response",
        id="a connection closed in mid-stream",
    ),
    pytest.param(
        [CLOSE], "cut", "the server closed the connection before it answered", id="no response"
    ),
    pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n"], "protocol", "not HTTP/1.1", id="another protocol"),
    pytest.param([HEAD, b"zz\r\n"], "protocol", "not HTTP/1.1", id="broken chunks"),
    pytest.param(
        [b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 70_000 + b"\r\n\r\n"],
        "protocol",
        "head of the response longer than 65536 bytes",
        id="an endless head",
    ),
    pytest.param(
        [HEAD, chunk(event(b"{not json")) + chunk(event(b"[DONE]")) + END],
        "protocol",
        "event b'{not json'",
        id="garbage in an event",
    ),
    pytest.param(
        [
            b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\n",
            b"busy",
        ],
        "http",
        "429: busy (retry after 7 s)",
        id="a refusal with a time to come again",
    ),
]


@pytest.mark.parametrize(("steps", "kind", "message"), BROKEN)
def test_what_goes_wrong_has_a_kind_and_a_sentence(steps, kind, message):
    """The kinds are those of the schema."""
    found = verdict(ask_once(steps))
    assert found is not None
    assert found[0] == kind
    assert found[1].startswith(message)


def test_what_was_said_before_the_end_counts_even_if_the_connection_breaks_after_it():
    """The answer was complete."""
    reply = ask_once([HEAD, chunk(event(delta(" a")) + event(b"[DONE]")), CUT])
    assert reply.failure is not None
    assert verdict(reply) is None


LATE = [
    pytest.param([HANG], "no answer after 0.6 s", id="no answer"),
    pytest.param(
        [HEAD, HANG],
        "the answer was not complete after 0.6 s",
        id="a prompt that takes long: vLLM sends the head first",
    ),
    pytest.param(
        [HEAD, chunk(event(delta(" a"))), HANG], "no further byte in 0.15 s", id="a stalled stream"
    ),
    pytest.param(
        [HEAD, *[step for _ in range(40) for step in (chunk(event(delta("."))), 0.03)]],
        "the answer was not complete after 0.6 s",
        id="an endless stream",
    ),
]


@pytest.mark.parametrize(("steps", "message"), LATE)
def test_waiting_ends(steps, message):
    """For the first byte, for the next, and for the last."""
    assert verdict(ask_once(steps, SHORT)) == ("timeout", message)


def test_a_port_on_which_nobody_listens_is_a_failure_to_connect():
    """And nothing was sent."""

    async def gone(caller):
        """Ask after the server has gone."""
        caller.server._server.close()
        await caller.server._server.wait_closed()
        return caller.server.url, await caller.ask()

    url, reply = call(lambda _: answer(), gone)
    assert verdict(reply) == ("connect", f"{url.removeprefix('http://')}: Connection refused")
    assert reply.sent is None


def test_a_name_that_does_not_resolve_is_the_targets_fault():
    """It is found out before the run."""
    target = Target.parse("http://no-such-host.invalid:80")
    with pytest.raises(TargetError, match=r"no-such-host\.invalid cannot be resolved"):
        uvloop.run(resolve(target, 1))


def test_a_connection_serves_one_request_after_another():
    """No handshake stands before the second turn."""

    async def thrice(caller):
        """Ask three times."""
        for _ in range(3):
            await caller.ask()
        return caller.server.connections

    assert call(lambda _: answer(), thrice) == 1


def test_a_server_that_asks_for_it_gets_a_new_connection_every_time():
    """`Connection: close` is respected."""
    head = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

    async def twice(caller):
        """Ask twice."""
        replies = [await caller.ask(), await caller.ask()]
        return caller.server.connections, [verdict(reply) for reply in replies]

    assert call(lambda _: [head, *answer()[1:], CLOSE], twice) == (2, [None, None])


def test_a_connection_that_died_idle_costs_no_turn():
    """The request goes out once more, on a new connection."""

    def script(asked: Asked):
        return [CUT] if asked.nth == 1 else answer()

    async def twice(caller):
        """Ask twice."""
        await caller.ask()
        reply = await caller.ask()
        return verdict(reply), [asked.connection for asked in caller.server.asked]

    assert call(script, twice) == (None, [0, 0, 1])


def test_a_request_is_sent_again_only_once():
    """A server that drops every request is broken, not idle."""

    def script(asked: Asked):
        return answer() if asked.nth == 0 else [CUT]

    async def twice(caller):
        """Ask twice."""
        await caller.ask()
        reply = await caller.ask()
        return verdict(reply), len(caller.server.asked)

    found, asked = call(script, twice)
    assert found == ("cut", "Connection reset by peer before it answered")
    assert asked == 3


def test_a_request_that_was_answered_in_part_is_not_sent_again():
    """Its turn has begun."""

    def script(asked: Asked):
        return answer() if asked.nth == 0 else [HEAD, CUT]

    async def twice(caller):
        """Ask twice."""
        await caller.ask()
        reply = await caller.ask()
        return verdict(reply)[0], len(caller.server.asked)

    assert call(script, twice) == ("cut", 2)


def test_connections_can_be_opened_ahead():
    """So that the first turns need not wait for a handshake."""

    async def ahead(caller):
        """Open three connections, then ask three times."""
        caller.client.reserve(3)
        await until(lambda: len(caller.client._idle) == 3)
        replies = await asyncio.gather(*(caller.ask() for _ in range(3)))
        return caller.server.connections, [verdict(reply) for reply in replies]

    assert call(lambda _: answer(), ahead) == (3, [None] * 3)


def test_bytes_that_nobody_asked_for_end_the_connection():
    """The next request gets another one."""

    async def twice(caller):
        """Ask twice."""
        await caller.ask()
        await until(lambda: not caller.client._idle)
        return verdict(await caller.ask()), caller.server.connections

    def script(asked: Asked):
        return answer() if asked.nth else [*answer(), 0.01, b"HTTP/1.1 200 OK\r\n\r\n"]

    assert call(script, twice) == (None, 2)


def test_a_long_request_arrives_whole():
    """Longer than the kernel takes at once."""
    body = bytes(range(256)) * 40_000

    async def ask(caller):
        """Ask."""
        reply = await caller.ask(body)
        return verdict(reply), caller.server.asked[0].body == body

    assert call(lambda _: answer(), ask) == (None, True)


def test_a_stream_longer_than_is_kept_is_folded_on_the_way():
    """Memory is bounded, and nothing is lost."""
    text = "x" * 10_000
    pieces = [chunk(event(delta(text))) for _ in range(100)]
    reply = ask_once([HEAD, *pieces, chunk(event(b"[DONE]")) + END])
    assert verdict(reply) is None
    assert len(reply.fold.text) == 1_000_000


def test_the_head_says_who_asks_and_nothing_can_be_smuggled_into_it():
    """Session names come from files."""

    async def ask(caller):
        """Ask."""
        await caller.ask(session="a\r\nx-evil: 1\r\n\r\nGET / ü")
        return caller.server.asked[0]

    asked = call(lambda _: answer(), ask)
    assert asked.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert asked.header("x-request-id") == "id"
    assert asked.header("x-evil") is None
    assert asked.header("x-session-id") == "a%0D%0Ax-evil: 1%0D%0A%0D%0AGET / %C3%BC"


def test_abort_cuts_what_was_sent():
    """Every request ends in exactly one call."""

    async def abort(caller):
        """Abort three requests."""
        asking = [asyncio.ensure_future(caller.ask()) for _ in range(3)]
        await until(lambda: len(caller.server.asked) == 3)
        caller.client.abort("enough")
        return [reply.failure for reply in await asyncio.gather(*asking)]

    assert call(lambda _: [HANG], abort) == [("cut", "enough")] * 3


def test_arrivals_are_stamped_by_the_kernel_and_never_before_the_send():
    """On Linux; elsewhere the time of the read stands."""

    async def ask(caller):
        """Ask."""
        replies = [await caller.ask()]
        while not caller.client.kernel_stamps and len(replies) < 100:
            replies.append(await caller.ask())  # stamping takes a moment to be switched on
        return caller.client.kernel_stamps, replies

    stamped, replies = call(lambda _: answer(), ask)
    assert stamped
    assert all(reply.headers_at >= reply.sent for reply in replies)
