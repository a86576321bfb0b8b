"""Streams folded: when the first token came, and when it did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.openai.sse import encode
from kvbench.openai.stream import StreamFold

RECORDED = Path(__file__).parent / "recorded"

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 3}}


def says(text: str, **choice: object) -> dict[str, object]:
    """Return a chunk that brings text."""
    return {"choices": [{"index": 0, "delta": {"content": text}, **choice}]}


def thinks(text: str) -> dict[str, object]:
    """Return a chunk that brings reasoning."""
    return {"choices": [{"index": 0, "delta": {"reasoning": text}}]}


def folded(*payloads: object, done: bool = True) -> StreamFold:
    """Return a stream of one event per second, from second 1."""
    fold = StreamFold()
    ends = ["[DONE]"] if done else []
    for second, payload in enumerate([*payloads, *ends], start=1):
        data = payload if isinstance(payload, str) else json.dumps(payload)
        fold.feed(float(second), encode(data.encode()))
    return fold


def test_the_role_is_no_token():
    """It says that an answer will come, not that it has."""
    fold = folded(ROLE, says("a"), says("b"), USAGE)
    assert (fold.first_token, fold.first_answer, fold.last_token) == (2.0, 2.0, 3.0)
    assert fold.chunk_stamps == [2.0, 3.0]
    assert fold.text == "ab"
    assert fold.done


def test_empty_content_is_no_token():
    """Half of a character, and the finish."""
    fold = folded(ROLE, says(""), says("ä"), says("", finish_reason="length"))
    assert fold.chunk_stamps == [3.0]
    assert fold.finish_reason == "length"


def test_reasoning_is_a_token_and_no_answer():
    """Time to first token counts it; the first answer token stands apart."""
    fold = folded(ROLE, thinks("hm"), thinks("m"), says("a"))
    assert (fold.first_token, fold.first_answer) == (2.0, 4.0)
    assert (fold.reasoning, fold.text) == ("hmm", "a")


def test_a_call_of_a_tool_is_an_answer():
    """Although it has no text."""
    fold = folded(ROLE, {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})
    assert fold.first_answer == 2.0


def test_the_usage_counts_the_tokens():
    """However many came in a chunk, and in a chunk without choices."""
    fold = folded(says("three tokens here"), USAGE)
    assert fold.usage is not None
    assert fold.usage.completion_tokens == 3
    assert fold.usage.cached_tokens is None
    assert fold.chunk_stamps == [1.0]


def test_an_error_within_the_stream_is_an_error():
    """Although the status was 200 and the stream ended in order."""
    fold = folded(ROLE, says("a"), {"error": {"message": "out of memory", "code": 500}})
    assert fold.error == "out of memory"
    assert fold.done


@pytest.mark.parametrize("payload", [b'{"detail": "gone"}', b"gone"])
def test_an_event_that_is_named_error_is_an_error(payload: bytes):
    """Whatever it says."""
    fold = StreamFold()
    fold.feed(1.0, encode(payload, b"error"))
    assert fold.error == payload.decode()
    assert fold.malformed is None


def test_a_stream_without_its_end_is_not_done():
    """Even if it had said why it finishes: the connection may have been cut."""
    fold = folded(says("a", finish_reason="stop"), done=False)
    assert not fold.done
    assert fold.finish_reason == "stop"


def test_nothing_counts_after_the_end():
    """Some proxies append."""
    fold = folded(says("a"), "[DONE]", says("b"), done=False)
    assert fold.text == "a"
    assert fold.last_token == 1.0


@pytest.mark.parametrize(
    "payload", ['{"choices": [{"del', "nonsense", "[1]", '{"choices": [{"delta": {"content": 5}}]}']
)
def test_an_event_that_cannot_be_read_is_told_and_the_rest_is_read(payload: str):
    """The first one is kept, with its beginning."""
    fold = folded(says("a"), payload, "worse", says("b"))
    assert fold.malformed is not None
    assert payload[:10].replace("'", "\\'") in fold.malformed
    assert fold.text == "ab"
    assert fold.done


def test_an_event_beyond_the_bound_ends_the_reading():
    """And says so."""
    fold = StreamFold()
    for _ in range(10):
        fold.feed(1.0, b"data: " + b"x" * 2**20)
    fold.feed(2.0, b"\n\ndata: [DONE]\n\n")
    assert fold.malformed is not None
    assert "at most" in fold.malformed
    assert not fold.done


def test_chunks_of_the_first_read_are_counted():
    """More than one says that the client was late."""
    fold = StreamFold()
    event = encode(json.dumps(says("a")).encode())
    fold.feed(1.0, event + event)
    fold.feed(1.0, event)
    fold.feed(2.0, event)
    assert fold.first_read_chunks == 3
    assert StreamFold().first_read_chunks is None


def test_several_choices_are_one_stream_of_chunks_and_the_first_is_the_text():
    """With n above 1, the answers come interleaved."""
    fold = folded(
        {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]},
        says("mine", finish_reason="length"),
    )
    assert fold.chunk_stamps == [1.0, 2.0]
    assert (fold.text, fold.finish_reason) == ("mine", "length")


def test_a_recorded_chat_is_read():
    """Chunks with empty content in mid-stream; cached tokens present and 0."""
    fold = StreamFold()
    fold.feed(1.0, (RECORDED / "chat_stream.sse").read_bytes())
    assert fold.done
    assert fold.text == "X�X�X"
    assert len(fold.chunk_stamps) == 3
    assert fold.usage is not None
    assert (fold.usage.prompt_tokens, fold.usage.completion_tokens) == (56, 6)
    assert fold.usage.cached_tokens == 0
    assert fold.finish_reason == "length"
    assert (fold.error, fold.malformed) == (None, None)


def test_recorded_completions_are_read():
    """The other endpoint's chunks have text instead of deltas."""
    fold = StreamFold()
    fold.feed(1.0, (RECORDED / "completions_stream_token_ids.sse").read_bytes())
    assert (fold.done, fold.text) == (True, "X�X")
    assert fold.usage is not None
    assert fold.usage.completion_tokens == 4


def test_the_last_of_continuous_usage_counts():
    """Each chunk brings a usage; the last is the whole."""
    fold = StreamFold()
    fold.feed(1.0, (RECORDED / "chat_stream_continuous_usage.sse").read_bytes())
    assert fold.usage is not None
    assert (fold.usage.completion_tokens, fold.usage.cached_tokens) == (4, 0)


@given(st.data())
def test_any_chunking_folds_to_the_same(data: st.DataObject):
    """Of a recorded stream, cut anywhere."""
    stream = (RECORDED / "chat_stream.sse").read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    fold = StreamFold()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        fold.feed(1.0, stream[start:end])
    assert fold.text == "X�X�X"
    assert len(fold.chunk_stamps) == 3
    assert fold.done


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_arbitrary_bytes_never_raise(pieces: list[bytes]):
    """A server may send anything."""
    fold = StreamFold()
    for piece in pieces:
        fold.feed(1.0, b"data: " + piece)
    assert fold.first_token is None or fold.chunk_stamps
