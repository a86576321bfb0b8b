"""What a response's input says; most of it is tried against what a real vLLM made of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from fakes_text import byte_level

from kvbench.router.inputs import Responses

if TYPE_CHECKING:
    from kvbench.router.conversations import Conversation
    from kvbench.text.conversation import Message

ASK = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What?"}]}
CALL = {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "c"}
ANSWER = {"type": "function_call_output", "call_id": "c", "output": "42"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
THOUGHT = {
    "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}],
}  # fmt: skip


def read(*items: object, **fields: object) -> Conversation | None:
    """Return what a response's items say."""
    body = json.dumps({"model": "m", "input": items} | fields).encode()
    return msgspec.json.decode(body, type=Responses).conversation(byte_level())


def said_by(*items: object) -> list[Message]:
    """Return the messages that a response's items become."""
    return read(*items).messages


def test_thoughts_a_text_and_calls_are_one_turn():
    """As long as each says something new."""
    found = read(ASK, THOUGHT, CALL, CALL, SAID, ANSWER, SAID, SAID)
    turns = [message.seen(parts=False) for message in found.messages]
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("user", "What?"), ("assistant", "so"), ("tool", "42"), ("assistant", "so"),
        ("assistant", "so"),
    ]  # fmt: skip
    assert (turns[1]["reasoning"], len(turns[1]["tool_calls"])) == ("hm", 2)
    assert turns[2]["tool_call_id"] == "c"


def test_what_a_server_answered_is_sent_back_as_it_came():
    """With the nulls that it has, or that OpenAI's client makes of them."""
    text = {"type": "output_text", "text": "so", "annotations": [], "logprobs": None}
    thought = THOUGHT | {"id": "t", "encrypted_content": None, "status": None}
    said = SAID | {"id": "m", "status": "completed", "phase": None, "content": [text]}
    beside = {"id": "f", "status": "completed", "caller": None, "namespace": None}
    for call in (CALL | beside | {"async": None}, CALL | beside | {"async_": None}):
        assert said_by(ASK, thought, said, call, ANSWER) == said_by(
            ASK, THOUGHT, SAID, CALL, ANSWER
        )
    parsed = SAID | {"content": [text | {"parsed": None}]}
    assert said_by(ASK, parsed, CALL | {"parsed_arguments": None}) == said_by(ASK, SAID, CALL)
    nulls = dict.fromkeys(("id", "status", "name", "namespace", "caller"))
    assert said_by(CALL, ANSWER | nulls) == said_by(CALL, ANSWER)


def test_what_a_function_answered_in_several_texts_is_a_line_each():
    """As it is in a chat."""
    texts = [{"type": "input_text", "text": text} for text in ("4", "", "2")]
    (answer,) = read(ANSWER | {"output": texts}).messages
    assert (answer.role, answer.tool_call_id) == ("tool", "c")
    assert answer.seen(parts=False)["content"] == "4\n2"
    assert answer.seen(parts=True)["content"] == "4\n\n2"


def test_a_call_has_its_name_before_its_arguments():
    """The server makes it; what clients send in chats it puts in another order."""
    (call,) = read(CALL).messages[0].seen(parts=False)["tool_calls"]
    assert json.dumps(call) == (
        '{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}, "type": "function"}'
    )


def test_instructions_come_first_and_a_text_is_a_users():
    """Functions are the tools; what the server has of its own it leaves out."""
    tools = [{"type": "function", "name": "f", "x": 1}, {"type": "web_search"}]
    found = read(input="What?", instructions="be kind", tools=tools, tool_choice="none")
    assert [(one.role, one.content) for one in found.messages] == [
        ("system", "be kind"), ("user", "What?"),
    ]  # fmt: skip
    function = {"name": "f", "description": None, "parameters": None}
    assert (found.tools, found.certain) == ([{"type": "function", "function": function}], False)
    assert read(ASK, tools=[]).tools is None
    assert read(ASK, tools=[{"type": "web_search"}]).tools == []
    assert read(ASK, reasoning={"effort": "low"}).arguments["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    "item",
    [
        THOUGHT | {"encrypted_content": "x"},
        {"type": "item_reference", "id": "x"},
        {"type": "custom_tool_call", "name": "f", "input": "x", "call_id": "c"},
        ANSWER | {"output": [{"type": "input_image", "image_url": "x"}]},
        ANSWER | {"output": [{"type": "output_text", "text": "x"}]},
        ANSWER | {"name": "f"},
        SAID | {"status": "incomplete"},
        SAID | {"phase": "x"},
        CALL | {"namespace": "n"},
        CALL | {"async": True},
        ASK | {"content": [{"type": "input_image", "image_url": "x"}]},
        {"role": "tool", "content": "x"},
    ],
)
def test_items_of_other_kinds_are_not_known(item):
    """What they become was not tried."""
    with pytest.raises(msgspec.ValidationError):
        read(ASK, item)


@pytest.mark.parametrize(
    "item",
    [
        SAID | {"content": []},
        ASK | {"content": SAID["content"]},
        SAID | {"content": ASK["content"]},
        {"role": "assistant", "content": "x", "id": "y"},
    ],
)
def test_a_content_of_another_role_is_not_known(item):
    """Nor an answer without one."""
    assert read(ASK, item) is None


@pytest.mark.parametrize(
    "fields", [{"previous_response_id": "r"}, {"tools": [{"type": "custom", "name": "f"}]}]
)
def test_what_is_not_in_the_body_is_not_known(fields):
    """A response that it continues; tools of other kinds."""
    with pytest.raises(msgspec.ValidationError):
        read(ASK, **fields)
