"""An exchange frames its answers, whatever connection it came over."""

from __future__ import annotations

import pytest

from kvbench.http.exchange import Exchange, Request
from kvbench.http.heads import Head


class FakeWire:
    """Remembers what an exchange says."""

    def __init__(self) -> None:
        self.sent = b""
        self.kept_alive: bool | None = None
        self.was_cut = False
        self.peer = "test:1"

    def send(self, data: bytes) -> None:
        """Remember."""
        self.sent += data

    def finished(self, exchange: Exchange, *, keep_alive: bool) -> None:
        """Remember whether the connection lives on."""
        assert exchange.closed
        self.kept_alive = keep_alive

    def cut(self, *, reset: bool) -> None:
        """Remember."""
        self.was_cut = True
        self.was_reset = reset

    def preamble(self) -> bytes:
        """Say one header."""
        return b"server: test\r\n"


def exchange(method: str = "GET", **request: bool) -> tuple[Exchange, FakeWire]:
    """Return an exchange over a wire that remembers."""
    wire = FakeWire()
    return Exchange(Request(Head(method, b"/", [], **request)), wire), wire


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        pytest.param(b"/a/b?x=1&y=2", "/a/b", "x=1&y=2", id="a query stands apart"),
        pytest.param(b"/a%20b?c%20d", "/a b", "c%20d", id="the path is decoded, the query is not"),
        pytest.param(b"http://host/v1/models", "/v1/models", "", id="as a forward proxy is asked"),
        pytest.param(b"*", "*", "", id="the server itself"),
        pytest.param(b"/x?u=http://y/z", "/x", "u=http://y/z", id="an address within the query"),
    ],
)
def test_a_target_is_taken_apart(target: bytes, path: str, query: str):
    """Path and query come from the target, which stays as it was sent."""
    request = Request(Head("GET", target, []))
    assert (request.path, request.query, request.head.target) == (path, query, target)


def test_a_header_is_found_by_its_lower_case_name():
    """The first of several counts; one that is not there is None."""
    request = Request(Head("GET", b"/", [(b"x-a", b"1"), (b"x-a", b"2")]))
    assert request.header("x-a") == "1"
    assert request.header("x-b") is None


def test_a_whole_answer_is_one_write_with_its_length():
    """Head and body go out together."""
    ex, wire = exchange()
    ex.respond(200, b"{}", headers=[(b"vary", b"Origin")])
    assert wire.sent == (
        b"HTTP/1.1 200 OK\r\nserver: test\r\ncontent-length: 2\r\n"
        b"content-type: application/json\r\nvary: Origin\r\n\r\n{}"
    )
    assert wire.kept_alive is True


def test_an_answer_of_unknown_length_comes_in_chunks():
    """Each write is one chunk, and an empty write says nothing."""
    ex, wire = exchange()
    ex.start(200, [(b"content-type", b"text/event-stream")], None)
    ex.write(b"")
    ex.write(b"data: 1\n\n")
    ex.end()
    assert wire.sent.endswith(
        b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"9\r\ndata: 1\n\n\r\n0\r\n\r\n"
    )
    assert wire.kept_alive is True


def test_an_old_client_gets_an_unknown_length_by_the_end_of_the_connection():
    """HTTP/1.0 has no chunks."""
    ex, wire = exchange(http_1_0=True)
    ex.start(200, [], None)
    ex.write(b"abc")
    ex.end()
    assert wire.sent == b"HTTP/1.1 200 OK\r\nserver: test\r\nconnection: close\r\n\r\nabc"
    assert wire.kept_alive is False


def test_an_old_client_that_asks_to_stay_is_told_that_it_may():
    """HTTP/1.0 keeps a connection only where both sides say so."""
    ex, wire = exchange(http_1_0=True)
    ex.respond(200, b"")
    assert b"connection: keep-alive\r\n" in wire.sent


def test_head_gets_the_head_alone():
    """The length is that of the body which GET would have brought."""
    for answer in (
        lambda ex: ex.respond(200, b"four"),
        lambda ex: (ex.start(200, [], 4), ex.write(b"four"), ex.end()),
    ):
        ex, wire = exchange("HEAD")
        answer(ex)
        assert b"content-length: 4\r\n" in wire.sent
        assert wire.sent.endswith(b"\r\n\r\n")
        assert wire.kept_alive is True


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status: int):
    """Neither a body nor a length is sent."""
    ex, wire = exchange()
    ex.respond(status, b"ignored", content_type=None)
    assert b"content-length" not in wire.sent
    assert wire.sent.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("said", [b"abc", b"abcde"])
def test_a_body_of_another_length_than_announced_costs_the_connection(said: bytes):
    """The client could not tell where the next answer begins."""
    ex, wire = exchange()
    ex.start(200, [], 4)
    ex.write(said)
    ex.end()
    assert wire.kept_alive is False


def test_raw_bytes_pass_as_they_are():
    """A proxy frames by itself, and says whether the connection may live."""
    ex, wire = exchange()
    ex.raw_write(b"HTTP/1.1 200 OK\r\n\r\nx")
    ex.raw_end(keep_alive=False)
    assert wire.sent == b"HTTP/1.1 200 OK\r\n\r\nx"
    assert wire.kept_alive is False


def test_nothing_is_said_after_the_end():
    """What comes late is dropped in silence."""
    ex, wire = exchange()
    ex.respond(200, b"x")
    sent = wire.sent
    ex.write(b"late")
    ex.end()
    ex.abort()
    assert wire.sent == sent
    assert not wire.was_cut


def test_an_exchange_can_be_cut():
    """The wire is dropped, with a reset if asked."""
    ex, wire = exchange()
    ex.start(200, [], None)
    ex.abort(reset=True)
    assert wire.was_cut
    assert wire.was_reset
    assert ex.closed


def test_a_client_that_leaves_is_announced_once():
    """`on_close` is for clients that leave before the end."""
    calls: list[int] = []
    ex, _ = exchange()
    ex.on_close = lambda: calls.append(1)
    ex.lost()
    ex.lost()
    assert calls == [1]
    assert ex.closed


def test_the_last_answer_on_a_connection_says_so():
    """A server that is closing does not promise another."""
    ex, wire = exchange()
    ex.last_on_connection()
    ex.respond(200, b"")
    assert b"connection: close\r\n" in wire.sent
    assert wire.kept_alive is False
