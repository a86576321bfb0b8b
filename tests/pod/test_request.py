"""Bodies: what they ask for, and what is refused before anything is done."""

from __future__ import annotations

import pytest

from kvbench.pod.errors import ApiError
from kvbench.pod.request import Conversation, parse_chat, parse_completion, read_json

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("content_type", "body", "status", "message"),
    [
        (None, b"{}", 400, "Unsupported Media Type"),
        ("text/plain", b"{}", 400, "Unsupported Media Type"),
        ("application/json", b"{", 400, "json_invalid"),
        ("application/json", b'"\xff"', 400, "There was an error parsing the body"),
        ("application/json", b"[" * 100_000, 400, "There was an error parsing the body"),
        ("application/json", b"9" * 5000, 400, "There was an error parsing the body"),
    ],
)
def test_a_body_that_is_no_json_is_refused(
    content_type: str | None, body: bytes, status: int, message: str
):
    """Whatever is wrong with it."""
    with pytest.raises(ApiError, match=message) as raised:
        read_json(content_type, body)
    assert raised.value.status == status


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=x", "a/b+json"])
def test_json_is_recognised_by_its_content_type(kind: str):
    """With parameters, and in its other names."""
    assert read_json(kind, b"[1]") == [1]


def test_a_chat_has_defaults():
    """One answer, as long as it gets, in one piece."""
    ask = parse_chat(CHAT, "m")
    assert ask.prompts == Conversation([{"role": "user", "content": "hi"}])
    assert (ask.n, ask.max_tokens, ask.stream, ask.stop) == (1, None, False, ())


def test_the_newer_name_of_the_limit_counts():
    """Where both are given."""
    assert parse_chat(CHAT | {"max_tokens": 5, "max_completion_tokens": 3}, "m").max_tokens == 3


def test_completions_have_a_limit_of_their_own():
    """16 tokens, as OpenAI's had."""
    assert parse_completion({"prompt": "x"}).max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "prompts", "ids"),
    [
        ("a", ["a"], False),
        (["a", "b"], ["a", "b"], False),
        ([1, 2], [[1, 2]], True),
        ([[1], [2]], [[1], [2]], True),
    ],
)
def test_prompts_come_in_four_forms(prompt: object, prompts: list, ids: bool):
    """Text or ids, one or several."""
    ask = parse_completion({"prompt": prompt})
    assert (ask.prompts, ask.prompts_are_ids) == (prompts, ids)


def test_continuous_usage_needs_usage():
    """As in vLLM, it means nothing alone."""
    options = {"continuous_usage_stats": True}
    ask = parse_chat(CHAT | {"stream": True, "stream_options": options}, "m")
    assert not ask.continuous_usage


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"n": 16385},
        {"prompt_logprobs": 1},
        {"use_beam_search": True},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user", "content": None}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [], "tool_choice": None},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
    ],
)
def test_what_is_not_simulated_is_refused(fields: dict):
    """Rather than pretended."""
    with pytest.raises(ApiError):
        parse_chat(CHAT | fields, "m")


def test_tools_and_calls_come_to_the_template_as_the_real_one_hands_them_over():
    """Also where none may be called; a pod that is told to takes the others."""
    tools = [{"type": "function", "function": {"name": "f", "x": 1}}]
    function = {"name": "f", "arguments": "{}"}
    call = {"type": "function", "id": "c", "function": function, "index": 0}
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c"},
    ]
    for choice, takes in (("none", False), ("auto", True)):
        body = CHAT | {"messages": messages, "tools": tools, "tool_choice": choice}
        asked = parse_chat(body, "m", takes_tools=takes).prompts
        assert asked.tools == [
            {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
        ]
        assert asked.messages[-2:] == [
            {
                "role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm",
                "tool_calls": [call | {"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "content": "x", "tool_call_id": "c"},
        ]  # fmt: skip


def test_a_request_has_no_more_prompts_than_vllm_takes():
    """Whatever they are; token ids are one prompt, however many."""
    for prompts in (["hi"] * 1025, [[1]] * 1025, [None] * 1025):
        with pytest.raises(ApiError, match="prompt list length 1025 exceeds the maximum allowed"):
            parse_completion({"prompt": prompts})
    assert len(parse_completion({"prompt": ["hi"] * 1024}).prompts) == 1024
    assert len(parse_completion({"prompt": [1] * 5000}).prompts[0]) == 5000


def test_answers_to_all_prompts_together_are_bounded():
    """The engine itself bounds them for each prompt alone."""
    assert parse_completion({"prompt": ["a"] * 1024, "n": 16}).n == 16
    with pytest.raises(ApiError, match="got 1024 prompts with n=17"):
        parse_completion({"prompt": ["a"] * 1024, "n": 17})


@pytest.mark.parametrize("wrong", [[1, -1], [1, 2.5], [1, None], [1, [2]]])
def test_token_ids_that_are_none_are_found_in_their_place(wrong: list):
    """As they are where there is nothing else wrong."""
    with pytest.raises(ApiError, match=r"validation errors?:\n.*'loc': 'body.prompt"):
        parse_completion({"prompt": wrong})


def test_more_stop_strings_than_vllm_takes_are_refused():
    """Each is looked for behind every token."""
    assert parse_chat(CHAT | {"stop": ["a", "b", "c", "d"]}, "m").stop == ("a", "b", "c", "d")
    with pytest.raises(ApiError, match="at most 4 items"):
        parse_chat(CHAT | {"stop": list("abcde")}, "m")


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0b", "x" * 129])
def test_a_salt_that_vllm_forbids_is_refused(salt: str):
    """In its words, which name the backslash twice."""
    with pytest.raises(ApiError, match="at most 128 characters") as raised:
        parse_chat(CHAT | {"cache_salt": salt}, "m")
    assert r"'@', '/', '\\', or NUL. (parameter=cache_salt)" in str(raised.value)
    assert parse_chat(CHAT | {"cache_salt": "x" * 128}, "m").cache_salt == "x" * 128
