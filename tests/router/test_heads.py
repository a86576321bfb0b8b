"""The two heads that a proxy rewrites."""

from __future__ import annotations

import pytest

from kvbench.http.address import parse_address
from kvbench.http.heads import Head
from kvbench.router.heads import (
    goes_round,
    length_line,
    parse_head,
    request_head,
    response_head,
    split_length,
    stay,
)

POD = parse_address("http://pod:8000/base")


def sent(asked: Head, size: int) -> bytes:
    """Return the head that the pod gets with a body of that size."""
    first, rest = request_head(asked, POD, b"us")
    return first + length_line(asked.method, size) + rest


def test_the_request_gets_the_pods_host_and_a_length_and_keeps_the_rest():
    """Query included; headers of the client's connection stay behind."""
    asked = Head(
        "POST",
        b"/v1/x?a=1&b=%20",
        [
            (b"host", b"router"),
            (b"connection", b"keep-alive, X-Mine"),
            (b"x-mine", b"secret"),
            (b"transfer-encoding", b"chunked"),
            (b"expect", b"100-continue"),
            (b"te", b"trailers"),  # codespell:ignore te
            (b"x-kvbench-policy", b"random"),
            (b"authorization", b"Bearer k"),
            (b"x-request-id", b"7"),
            (b"accept", b"a"),
            (b"accept", b"b"),
        ],
    )

    assert sent(asked, 5) == (
        b"POST /base/v1/x?a=1&b=%20 HTTP/1.1\r\nhost: pod:8000\r\ncontent-length: 5\r\n"
        b"authorization: Bearer k\r\nx-request-id: 7\r\naccept: a\r\naccept: b\r\n"
        b"via: 1.1 us\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        pytest.param(
            Head("GET", b"/v1/models", []),
            b"GET /base/v1/models HTTP/1.1\r\nhost: pod:8000\r\nvia: 1.1 us\r\n\r\n",
            id="a request without a body has no length",
        ),
        pytest.param(
            Head("POST", b"/reset", []),
            b"POST /base/reset HTTP/1.1\r\nhost: pod:8000\r\ncontent-length: 0\r\nvia: 1.1 us\r\n"
            b"\r\n",
            id="a POST of nothing says so",
        ),
        pytest.param(
            Head("GET", b"http://router/v1/models?x=1", []),
            b"GET /base/v1/models?x=1 HTTP/1.1\r\nhost: pod:8000\r\nvia: 1.1 us\r\n\r\n",
            id="the form for forward proxies is understood",
        ),
    ],
)
def test_the_first_lines_of_requests(asked, first):
    """Byte for byte."""
    assert sent(asked, 0) == first


@pytest.mark.parametrize(
    ("via", "passed"),
    [
        ([b"1.1 us"], True),
        ([b"1.0 fred, 1.1 us (kvbench)"], True),
        ([b"1.1 p", b"HTTP/1.1 us,1.1 q"], True),
        ([b"1.1 usher, 1.1 US"], False),
        ([b"1.1 kvbench-a, 1.1 kvbench-b", b"1.1 cdn, 1.1 fred"], False),
        ([b"1.1 kvbench-a, 1.1 kvbench-b", b"1.1 cdn, 1.1 kvbench-c"], True),
        ([], False),
    ],
)
def test_a_request_says_whose_hands_it_has_been_in(via, passed):
    """In one line or several, with comments and other names; three other routers are too many."""
    asked = Head("GET", b"/", [(b"x-us", b"us"), *((b"via", value) for value in via)])

    assert goes_round(asked, b"us") == passed


def head(*lines: bytes, status: bytes = b"200 OK", method: str = "POST"):
    """Parse an answer's head; return it and the length that it tells."""
    plain, length = split_length(b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", b""]))
    return parse_head(plain, method, counted=length >= 0), length


@pytest.mark.parametrize(
    ("lines", "status", "framed", "has_body"),
    [
        pytest.param([b"Content-Length: 5"], b"200 OK", True, True, id="a length"),
        pytest.param([b"transfer-encoding: chunked"], b"200 OK", True, True, id="chunks"),
        pytest.param([b"connection: close"], b"200 OK", False, True, id="until it closes"),
        pytest.param([], b"204 No Content", True, False, id="no content"),
        pytest.param([], b"304 Not Modified", True, False, id="not modified"),
    ],
)
def test_how_the_end_of_a_body_is_told(lines, status, framed, has_body):
    """By length, by chunks, by the end of the connection, or not at all."""
    parsed, _ = head(*lines, status=status)

    assert (parsed.framed, parsed.has_body) == (framed, has_body)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        pytest.param([b"CONTENT-LENGTH:5"], True, id="a length"),
        pytest.param([b"Content-Length: 5", b"Connection: close"], False, id="a close"),
        pytest.param([b"Transfer-Encoding: chunked"], True, id="chunks"),
        pytest.param([], False, id="no end but its own"),
    ],
)
def test_a_connection_is_used_again_where_the_end_is_certain_and_the_pod_does_not_close(
    lines, kept
):
    """As the HTTP parser understands it."""
    assert head(*lines)[0].keep_alive == kept


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Content-Length: many"],
        [b"no colon"],
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(lines):
    """Whoever reads it otherwise would take the body of one answer for the next."""
    with pytest.raises(ValueError, match=r"\S"):
        head(*lines)


def test_a_status_that_is_none_is_refused():
    """RFC 9110 §15: clients could not read it."""
    with pytest.raises(ValueError, match="no status"):
        head(b"content-length: 0", status=b"099 Hm")


def test_an_answer_to_head_has_no_body_whatever_its_length_says():
    """RFC 9110 §9.3.2. The length is passed on."""
    parsed, length = head(b"content-length: 5", method="HEAD")

    assert (parsed.framed, parsed.has_body, length) == (True, False, 5)
    assert response_head(parsed, length, b"", keep_alive=True, dechunk=False) == (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        (b"http://pod:8000/base/v1/models", b"/v1/models"),
        (b"https://pod:8000/base/v1/models?x=1", b"/v1/models?x=1"),
        (b"http://pod:8000/elsewhere", b"http://pod:8000/elsewhere"),
        (b"http://pod:80001/base/v1", b"http://pod:80001/base/v1"),
        (b"https://hub.example/model", b"https://hub.example/model"),
        (b"/v1/models", b"/v1/models"),
    ],
)
def test_a_redirection_to_the_pod_leads_back_to_the_router(said, passed_on):
    """The client need not reach the pod, and shall not pass by keys and limits."""
    parsed, _ = head(b"X-Odd: location: http://pod:8000/base/x", b"Location: " + said)

    start = stay(parsed, POD).start

    assert start == parsed.start.replace(b"Location: " + said, b"Location: " + passed_on)
    assert b"\r\nX-Odd: location: http://pod:8000/base/x\r\n" in start


def test_the_answers_head_keeps_what_the_pod_wrote_and_gains_ours():
    """Headers of the pod's connection stay behind, those that imitate ours too."""
    parsed, length = head(
        b"Date: today",
        b"Connection: keep-alive, x-hop",
        b"Keep-Alive: timeout=5",
        b"X-Hop: 1",
        b"X-Kvbench-Pod: liar",
        b"Transfer-Encoding: chunked",
        b"X-Odd:no space",
        status=b"299 Rather Odd",
    )

    kept = response_head(parsed, length, b"x-kvbench-pod: a\r\n", keep_alive=True, dechunk=False)
    plain = response_head(parsed, length, b"", keep_alive=False, dechunk=True)

    assert kept == (
        b"HTTP/1.1 299 Rather Odd\r\nDate: today\r\nX-Odd:no space\r\n"
        b"transfer-encoding: chunked\r\nx-kvbench-pod: a\r\n\r\n"
    )
    assert plain == (
        b"HTTP/1.1 299 Rather Odd\r\nDate: today\r\nX-Odd:no space\r\nconnection: close\r\n\r\n"
    )
