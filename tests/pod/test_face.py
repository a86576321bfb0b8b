"""The bytes of answers: the quick way and the full way say the same."""

from __future__ import annotations

import json

import pytest

from kvbench.pod.face import Face, Finished, Usage


def face(*, chat: bool) -> Face:
    """Return a face."""
    return Face("chatcmpl-1", 7, 'm"odel', "vllm-x", chat=chat)


@pytest.mark.parametrize("chat", [True, False])
def test_a_chunk_from_the_template_equals_the_chunk_that_is_built(chat: bool):
    """Whatever it says."""
    before, after = face(chat=chat).piece(3)
    assert before + b" word" + after == face(chat=chat).chunk(3, " word")


@pytest.mark.parametrize("cached", [0, 32, None])
def test_cached_tokens_are_told_even_where_there_are_none(cached: int | None):
    """Unless the pod does not tell."""
    event = face(chat=True).usage(Usage(40, 2, cached, 8))
    usage = json.loads(event.removeprefix(b"data: "))["usage"]
    expected = None if cached is None else {"cached_tokens": cached, "created_cache_tokens": 8}
    assert usage.get("prompt_tokens_details") == expected
    assert usage["total_tokens"] == 42


def test_a_text_is_escaped_where_it_must_be():
    """An echoed prompt may hold anything."""
    said = Finished('a "b"\n\x01ä', "stop", None, None, None)
    body = face(chat=False).whole([said], Usage(1, 1))
    assert json.loads(body)["choices"][0]["text"] == said.text
    assert "ä".encode() in body
