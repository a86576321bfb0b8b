"""Requests as agents send them: tools, calls, what these answered, thoughts; made by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

TEXTS = [
    "read it",
    "",
    "  spaces \n",
    "naïve ☃ 😀",
    "<tool_call>\n{}</tool_call>",
    'a "quote"',
    "1",
]
SCHEMAS = [
    {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}},
    {"properties": {}, "type": "object", "additionalProperties": False, "$schema": "x"},
    {},
    {
        "type": "object",
        "required": ["é"],
        "properties": {"é": {"enum": [1, 2.5, 1e30, None, True]}},
    },
]
BILL = "x-anthropic-billing-header: cch=1;"
INPUTS = [{}, {"path": "/é", "n": 3}, {"b": [1.5, None, "\ud83d\ude00"], "a": {"x": True}}]
ARGUMENTS = [
    "{}", "", '{"b": 1, "a": "é"}', '{"path":"/a/b","n":3}', "not json", "[1, 2]", "42", "null",
    '{"x": {"y": [1.0, 1e5, -0, null, true, "\\ud83d\\ude00"]}}', '{"a": 1, "a": 2}',
]  # fmt: skip


def _tool(rng: random.Random) -> dict[str, object]:
    """Return a tool; what may be left out sometimes is."""
    function: dict[str, object] = {"name": rng.choice(["read", "write_file", "run"])}
    tool: dict[str, object] = {"type": "function", "function": function}
    for name, values in (
        ("parameters", [*SCHEMAS, None]), ("description", [*TEXTS, None]),
        ("strict", [True, False, None]), ("unknown", [1]), ("defer_loading", [True, False]),
    ):  # fmt: skip
        if rng.random() < 0.4:
            function[name] = rng.choice(values)
    if rng.random() < 0.1:
        del tool["type"]
    if rng.random() < 0.1:
        tool["defer_loading"] = rng.choice([True, False, None])
    if rng.random() < 0.2:
        tool["cache_control"] = {"type": "ephemeral"}
    return tool


def _content(rng: random.Random) -> object:
    """Return a text, or a list of them."""
    if rng.random() < 0.6:
        return rng.choice(TEXTS)
    parts = []
    for _ in range(rng.randrange(4)):
        part = {"type": "text", "text": rng.choice(TEXTS)}
        if rng.random() < 0.2:
            part["cache_control"] = {"type": "ephemeral"}
        parts.append(part)
    return parts


def _assistant(rng: random.Random) -> dict[str, object]:
    """Return what a model said."""
    message: dict[str, object] = {"role": "assistant", "content": _content(rng)}
    if rng.random() < 0.6:
        message["tool_calls"] = [
            {
                **({"index": place} if rng.random() < 0.2 else {}),
                "type": "function",
                "id": f"call{place:05}",
                "function": {"name": "read", "arguments": rng.choice(ARGUMENTS)},
            }
            for place in range(rng.choice([0, 1, 1, 1, 2]))
        ]
        if rng.random() < 0.5:
            message["content"] = None
        if rng.random() < 0.2:
            del message["content"]
    for name, values in (
        ("reasoning_content", TEXTS), ("reasoning", [*TEXTS, None]), ("refusal", [None, "no"]),
        ("annotations", [[]]), ("audio", [None]), ("function_call", [None]), ("name", ["bob"]),
    ):  # fmt: skip
        if rng.random() < 0.15:
            message[name] = rng.choice(values)
    return message


def _messages(rng: random.Random) -> list[dict[str, object]]:
    """Return a conversation."""
    messages: list[dict[str, object]] = []
    if rng.random() < 0.7:
        text = rng.choice([*TEXTS, BILL, BILL + "\nYou are kind."])
        content = text if rng.random() < 0.7 else [{"type": "text", "text": t} for t in (text, "b")]
        messages.append({"role": rng.choice(["system", "system", "developer"]), "content": content})
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": _content(rng)})
        if rng.random() < 0.2:
            messages[-1]["name"] = "ann"
        if rng.random() < 0.05:
            messages[-1]["role"] = rng.choice(["system", "developer"])
        if rng.random() < 0.7:
            messages.append(_assistant(rng))
        for call in messages[-1].get("tool_calls") or []:
            messages.append({"role": "tool", "content": _content(rng), "tool_call_id": call["id"]})
            if rng.random() < 0.2:
                messages[-1]["name"] = "read"
    return messages


def chat(rng: random.Random) -> dict[str, object]:
    """Return the body of a chat."""
    body: dict[str, object] = {"model": "m", "messages": _messages(rng)}
    if rng.random() < 0.8:
        body["tools"] = [_tool(rng) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.5:
            body["tool_choice"] = rng.choice(["auto", "required", "none", None])
    for name, values in (
        ("reasoning_effort", ["none", "low", "high", None]), ("add_generation_prompt", [False]),
        ("chat_template_kwargs", [{"enable_thinking": False}, {"enable_thinking": None}, {}]),
        ("parallel_tool_calls", [False]),
    ):  # fmt: skip
        if rng.random() < 0.15:
            body[name] = rng.choice(values)
    return body


def _block(rng: random.Random, role: str) -> dict[str, object]:
    """Return a piece of one of Anthropic's messages."""
    kinds = {
        "text": {"text": rng.choice(TEXTS), "citations": None},
        "thinking": {"thinking": rng.choice(TEXTS), "signature": "x"},
        "redacted_thinking": {"data": "x"},
        "tool_use": {"id": "call00001", "name": "read", "input": rng.choice(INPUTS)},
        "tool_result": {"tool_use_id": "call00001", "content": _content(rng), "is_error": False},
    }
    allowed = ("text", "tool_result") if role == "user" else tuple(kinds)[:-1]
    kind = rng.choice(allowed if rng.random() < 0.97 else tuple(kinds))
    block = {"type": kind, **kinds[kind]}
    if rng.random() < 0.2:
        block["cache_control"] = {"type": "ephemeral"}
    return block


def messages(rng: random.Random) -> dict[str, object]:
    """Return the body of Anthropic's messages."""
    said = []
    for number in range(rng.randrange(1, 8)):
        role = "assistant" if number % 2 else "user"
        blocks = [_block(rng, role) for _ in range(rng.randrange(4))]
        said.append({"role": role, "content": blocks or rng.choice(TEXTS)})
        if rng.random() < 0.1:
            bill = [{"type": "text", "text": t} for t in (rng.choice(TEXTS), f"{BILL}\nx", "now")]
            said.append({"role": "system", "content": rng.choice([*TEXTS, BILL, bill])})
    body: dict[str, object] = {"model": "m", "max_tokens": 5, "messages": said}
    system = [{"type": "text", "text": rng.choice([*TEXTS, BILL])} for _ in range(3)]
    thinking = ["disabled", "adaptive"]
    for name, values in (
        ("system", [*TEXTS, BILL, system]), ("metadata", [{"user_id": "u"}]), ("stream", [True]),
        ("thinking", [{"type": rng.choice(thinking)}]), ("output_config", [{"effort": "low"}, {}]),
        ("chat_template_kwargs", [{"enable_thinking": False}]),
    ):  # fmt: skip
        if rng.random() < 0.3:
            body[name] = rng.choice(values)
    if rng.random() < 0.8:
        body["tools"] = [
            {"name": "read", "input_schema": dict(rng.choice(SCHEMAS))}
            | ({"description": rng.choice(TEXTS)} if rng.random() < 0.7 else {})
            | ({"strict": True, "type": "custom"} if rng.random() < 0.1 else {})
            for _ in range(rng.randrange(4))
        ]
        if rng.random() < 0.3:
            body["tool_choice"] = {"type": rng.choice(["auto", "any", "none"])}
    return body


def _item(rng: random.Random) -> dict[str, object]:
    """Return an item of a response's input."""
    text, beside = rng.choice(TEXTS), {"id": "x", "status": "completed"}
    beside = {name: beside[name] for name in beside if rng.random() < 0.3}
    kind = rng.choice(
        ["said", "said", "answer", "function_call", "function_call_output", "reasoning"]
    )
    if kind == "said":
        texts = [{"type": "input_text", "text": rng.choice(TEXTS)} for _ in range(rng.randrange(3))]
        role = rng.choice(["user", "user", "system", "developer"])
        typed = {"type": "message"} if rng.random() < 0.6 else {}
        return {**typed, "role": role, "content": rng.choice([text, texts])}
    if kind == "answer":
        texts = [{"type": "output_text", "text": text}, {"type": "output_text", "text": "b"}]
        content = rng.choice([text, texts[:1], texts[:1], texts])
        beside = {} if isinstance(content, str) else beside
        if rng.random() < 0.3:
            beside["phase"] = rng.choice([None, "final_answer"])
            texts[0] |= {"annotations": [], "logprobs": None}
        return {"type": "message", "role": "assistant", "content": content, **beside}
    nulls = dict.fromkeys(("caller", "namespace")) if rng.random() < 0.3 else {}
    if kind == "function_call":
        apart = {rng.choice(["async", "async_"]): None} if nulls else {}
        arguments = rng.choice(ARGUMENTS)
        return {
            "type": kind,
            "name": "read",
            "arguments": arguments,
            "call_id": "call00000",
            **(beside | nulls | apart),
        }
    if kind == "function_call_output":
        texts = [{"type": "input_text", "text": rng.choice(TEXTS)} for _ in range(rng.randrange(3))]
        output = rng.choice([text, text, texts])
        return {"type": kind, "call_id": "call00000", "output": output, **(beside | nulls)}
    thoughts = [{"type": "reasoning_text", "text": text}]
    summary = [{"type": "summary_text", "text": "brief"}] if rng.random() < 0.5 else []
    item = {"type": kind, "summary": summary, "content": rng.choice([None, [], thoughts, thoughts])}
    return item | ({"encrypted_content": None} if rng.random() < 0.3 else {})


def responses(rng: random.Random) -> dict[str, object]:
    """Return the body of a response."""
    items = [_item(rng) for _ in range(rng.randrange(1, 9))]
    body: dict[str, object] = {"model": "m", "input": items if rng.random() < 0.95 else "What?"}
    for name, values in (
        ("instructions", [*TEXTS, BILL]), ("prompt_cache_key", ["k"]), ("store", [False]),
        ("reasoning", [{"effort": "low", "summary": "auto"}, None, {}]),
        ("parallel_tool_calls", [False]), ("truncation", ["disabled"]),
        ("chat_template_kwargs", [{"enable_thinking": False}]),
    ):  # fmt: skip
        if rng.random() < 0.3:
            body[name] = rng.choice(values)
    if rng.random() < 0.8:
        functions = [_tool(rng)["function"] for _ in range(rng.randrange(4))]
        body["tools"] = [{"type": "function", **function} for function in functions]
        if rng.random() < 0.1:
            body["tools"].append({"type": "web_search"})
        if functions and rng.random() < 0.3:
            body["tool_choice"] = rng.choice(["auto", "required", "none"])
    return body


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PATHS = {CHAT: chat, MESSAGES: messages, RESPONSES: responses}
"""By path: what makes a body for it."""
