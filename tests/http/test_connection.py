"""A connection understands any chunking, and answers or drops whatever it is sent."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire import scene

from kvbench.http.connection import Connection, Limits
from kvbench.http.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.http.exchange import Exchange

LIMITS = Limits(
    max_body=1000,
    max_held=10**6,
    max_header=2000,
    max_unsent=100_000,
    idle_timeout=60,
    read_timeout=60,
)


class FakeSocket:
    """Takes options."""

    def setsockopt(self, *_: object) -> None:
        """Take one."""

    def fileno(self) -> int:
        """Return that it is none of the kernel's."""
        return -1


class FakeTransport(asyncio.Transport):
    """Remembers what was written; a client that reads nothing leaves it in the buffer."""

    def __init__(self) -> None:
        super().__init__({"socket": FakeSocket(), "peername": ("test", 1)})
        self.written = b""
        self.buffered = 0
        self.closed = self.aborted = False
        self.reading = True

    def write(self, data: bytes) -> None:
        """Remember."""
        assert not self.closed
        self.written += data

    def get_write_buffer_size(self) -> int:
        """Return what the test says."""
        return self.buffered

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.closed

    def close(self) -> None:
        """Close."""
        self.closed = True

    def abort(self) -> None:
        """Close at once."""
        self.closed = self.aborted = True

    def can_write_eof(self) -> bool:
        """Return that it can."""
        return True

    def write_eof(self) -> None:
        """Take no more writes."""

    def pause_reading(self) -> None:
        """Remember."""
        self.reading = False

    def resume_reading(self) -> None:
        """Remember."""
        self.reading = True


def echo(exchange: Exchange) -> None:
    """Answer with everything that was understood of the request."""
    request = exchange.request
    seen = [
        request.method,
        request.path,
        request.query,
        [
            [name.decode("latin-1"), value.decode("latin-1")]
            for name, value in request.headers
            if name != b"content-length"  # a known head has that of the request it was learned from
        ],
        request.body.decode("latin-1"),
    ]
    exchange.respond(200, json.dumps(seen).encode())


FRAGMENTS = st.sampled_from([
    b"\r\n", b"\r\n\r\n", b"\n", b"GET /a HTTP/1.1\r\n", b"POST /b HTTP/1.1\r\n",
    b"GET /c HTTP/1.0\r\n", b"GET /d HTTP/1.1\nhost: h\n\n", b"name: one\r\n two\r\n",
    b"GET /e HTTP/1.1\r\nhost: h\r\n\r\n", b"host: h\r\n", b"content-length: 3\r\n",
    b"content-length: \r\n", b"Content-Length:3 \r\n", b"content-length: 3\r\n\r\nabc",
    b"transfer-encoding: chunked\r\n", b"\r\nabc", b"abc", b"0\r\n\r\n",
])  # fmt: skip
COUNTED = b"POST /b HTTP/1.1\r\ncontent-length: %b\r\n\r\n"


@given(st.lists(st.lists(FRAGMENTS, max_size=6).map(b"".join), min_size=2, max_size=6))
@example([b"\r\n\r\nGET /a HTTP/1.1\r\nkey: k\r\n\r\n", b"\r\n\r\n"])
@example([COUNTED % b"3" + b"abc", COUNTED % b""])
def test_what_other_clients_sent_before_changes_no_answer(clients):
    """Heads are known from one client to the next: none may be taken for another's."""

    def heard(server: Server, data: bytes) -> bytes:
        transport, connection = FakeTransport(), Connection(server)
        connection.connection_made(transport)
        connection.data_received(data)
        return re.sub(rb"date: [^\r]*", b"", transport.written)

    async def case() -> None:
        server = Server(echo, LIMITS, "test")
        for data in clients:
            assert heard(server, data) == heard(Server(echo, LIMITS, "test"), data)

    asyncio.run(case())


def talk(pieces: list[bytes], handler=echo) -> FakeTransport:
    """Feed pieces to a connection; return its transport."""
    return asyncio.run(talked(pieces, handler))


async def talked(pieces: list[bytes], handler: Callable[[Exchange], None]) -> FakeTransport:
    """Feed pieces to a connection of a server, which needs a running loop."""
    server = Server(handler, LIMITS, "test")
    transport = FakeTransport()
    connection = Connection(server)
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    return transport


def bodies(written: bytes) -> list[bytes]:
    """Return the bodies of answers that have a length."""
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        found.append(rest[:length])
        written = rest[length:]
    return found


def post(body: bytes, *headers: str) -> bytes:
    """Return a POST."""
    lines = "".join(f"{line}\r\n" for line in headers)
    head = f"POST /p?q HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.data())
def test_any_chunking_of_requests_gets_the_same_answers(sent: list[bytes], data: st.DataObject):
    """However the bytes are cut up, and however many requests are sent ahead."""
    stream = b"".join(post(body, "X-N: a b ") for body in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges) if b > a]
    answers = bodies(talk(pieces).written)
    assert answers == bodies(talk([stream]).written)
    assert [json.loads(answer)[4].encode("latin-1") for answer in answers] == sent


def test_blanks_around_a_header_are_none_of_its_value():
    """The first time and when it is known; those in it are."""
    for _ in range(2):
        written = talk([post(b"1", "X-Session-Id:  \ta b \t ", "X-Empty:  ")] * 2).written
        for answer in bodies(written):
            assert json.loads(answer)[3] == [
                ["host", "x"],
                ["x-session-id", "a b"],
                ["x-empty", ""],
            ]


def test_one_byte_at_a_time_is_understood():
    """The worst chunking, with a body in chunks of its own."""
    stream = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    answers = bodies(talk([stream[i : i + 1] for i in range(len(stream))]).written)
    assert [json.loads(answer)[1::3] for answer in answers] == [["/a", "abc"], ["/b", ""]]
    assert json.loads(answers[1])[3] == [["host", "x"]]


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6))
def test_arbitrary_bytes_are_answered_or_dropped(pieces: list[bytes]):
    """Nothing that a client sends raises."""
    written = talk(pieces).written
    assert written == b"" or written.startswith(b"HTTP/1.1 ")


@given(st.data())
def test_a_damaged_request_is_answered_or_dropped(data: st.DataObject):
    """One byte of a good request replaced, removed or doubled."""
    good = post(b"hello", "Expect: 100-continue", "X-A: b")
    at = data.draw(st.integers(0, len(good) - 1))
    new = data.draw(st.binary(max_size=3))
    written = talk([good[:at] + new + good[at + 1 :]]).written
    assert written == b"" or written.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"nonsense\r\n\r\n", b"400", id="no HTTP"),
        pytest.param(post(b"x" * 1001), b"413", id="a body over the limit"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"
            + b"x" * 1001
            + b"\r\n0\r\n\r\n",
            b"413",
            id="a body over the limit that did not say so",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nA: " + b"x" * 2000 + b"\r\n\r\n", b"431", id="a head over the limit"
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"400",
            id="two framings at once, as smugglers send",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(sent: bytes, status: bytes):
    """With the status that says why, and the end of the connection."""
    transport = talk([sent])
    assert transport.written.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close\r\n" in transport.written


def test_a_head_that_never_ends_is_refused_before_it_is_kept():
    """The limit holds although no header is complete."""
    transport = talk([b"GET / HTTP/1.1\r\nA: "] + [b"x" * 500] * 8)
    assert transport.written.startswith(b"HTTP/1.1 431 ")


def test_a_refusal_waits_for_its_turn():
    """Requests sent before the bad one are answered first."""
    written = talk([post(b"1") + b"\x00garbage\r\n\r\n"]).written
    assert written.startswith(b"HTTP/1.1 200 OK")
    assert written.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 400 Bad Request" in written


def test_a_client_that_waits_to_be_asked_is_asked():
    """`Expect: 100-continue` gets its go-ahead before the body, and then its answer."""
    good = post(b"hello", "Expect: 100-continue")
    head, body = good[:-5], good[-5:]
    assert talk([head]).written == b"HTTP/1.1 100 Continue\r\n\r\n"
    written = talk([head, body]).written
    assert json.loads(written.split(b"\r\n\r\n")[-1])[4] == "hello"


def test_a_client_that_asks_to_upgrade_is_answered_in_the_old_protocol():
    """And nothing that it sends afterwards is read."""
    written = talk(
        [b"GET /u HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x01\x02"]
    ).written
    assert json.loads(written.split(b"\r\n\r\n")[1])[1] == "/u"
    assert b"connection: close" in written


def test_the_end_of_a_body_and_the_next_head_may_come_together():
    """What is long there is the body."""
    first, second = post(b"x" * 900, "X: 1"), post(b"y", "X: " + "2" * 1200)
    head = first.index(b"\r\n\r\n") + 4
    middle = first[head:] + second[:1250]
    assert len(middle) > LIMITS.max_header
    written = talk([first[:head], middle, second[1250:]]).written
    answers = written.split(b"HTTP/1.1 200 OK")[1:]
    bodies = [json.loads(answer.split(b"\r\n\r\n")[1])[4] for answer in answers]
    assert bodies == ["x" * 900, "y"]


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM"
CHUNKED = b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_prompt_that_asks_for_http_2_as_well_keeps_its_body(step, chunked):
    """As `curl --http2` and Java's client send every first one; in whatever pieces."""
    plain = post(b"hello", UPGRADE)
    if chunked:
        plain = CHUNKED + UPGRADE.encode() + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    written = talk([plain[at : at + step] for at in range(0, len(plain), step)]).written
    method, path, _, headers, body = json.loads(written.split(b"\r\n\r\n")[1])
    assert (method, path, body) == ("POST", "/p", "hello")
    assert ["http2-settings", "AAM"] in headers
    assert "upgrade" not in dict(headers)
    assert written.count(b"HTTP/1.1") == 1
    assert b"connection: close" in written


def test_a_tunnel_is_refused():
    """What would be said through it is not read."""
    written = talk([b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n\x16\x03\x01"]).written
    assert written.startswith(b"HTTP/1.1 405 ")
    assert written.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET / HTTP/0.9", 505),
        (b"GET /", 505),
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/3.0", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM", 505),
        (b"CONNECT a:1 HTTP/1.1", 405),
        (b"GET / HTTP/1.0", 200),
        (b"GET / SPDY/1.1", 400),
    ],
)
def test_what_is_refused_once_is_refused_always(first, status):
    """Another version of HTTP (RFC 9110 §15.6.6) or a tunnel: no such head is known again."""

    async def case():
        server = Server(echo, LIMITS, "test")
        for _ in range(3):
            transport, connection = FakeTransport(), Connection(server)
            connection.connection_made(transport)
            connection.data_received(first + b"\r\n\r\n")
            assert transport.written.startswith(b"HTTP/1.1 %d " % status)
            connection.connection_lost(None)

    asyncio.run(case())


def test_what_follows_a_chunked_body_is_no_header():
    """It came past all who looked at the head, and would go to a pod as one."""
    trailer = b"x-user: root\r\nauthorization: Bearer x\r\n"
    written = talk([CHUNKED + b"\r\n5\r\nhello\r\n0\r\n" + trailer + b"\r\n"]).written
    _, _, _, headers, body = json.loads(written.split(b"\r\n\r\n")[1])
    assert body == "hello"
    assert [name for name, _ in headers] == ["host", "transfer-encoding"]


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        pytest.param(b"0\r\n", b"x: " + b"y" * 95 + b"\r\n", id="lines of a trailer"),
        pytest.param(b"0\r\nx: ", b"y" * 100, id="a line of a trailer"),
        pytest.param(b"5;", b"x" * 100, id="an extension of a chunk"),
    ],
)
def test_what_stands_around_chunks_is_bounded_as_heads_are(begin, piece):
    """Without an end it would fill the memory."""
    transport = talk([CHUNKED + b"\r\n", begin, *[piece] * 30])
    assert transport.written.startswith(b"HTTP/1.1 431 ")


def test_a_long_body_in_small_chunks_is_no_long_head():
    """However little of it comes at once."""
    pieces = [piece for _ in range(900) for piece in (b"1\r\n", b"x", b"\r\n")]
    written = talk([CHUNKED + b"\r\n", *pieces, b"0\r\n\r\n"]).written
    assert json.loads(written.split(b"\r\n\r\n")[1])[4] == "x" * 900


def test_a_handler_that_raises_costs_its_request_only(caplog: pytest.LogCaptureFixture):
    """500, a line in the log, and the next request is served."""

    def handler(exchange: Exchange) -> None:
        if exchange.request.body == b"bad":
            raise ZeroDivisionError
        exchange.respond(200, b"fine")

    written = talk([post(b"bad") + post(b"good")], handler).written
    assert written.startswith(b"HTTP/1.1 500 Internal Server Error")
    assert written.endswith(b"fine")
    assert "POST /p: the handler failed" in caplog.text


def test_a_handler_that_raises_in_mid_answer_cuts_the_connection():
    """The client must not take the half for the whole."""

    def handler(exchange: Exchange) -> None:
        exchange.start(200, [], None)
        raise ZeroDivisionError

    transport = talk([post(b"")], handler)
    assert transport.closed
    assert b"0\r\n\r\n" not in transport.written.split(b"\r\n\r\n", 1)[1]


@scene
async def test_a_client_that_does_not_read_is_cut():
    """What waits for a slow reader is bounded."""
    held: list[Exchange] = []
    connection = Connection(Server(held.append, LIMITS, "test"))
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.data_received(post(b""))
    exchange = held[0]
    exchange.start(200, [], None)
    transport.buffered = LIMITS.max_unsent + 1
    connection.pause_writing()
    exchange.write(b"more")
    assert transport.closed


@pytest.mark.parametrize("headers", [[], ["connection: close"]])
@scene
async def test_an_answer_is_sent_to_its_end_while_its_client_takes_some(headers):
    """However long that takes; one that takes none is cut, so that it knows."""
    connection = Connection(Server(lambda exchange: exchange.respond(200, b"x"), LIMITS, "test"))
    transport = FakeTransport()
    connection.connection_made(transport)
    transport.buffered = 5000
    connection.data_received(post(b"", *headers))
    now = connection._now()
    for round_ in range(1, 4):
        connection.sweep(now + round_ * 1.5 * LIMITS.idle_timeout)
        assert not transport.aborted
        transport.buffered -= 1000
    connection.sweep(now + 6 * LIMITS.idle_timeout)
    assert not transport.aborted
    connection.sweep(now + 7.5 * LIMITS.idle_timeout)
    assert transport.aborted


@scene
async def test_a_slow_reader_is_announced():
    """The handler hears when to pause and when to go on."""
    held: list[Exchange] = []
    heard: list[str] = []
    connection = Connection(Server(held.append, LIMITS, "test"))
    connection.connection_made(FakeTransport())
    connection.pause_writing()
    connection.data_received(post(b""))
    held[0].on_pause = lambda: heard.append("pause")
    held[0].on_resume = lambda: heard.append("resume")
    connection.pause_writing()
    connection.resume_writing()
    assert heard == ["pause", "resume"]


@scene
async def test_requests_sent_far_ahead_are_not_read():
    """Reading pauses while many wait, and goes on when they have been answered."""
    held: list[Exchange] = []
    connection = Connection(Server(held.append, LIMITS, "test"))
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.data_received(post(b"") * 40)
    assert len(held) == 1
    assert not transport.reading
    while not held[-1].closed:
        held[-1].respond(200, b"")
    assert len(held) == 40
    assert transport.reading


@scene
async def test_large_bodies_sent_ahead_are_not_read():
    """What one client can have the server keep is about two bodies, not thirty."""
    held: list[Exchange] = []
    limits = replace(LIMITS, max_body=2**22, max_held=2**24)
    connection = Connection(Server(held.append, limits, "test"))
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.data_received(post(b"x" * 2**20))
    assert transport.reading
    connection.data_received(post(b"x" * (2**20 + 1)))
    assert not transport.reading
    held[0].respond(200, b"")
    assert transport.reading
    assert len(held[1].request.body) == 2**20 + 1


@scene
async def test_what_the_server_holds_of_all_bodies_is_bounded():
    """Who would send more is refused, and what has been answered, or left, counts no more."""
    held: list[Exchange] = []
    server = Server(held.append, replace(LIMITS, max_body=2**20, max_held=2**20), "test")
    large = post(b"x" * 700_000)

    def client() -> tuple[Connection, FakeTransport]:
        connection, transport = Connection(server), FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    for pieces in ([large], [large[:90_000], large[90_000:]]):  # in one read, and in two
        (first, _), (second, transport) = client(), client()
        first.data_received(large)
        assert server.held == 700_000
        for piece in pieces:
            if not transport.closed:
                second.data_received(piece)
        assert transport.written.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert transport.written.endswith(b"Too much is being sent at once.")
        assert server.held == 700_000
        held[-1].request.body = b""  # as a handler does that needs it no more
        third, _ = client()
        third.data_received(large)
        assert server.held == 700_000
        held[-1].respond(200, b"")
        assert server.held == 0
        third.data_received(large[:80_000])
        assert server.held > 79_000
        third.connection_lost(None)
        for connection in (first, second):
            connection.connection_lost(None)
        assert server.held == 0
    assert len(held) == 4


@scene
async def test_small_bodies_are_not_counted_and_large_ones_in_chunks_are():
    """The count costs what is small nothing."""
    held: list[Exchange] = []
    server = Server(held.append, replace(LIMITS, max_body=2**20), "test")
    connection = Connection(server)
    connection.connection_made(FakeTransport())
    for _ in range(3):
        connection.data_received(post(b"x" * 500))
        held[-1].respond(200, b"")
    assert server.held == 0
    connection.data_received(post(b"x" * 70_000))
    assert server.held == 70_000
    held[-1].respond(200, b"")
    assert server.held == 0
