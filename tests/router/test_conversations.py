"""What a body says of a conversation; most of it is tried against what a real vLLM made of it."""

from __future__ import annotations

import json

import msgspec
import pytest
from fakes_text import byte_level

from kvbench.router.conversations import Chat, Conversation, Messages

LOOSE = "{% for m in messages %}{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('first') }}{% endif %}{{ m.content }}{% endfor %}"
)


def messages(template: str = LOOSE, **fields: object) -> Conversation | None:
    """Return what Anthropic's form says to the model with that template."""
    body = json.dumps({"model": "m", "max_tokens": 1, **fields}).encode()
    return msgspec.json.decode(body, type=Messages).conversation(byte_level(template))


def said(found: Conversation) -> list[tuple[str, object]]:
    """Return the roles and contents."""
    return [(one["role"], one["content"]) for one in (m.seen(parts=False) for m in found.messages)]


def test_what_a_tool_answered_goes_before_what_its_user_says():
    """And calls and thoughts go beside what a model said."""
    use = {"type": "tool_use", "id": "c", "name": "read", "input": {"b": 1, "a": "é"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "42"}
    found = messages(
        messages=[
            {"role": "user", "content": "What?"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, use]},
            {"role": "user", "content": [{"type": "text", "text": "go on"}, result]},
        ]
    )
    assert said(found) == [("user", "What?"), ("assistant", ""), ("tool", "42"), ("user", "go on")]
    called, answered = (found.messages[at].seen(parts=False) for at in (1, 2))
    assert (called["reasoning"], answered["tool_call_id"]) == ("hm", "c")
    assert called["tool_calls"][0]["function"]["arguments"] == {"b": 1, "a": "é"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (LOOSE, [("system", "be kind"), ("user", "a"), ("system", "now"), ("user", "b")]),
        (STRICT, [("system", "be kindnow"), ("user", "a"), ("user", "b")]),
    ],
)
def test_what_the_system_says_later_goes_first_for_templates_that_want_it_so(template, expected):
    """As the server finds out by trying."""
    turns = [("user", "a"), ("system", "now"), ("user", "b"), ("system", "")]
    bill = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}
    found = messages(
        template,
        system=[bill, {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": role, "content": text} for role, text in turns],
    )
    assert said(found) == expected


def test_a_tool_of_anthropics_is_a_function_whose_schema_is_an_objects():
    """It has no other names in a template."""
    tool = {"name": "f", "input_schema": {"properties": {}}, "cache_control": {}}
    found = messages(messages=[], tools=[tool], tool_choice={"type": "none"})
    parameters = {"properties": {}, "type": "object"}
    function = {"name": "f", "description": None, "parameters": parameters}
    assert found.tools == [{"type": "function", "function": function}]
    assert not found.certain


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
        [{"type": "thinking", "thinking": "x"}],
        [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}],
        [{"type": "tool_result", "content": [{"type": "text", "text": 1}]}],
    ],
)
def test_what_a_user_does_not_say_is_not_known(content):
    """Nor are pictures."""
    assert messages(messages=[{"role": "user", "content": content}]) is None


def test_how_little_a_client_that_wants_no_thoughts_gets_is_for_the_server_to_say():
    """Where the template asks for it."""
    asks = {"messages": [{"role": "user", "content": "a"}], "thinking": {"type": "disabled"}}
    assert messages(**asks) is not None
    assert messages(LOOSE + "{{ enable_thinking }}", **asks) is None
    low = messages(**asks | {"thinking": None, "output_config": {"effort": "low"}})
    assert low.arguments == {"reasoning_effort": "low", "enable_thinking": True}


def test_token_ids_that_are_handed_on_are_not_the_conversations():
    """A server takes these instead."""
    body = {"messages": [{"role": "user", "content": "a"}]}
    for form in (Chat, Messages):
        msgspec.convert(body | {"kv_transfer_params": {"do_remote_decode": True}}, form)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(body | {"kv_transfer_params": {"prompt_token_ids": [1]}}, form)
