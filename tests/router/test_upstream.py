"""A connection to a pod understands an answer however it is cut."""

from __future__ import annotations

import asyncio
import socket
import ssl
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.http.address import parse_address
from kvbench.router.upstream import Pool, Upstream, in_words

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class FakeTransport:
    """Takes what is written."""

    def get_extra_info(self, _name: str) -> FakeTransport:
        """Return something to set options on."""
        return self

    def setsockopt(self, *_: object) -> None:
        """Take an option."""

    def write(self, _data: bytes) -> None:
        """Take bytes."""

    def is_closing(self) -> bool:
        """Return that it is open."""
        return False

    def abort(self) -> None:
        """Close."""


class Heard:
    """A caller that keeps all that it is told."""

    def __init__(self) -> None:
        self.head: tuple[object, int] | None = None
        self.raw = self.body = b""
        self.end: str | None = None

    def answered(self, head: object, length: int) -> None:
        """Take the head."""
        self.head = head, length

    def arrived(self, raw: bytes, pieces: list[bytes]) -> None:
        """Take a piece of the body."""
        self.raw += raw
        self.body += b"".join(pieces)

    def completed(self) -> None:
        """Take the end."""
        self.end = "complete"

    def failed(self, failure: str, _why: str) -> None:
        """Take the failure."""
        self.end = failure


def hear(*pieces: bytes, listen=lambda _upstream: Heard()) -> Heard:
    """Return what a caller is told of an answer that comes in these pieces."""

    async def case() -> Heard:
        upstream = Upstream(Pool(parse_address("http://127.0.0.1:1")))
        heard = listen(upstream)
        upstream.connection_made(FakeTransport())
        upstream.ask(heard, "POST", b"", b"")
        for piece in pieces:
            upstream.data_received(piece)
        return heard

    return asyncio.run(case())


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from([b"", b";x=1"]))),
    st.lists(st.integers(1, 500), max_size=6),
)
def test_chunks_are_the_same_however_they_are_cut(parts, cuts):
    """Whole ones are taken as they stand; from the first that is cut, a parser reads them."""
    framed = [b"%x%b\r\n%b\r\n" % (len(data), extension, data) for data, extension in parts]
    body = b"".join([*framed, b"0\r\n\r\n"])
    answer = HEAD + body
    places = sorted({0, *[cut for cut in cuts if cut < len(answer)], len(answer)})

    heard = hear(*[answer[a:b] for a, b in pairwise(places)])

    assert heard.end == "complete"
    assert heard.body == b"".join(data for data, _ in parts)
    assert heard.raw == body


def test_a_stream_is_understood_chunk_by_chunk():
    """And two chunks in one read are two pieces."""
    chunks = (b"2\r\nhi\r\n", b"2\r\n, \r\n", b"3\r\nyou\r\n1\r\n!\r\n", b"2\r\n\r\n\r\n")
    heard = hear(HEAD, *chunks, b"0\r\n\r\n")

    assert (heard.end, heard.body) == ("complete", b"hi, you!\r\n")


class Passing(Heard):
    """A caller that lets pass by what may."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__()
        self.upstream = upstream
        self.passed: list[bytes] = []

    def arrived(self, raw: bytes, pieces: list[bytes]) -> None:
        """Take a piece of the body, and no more that are whole lines."""
        super().arrived(raw, pieces)
        self.upstream.sink = self.take

    def take(self, raw: bytes) -> None:
        """Take what passed by."""
        self.passed.append(raw)
        self.raw += raw


def test_what_looks_like_a_chunk_inside_of_one_does_not_pass_by():
    """It is a part of what is being counted off."""
    inner = b"3\r\nab\n\r\n"
    heard = hear(HEAD, b"2\r\na\n\r\n", b"9\r\nx", inner, b"\r\n0\r\n\r\n", listen=Passing)

    assert (heard.end, heard.body, heard.passed) == ("complete", b"x" + inner, [b"2\r\na\n\r\n"])


@pytest.mark.parametrize("bad", [b"no chunk----------\n\r\n", bytes(18) + b"\n\r\n"])
def test_no_chunk_is_of_21_bytes_in_all(bad):
    """Fifteen bytes take one digit, sixteen take two: none passes by."""
    heard = hear(HEAD, b"2\r\na\n\r\n", bad, listen=Passing)

    assert (heard.end, heard.passed) == ("protocol", [b"2\r\na\n\r\n"])


LINES = st.builds(
    lambda size, end: b"x" * size + end,
    st.integers(1, 2500),
    st.sampled_from([b"\n", b"\r\n", b""]),
)


@given(st.lists(LINES, max_size=9), st.lists(st.integers(1, 9999), max_size=9), st.booleans())
def test_nothing_passes_by_the_caller_but_whole_chunks_of_whole_lines(parts, cuts, fine):
    """And what passes stands in its place."""
    framed = [b"%x\r\n%b\r\n" % (len(data), data) for data in parts]
    answer = b"".join([HEAD, *framed, b"0\r\n\r\n"])
    ends = accumulate(map(len, [HEAD, *framed]))
    places = sorted(
        {0, *(ends if fine else ()), *[c for c in cuts if c < len(answer)], len(answer)}
    )

    heard = hear(*[answer[a:b] for a, b in pairwise(places)], listen=Passing)

    assert heard.end == "complete"
    assert heard.raw == answer.removeprefix(HEAD)
    assert {*heard.passed} <= {piece for piece in framed if piece.endswith(b"\n\r\n")}
    if fine and not cuts:
        short = [one for one in framed if one.endswith(b"\n\r\n") and len(one) < 2000]
        assert [one for one in heard.passed if len(one) < 2000] == short


@pytest.mark.parametrize(
    "bad",
    [
        b"hello\r\n",
        b"2\r\nhi!\r\n",
        b"2\r\nhi!!",
        b"-2\r\nhi\r\n",
        b"0x2\r\nhi\r\n",
        b"2_\r\nhi\r\n",
    ],
)
def test_what_is_no_chunk_is_refused(bad):
    """By the parser, whatever Python would take for a number."""
    assert hear(HEAD, b"2\r\nhi\r\n", bad, b"0\r\n\r\n").end == "protocol"


def untrusted(why: str) -> ssl.SSLCertVerificationError:
    """Return what is raised for a certificate."""
    error = ssl.SSLCertVerificationError(1, f"[SSL: CERTIFICATE_VERIFY_FAILED] {why} (_ssl.c:1006)")
    error.verify_message = why
    return error


def tls(reason: str) -> ssl.SSLError:
    """Return what is raised where TLS fails otherwise."""
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1006)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError(113, "Connect call failed"), "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
        (
            untrusted("old"),
            "its certificate is not trusted: old (SSL_CERT_FILE names a file of those that are)",
        ),
        (tls("WRONG_VERSION_NUMBER"), "no TLS with it: wrong version number"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else "",
)
def test_why_there_is_no_connection_is_said_in_words(error, words):
    """Without addresses, which stand before, and numbers."""
    assert in_words(error) == words


@pytest.mark.parametrize("cut", [1, 17, 40, 100])
def test_a_head_whose_lines_end_otherwise_is_refused_and_not_waited_for(cut):
    """There would be no end to it."""
    answer = b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}"
    assert hear(answer[:cut], answer[cut:]).end == "protocol"


HEADS = st.sampled_from([
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx-id: 7\r\nContent-Length:%d\r\n\r\n",
    b"HTTP/1.1 500 No\r\ncontent-length: %d \r\n\r\n",
    b"HTTP/1.1 204 No\r\ncontent-length: 00%d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n%d",
])  # fmt: skip
ANSWERS = st.tuples(st.sampled_from(["POST", "HEAD"]), st.integers(0, 1), st.integers(0, 12))


@given(st.tuples(HEADS, HEADS), st.lists(ANSWERS, min_size=2, max_size=5))
def test_what_a_pod_answered_before_changes_no_answer(heads, answers):
    """A connection that has seen other heads understands the next as a new one does."""

    async def case() -> None:
        pool = Pool(parse_address("http://127.0.0.1:1"))
        old = Upstream(pool)
        old.connection_made(FakeTransport())
        for method, which, length in answers:
            new = Upstream(pool)
            new.connection_made(FakeTransport())
            heard = []
            for upstream in (old, new):
                caller = Heard()
                upstream.ask(caller, method, b"", b"")
                upstream.data_received(heads[which] % length + b"x" * length)
                heard.append(vars(caller))
            assert heard[0] == heard[1]

    asyncio.run(case())
