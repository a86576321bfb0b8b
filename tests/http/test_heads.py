"""Heads that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.http.heads import Form, Head, KnownHeads, split

POST = b"POST /v1?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def test_requests_that_differ_in_length_alone_have_the_same_head():
    """The digits are no part of the key."""
    one, other = split(POST % 5 + b"hello"), split(POST % 123 + b"...")

    assert one is not None
    assert other is not None
    assert one[0].key == other[0].key
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


def test_a_form_tells_the_length_that_it_is_filled_in_with():
    """What differs in the digits alone is the same head."""
    form, *_ = split(POST % 5)

    assert form.read(POST % 12345 + b"hello") == (12345, len(POST % 12345))
    assert form.read(b"PUTT" + (POST % 5)[4:]) == (-1, 0)


def test_a_form_without_a_blank_is_never_filled_in():
    """Whether a head without a length is the same is for those to say who know the whole of it."""
    bare = b"GET / HTTP/1.1\r\n\r\n"
    form, *_ = split(bare)

    assert form.read(bare + b"123") == Form().read(bare) == Form().read(b"") == (-1, 0)


LINES = st.sampled_from([
    b"Content-Length: ", b"content-length:", b"Content-Length:\t", b"X: ", b"5", b"007", b"1" * 15,
    b"1" * 16, b"", b"-1", b" ", b"\r\n", b"\r\n\r\n", b"\n", b"5\r\nContent-Length: 6",
])  # fmt: skip


DIGITS = st.text("0123456789", max_size=17).map(str.encode)


@given(DIGITS, st.lists(LINES, max_size=3), DIGITS, st.lists(LINES, max_size=3))
def test_a_form_finds_in_a_head_what_is_found_without_it(digits, lines, others, other_lines):
    """Wherever it knows a head, the length, the end and the key are those of the whole search."""
    start = b"POST / HTTP/1.1\r\nContent-Length: "
    form, blank, _ = split(start + digits + b"".join(lines) + b"\r\n\r\n")
    for rest in (lines, other_lines):
        data = start + others + b"".join(rest) + b"\r\n\r\n"
        for cut in (data, data[: len(digits)], data[:-1]):
            length, end = form.read(cut)
            found = split(cut)
            if end:
                assert found is not None
                assert (found[0].key, *found[1:]) == (form.key, length, end)
            elif blank >= 0 and found is not None and found[1] >= 0:
                assert found[0].key != form.key
