"""Heads that are known."""

from __future__ import annotations

import pytest

from kvbench.http.heads import Head, KnownHeads, split

POST = b"POST /v1?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def test_requests_that_differ_in_length_alone_have_the_same_head():
    """The digits are no part of the key."""
    one, other = split(POST % 5 + b"hello"), split(POST % 123 + b"...")

    assert one is not None
    assert other is not None
    assert one[0] == other[0]
    assert (one[1:], other[1:]) == ((5, len(POST % 5)), (123, len(POST % 123)))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n", None, id="not complete"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"x" * 3000 + b"\r\n\r\n", None, id="too long to be kept"),
    ],
)
def test_what_is_no_whole_short_head_has_no_key(data, expected):
    """It is for the parser."""
    assert split(data) == expected


@pytest.mark.parametrize(
    ("headers", "length", "known"),
    [
        pytest.param([(b"content-length", b"5")], 5, True, id="a length"),
        pytest.param([], -1, True, id="no body"),
        pytest.param([(b"content-length", b"5")], -1, False, id="a length that was not found"),
        pytest.param([(b"transfer-encoding", b"chunked")], -1, False, id="chunks"),
        pytest.param(
            [(b"expect", b"100-continue"), (b"content-length", b"5")], 5, False, id="who waits"
        ),
        pytest.param([(b"upgrade", b"h2c")], -1, False, id="another protocol"),
    ],
)
def test_only_a_body_that_can_be_counted_off_makes_a_head_known(headers, length, known):
    """Everything else is parsed each time."""
    heads, head = KnownHeads(), Head("POST", b"/", headers)
    key = b"POST / HTTP/1.1\r\n" + b"name: \r\n" * len(headers) + b"\r\n"

    heads.learn(key, head, length)

    assert heads.get(key, length) is (head if known else None)
    assert heads.get(key, -1 if length >= 0 else 0) is None


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(b"\r\n\r\n", id="empty lines before it"),
        pytest.param(b"\r\n\r\nGET /a HTTP/1.1\r\nhost: h\r\n\r\n", id="and it"),
        pytest.param(b"GET /a HTTP/1.1\r\n\r\n", id="less than it"),
        pytest.param(b"GET /a HTTP/1.1\nhost: h\n\nGET /b HTTP/1.1\r\n\r\n", id="two heads"),
        pytest.param(b"GET /b HTTP/1.1\r\nhost: h\r\n\r\n", id="another's first line"),
    ],
)
def test_a_key_that_is_not_line_for_line_what_was_read_makes_no_head_known(key):
    """Another client that sends those bytes would be answered as if it had sent that head."""
    heads = KnownHeads()

    heads.learn(key, Head("GET", b"/a", [(b"host", b"h")]), -1)

    assert heads.get(key, -1) is None


def test_there_is_a_bound_on_heads_that_are_kept():
    """A client that varies its heads costs time, not memory."""
    heads = KnownHeads()
    for number in range(5000):
        heads.learn(b"GET /%d HTTP/1.1\r\n\r\n" % number, Head("GET", b"/%d" % number, []), -1)

    kept = [heads.get(b"GET /%d HTTP/1.1\r\n\r\n" % number, -1) for number in range(5000)]
    assert 1 <= sum(head is not None for head in kept) <= 1024
