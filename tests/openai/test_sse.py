"""The event-stream format: any chunking, any line end, and a bound."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.openai.sse import Event, EventReader, EventTooLargeError, encode


def read(*pieces: bytes) -> list[bytes]:
    """Return the payloads of the events in the pieces."""
    reader = EventReader()
    return [event.data for piece in pieces for event in reader.feed(piece)]


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="two events"),
        pytest.param(b"data:a\n\n", [b"a"], id="no space after the colon"),
        pytest.param(b"data:  a \n\n", [b" a "], id="one space belongs to the format, more do not"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed line ends"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="several lines are one payload"),
        pytest.param(b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"], id="more empty lines"),
        pytest.param(b": keep-alive\n\ndata: a\n\n", [b"a"], id="a comment of its own"),
        pytest.param(b"data: a\n: comment\n\n", [b"a"], id="a comment within an event"),
        pytest.param(b"id: 7\nretry: 10\ndata: a\n\n", [b"a"], id="fields without meaning here"),
        pytest.param(b"data\n\n", [b""], id="a field without a colon has no value"),
        pytest.param(b"event: x\n\ndata: a\n\n", [b"a"], id="an event without data never happened"),
        pytest.param(b"data: a\n\ndata: b\n", [b"a"], id="an event that was not finished neither"),
        pytest.param(b"data: a", [], id="nor a line that was not finished"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="a byte-order mark"),
        pytest.param(b"data: \xc3\xa4\n\n", [b"\xc3\xa4"], id="bytes stay bytes"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_a_stream_is_taken_apart_as_the_standard_says(stream: bytes, payloads: list[bytes]):
    """Whole, and one byte at a time."""
    assert read(stream) == payloads
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == payloads


@given(
    st.lists(st.sampled_from([b"data: x\n", b"\r\n", b"\r", b"\n", b":c\n", b"data:"])), st.data()
)
def test_any_chunking_gives_the_same_events(parts: list[bytes], data: st.DataObject):
    """Reads end anywhere, also between the two halves of a line end."""
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    assert read(*(stream[a:b] for a, b in pairwise(edges))) == read(stream)


@given(st.lists(st.binary(min_size=1).map(lambda b: b.replace(b"\r", b"")), max_size=5))
def test_what_is_written_is_read(payloads: list[bytes]):
    """Line feeds included."""
    assert read(*map(encode, payloads)) == payloads


def test_the_kind_of_an_event_is_kept_and_does_not_leak_into_the_next():
    """Servers name their errors."""
    reader = EventReader()
    assert reader.feed(encode(b"x", b"error") + encode(b"y")) == [
        Event(b"x", b"error"),
        Event(b"y"),
    ]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: x\n" * 200])
def test_an_event_without_end_is_refused(stream: bytes):
    """The buffer is bounded, for one long line and for many short ones."""
    reader = EventReader(max_event=100)
    with pytest.raises(EventTooLargeError, match="at most 100 bytes"):
        reader.feed(stream)


def test_many_small_events_in_one_read_are_no_large_one():
    """The bound is for what must wait, not for what arrives."""
    assert len(EventReader(max_event=100).feed(b"data: x\n\n" * 1000)) == 1000
