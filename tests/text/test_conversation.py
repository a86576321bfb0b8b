"""What a chat template is handed."""

from __future__ import annotations

import msgspec
import pytest

from kvbench.text.conversation import (
    KnownTools,
    Message,
    Spoken,
    Tool,
    handed_over,
    read_tools,
    tools_seen,
)


def seen(message: dict[str, object], *, parts: bool = False) -> list[tuple[str, object]]:
    """Return a message as a template sees it, in its order."""
    return list(msgspec.convert(message, Message).seen(parts=parts).items())


def call(arguments: str, **more: object) -> dict[str, object]:
    """Return a call."""
    function = {"name": "f", "arguments": arguments}
    return {"type": "function", "id": "c", "function": function, **more}


def test_a_tool_has_what_was_left_out_and_nothing_that_is_not_known():
    """In the server's order; a template that prints it as JSON shows both."""
    tool = {"function": {"strict": False, "name": "f", "x": 1}, "type": "function", "y": 2}
    (found,) = tools_seen(msgspec.convert([tool], list[Tool]))
    assert msgspec.json.encode(found).decode() == (
        '{"type":"function","function":'
        '{"name":"f","description":null,"parameters":null,"strict":false}}'
    )
    assert tools_seen(None) is None


@pytest.mark.parametrize(
    ("outer", "inner", "seen"),
    [(None, None, (None, None)), (True, None, (True, True)), (None, True, (None, True)),
     (True, False, (True, False))],
)  # fmt: skip
def test_who_defers_a_tool_defers_its_function(outer, inner, seen):
    """Unless that says otherwise."""
    tool = {"function": {"name": "f", "defer_loading": inner}, "defer_loading": outer}
    found = msgspec.convert(tool, Tool).seen()
    assert (found.get("defer_loading"), found["function"].get("defer_loading")) == seen


@pytest.mark.parametrize(
    ("arguments", "object_"),
    [('{"b": 1, "a": [NaN]}', '{"b":1,"a":[null]}'), ("", "{}"), ("[1]", "{}"), ("{", "{}")],
)
def test_arguments_are_the_object_that_their_json_says(arguments, object_):
    """None, if it says no object."""
    message = {"role": "assistant", "tool_calls": [call(arguments, index=0)]}
    assert msgspec.json.encode(dict(seen(message))).decode() == (
        '{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"arguments":'
        + object_ + ',"name":"f"},"type":"function","index":0}]}'
    )  # fmt: skip


def test_arguments_with_which_a_server_fails_are_no_arguments():
    """A number of five thousand digits."""
    with pytest.raises(ValueError, match="digits"):
        seen({"role": "assistant", "tool_calls": [call('{"a": ' + "1" * 5000 + "}")]})


def test_thoughts_have_two_names_and_an_empty_list_of_calls_is_none():
    """What a model refused to say no template is handed."""
    message = {
        "role": "assistant", "content": "x", "tool_calls": [], "refusal": "no", "name": "bob",
        "reasoning_content": "hm",
    }  # fmt: skip
    assert seen(message) == [
        ("role", "assistant"), ("content", "x"), ("reasoning", "hm"), ("reasoning_content", "hm"),
        ("name", "bob"),
    ]  # fmt: skip
    assert dict(seen(message | {"reasoning": "ah"}))["reasoning_content"] == "ah"


def test_a_content_is_its_texts_that_are_not_empty_or_a_list_of_all_of_them():
    """A list has the marks of what to cache, too."""
    mark = {"type": "ephemeral"}
    texts = [{"type": "text", "text": text} for text in ("", "a", "b")]
    message = {"role": "user", "content": [*texts, {**texts[0], "cache_control": mark}]}
    assert dict(seen(message))["content"] == "a\nb"
    assert dict(seen(message, parts=True))["content"] == message["content"]
    assert dict(seen({"role": "assistant"}, parts=True))["content"] == []
    assert dict(seen({"role": "user", "content": "a"}, parts=True))["content"] == texts[1:2]


def test_what_a_tool_answered_is_one_text_for_every_template():
    """With all of its lines, where contents are lists."""
    texts = [{"type": "text", "text": text} for text in ("", "a")]
    message = {"role": "tool", "content": texts, "tool_call_id": "c"}
    assert seen(message) == [("role", "tool"), ("content", "a"), ("tool_call_id", "c")]
    assert dict(seen(message, parts=True))["content"] == "\na"


@pytest.mark.parametrize("parts", [False, True])
def test_the_line_that_only_billing_wants_is_taken_away(parts):
    """It changes from turn to turn; only of a system message, as the server does it."""
    bill = "x-anthropic-billing-header: cch=12;"
    texts = [{"type": "text", "text": text} for text in (bill, f"{bill}\nBe kind.", "now")]
    found = dict(seen({"role": "system", "content": texts}, parts=parts))["content"]
    left = [{"type": "text", "text": text} for text in ("Be kind.", "now")]
    assert found == (left if parts else "Be kind.\nnow")
    assert dict(seen({"role": "system", "content": bill}))["content"] == ""
    assert dict(seen({"role": "user", "content": bill}))["content"] == bill


@pytest.mark.parametrize(
    ("message", "sound"),
    [
        ({"role": "user", "content": ""}, True),
        ({"role": "user"}, False),
        ({"role": "tool", "content": "", "tool_call_id": "c"}, True),
        ({"role": "assistant"}, True),
        ({"role": "assistant", "tool_call_id": "c"}, False),
        ({"role": "user", "content": "", "reasoning": ""}, False),
        ({"role": "system", "content": "", "tool_calls": []}, False),
    ],
)
def test_what_only_others_may_have_is_not_sound(message, sound):
    """A server may refuse it, or pass over it: it was not tried."""
    assert msgspec.convert(message, Message).sound is sound


def test_tools_that_came_before_are_not_read_again():
    """The same bytes, the same objects; so many are kept, those used last."""
    known = KnownTools(read_tools, most=2)
    raw = [msgspec.Raw(b'[{"function":{"name":"%d"}}]' % number) for number in range(3)]
    first = known.seen(raw[0])
    assert first == [
        {"type": "function", "function": {"name": "0", "description": None, "parameters": None}}
    ]
    assert known.seen(raw[1]) is not first
    assert known.seen(raw[0]) is first
    known.seen(raw[2])
    assert known.seen(raw[0]) is first
    assert known.seen(msgspec.Raw(b"null")) is known.seen(msgspec.Raw()) is None
    with pytest.raises(ValueError, match="function"):
        known.seen(msgspec.Raw(b'[{"type":"function"}]'))


def test_tools_that_are_very_long_are_not_kept():
    """There is room for 64 of a hundred kilobytes."""
    raw = msgspec.Raw(b'[{"function":{"name":"f","description":"%s"}}]' % (b"x" * 200_000))
    known = KnownTools(read_tools)
    assert known.seen(raw) == known.seen(raw)
    assert known.seen(raw) is not known.seen(raw)


@pytest.mark.parametrize(
    ("roles", "developers", "expected"),
    [
        ("su", False, "s:0 u:1"),
        ("sus", False, "s:0 u:1 s:2"),
        ("du", False, "s:0 u:1"),
        ("sdu", False, "s:0-1 u:2"),
        ("udus", False, "s:1-3 u:0 u:2"),
        ("udus", True, "u:0 d:1 u:2 s:3"),
    ],
)
@pytest.mark.parametrize("parts", [False, True])
def test_a_developer_is_the_system_unless_the_template_knows_him(
    roles, developers, expected, parts
):
    """And then all that the system says goes first, in one."""
    names = {"s": "system", "d": "developer", "u": "user"}
    messages = [Message(names[role], str(number)) for number, role in enumerate(roles)]
    found = handed_over([Spoken(messages)], parts=parts, developers=developers)

    def text(content):
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    told = [f"{one['role'][0]}:{text(one['content'])}".replace("\n\n", "-") for one in found]
    assert " ".join(told) == expected
    assert [one["tools"] for one in found if "tools" in one] == [None] * expected.count("d:")
