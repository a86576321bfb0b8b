"""Payloads of many servers, read into the same values."""

from __future__ import annotations

import json

import pytest

from kvbench.openai.wire import DecodeError, parse


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        pytest.param({"prompt_tokens_details": {"cached_tokens": 32}}, 32, id="vLLM"),
        pytest.param({"prompt_tokens_details": {"cached_tokens": 0}}, 0, id="nothing cached is 0"),
        pytest.param({"prompt_tokens_details": {"cached_tokens": None}}, None, id="unknown"),
        pytest.param({"prompt_tokens_details": None}, None, id="not asked for, so unknown"),
        pytest.param({}, None, id="not said, so unknown"),
        pytest.param({"prompt_cache_hit_tokens": 7}, 7, id="DeepSeek"),
    ],
)
def test_cached_tokens_are_known_or_unknown_but_never_guessed(usage: dict, cached: int | None):
    """A missing figure is not 0."""
    chunk = parse(json.dumps({"choices": [], "usage": usage}).encode())
    assert chunk.usage is not None
    assert chunk.usage.cached_tokens == cached


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        pytest.param({"error": {"message": "too long", "code": 4}}, "too long", id="OpenAI, vLLM"),
        pytest.param({"error": "no"}, "no", id="a bare sentence"),
        pytest.param({"error": {"code": 5}}, "{'code': 5}", id="an error without a sentence"),
        pytest.param({"object": "error", "message": "bad", "code": 400}, "bad", id="SGLang"),
        pytest.param({"object": "error"}, "error", id="one that says nothing"),
        pytest.param({"choices": [], "error": None}, None, id="no error"),
        pytest.param({"object": "text_completion"}, None, id="an ordinary chunk"),
    ],
)
def test_errors_are_recognised_in_every_form(payload: dict, message: str | None):
    """The sentence is the server's own."""
    assert parse(json.dumps(payload).encode()).error_message == message


@pytest.mark.parametrize(
    ("choice", "content", "thought", "answers"),
    [
        pytest.param({"delta": {"role": "assistant", "content": ""}}, "", "", False, id="role"),
        pytest.param({"delta": {"content": "x"}}, "x", "", True, id="chat"),
        pytest.param({"text": "x"}, "x", "", True, id="completions"),
        pytest.param({"text": ""}, "", "", False, id="half of a character"),
        pytest.param({"delta": {"reasoning": "x"}}, None, "x", False, id="reasoning"),
        pytest.param({"delta": {"reasoning_content": "x"}}, None, "x", False, id="its older name"),
        pytest.param({"delta": {"tool_calls": [{"index": 0}]}}, None, "", True, id="a tool call"),
        pytest.param({"delta": {"tool_calls": []}}, None, "", False, id="no tool call"),
        pytest.param({"delta": {"refusal": "no"}}, None, "", True, id="a refusal"),
        pytest.param({"message": {"content": "x"}}, "x", "", True, id="a whole answer"),
        pytest.param({"delta": None, "finish_reason": "stop"}, None, "", False, id="nothing"),
        pytest.param({"delta": {"content": None}, "x": [1]}, None, "", False, id="unknown keys"),
    ],
)
def test_a_choice_is_reduced_to_what_it_brings(
    choice: dict, content: str | None, thought: str, answers: bool
):
    """Whichever endpoint and whichever server it comes from."""
    choices = parse(json.dumps({"choices": [choice]}).encode()).choices
    assert choices is not None
    piece = choices[0].piece
    assert (piece.content, piece.thought, piece.answers) == (content, thought, answers)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'"x"', b'{"choices": 5}', b'{"usage": {"prompt_tokens": "x"}}']
)
def test_what_is_no_chunk_is_an_error(payload: bytes):
    """One class of error for all of it."""
    with pytest.raises(DecodeError):
        parse(payload)


def test_an_error_names_the_place():
    """So that a person finds it in a long payload."""
    with pytest.raises(DecodeError, match=r"choices\[0\].delta.content"):
        parse(b'{"choices": [{"delta": {"content": 5}}]}')
