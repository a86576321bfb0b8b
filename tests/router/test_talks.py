"""Conversations that begin as earlier ones did."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router.test_chats import contents, edits, fields, histories
from tool_templates import ALL
from vllm_chats import model_of

from kvbench.router.model_tokens import laid_out
from kvbench.router.talks import KnownTalks
from kvbench.router.tokens import PromptTokens

STRETCH = 64
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
MODELS = {name: model_of(template) for name, template in ALL.items()}

text = st.fixed_dictionaries({"type": st.just("text"), "text": contents})
system = st.fixed_dictionaries({"role": st.just("system"), "content": contents})
used = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [{"b": 1}, {"c": "é"}]}}
result = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": st.just("c"), "content": contents}
)
thought = st.fixed_dictionaries({"type": st.just("thinking"), "thinking": contents})
users = st.fixed_dictionaries(
    {"role": st.just("user"), "content": contents | st.lists(text | result, max_size=3)}
)
answers = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": contents | st.lists(text | st.just(used) | thought, max_size=3),
    }
)
anthropic = st.lists(users | answers | users | answers | system, max_size=4)
told = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": contents})
items = st.lists(
    told
    | st.fixed_dictionaries({"type": st.just("reasoning"), "summary": st.just([])})
    | st.builds(
        lambda name: {"type": "function_call", "name": name, "arguments": "{}", "call_id": "c"},
        st.sampled_from(["f", '},{"']),
    )
    | st.builds(
        lambda said: {"type": "function_call_output", "call_id": "c", "output": said}, contents
    )
    | system,
    max_size=5,
)
extras = st.sampled_from(
    [
        '"system":"be kind"', '"instructions":"be kind"', '"instructions":null', '"input":[]',
        '"in\\u0070ut":[{"role":"user","content":"again"}]', '"tools":[]',
        '"tools":[{"name":"f","input_schema":{"a":[{"b":1}]}}]',
        '"tools":[{"type":"function","name":"f","parameters":{"b":1}}]',
    ]
)  # fmt: skip


@st.composite
def talks(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """Draw bodies of one form, of which many begin alike."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return kind, draw(histories())
    name, messages = (("messages", anthropic), ("input", items))[kind - 1]
    said, bodies = draw(messages) + draw(messages), []
    before, around = draw(st.lists(extras, max_size=2)), st.lists(extras | fields, max_size=2)
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")]))
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.booleans()):
            said = said + draw(messages)
        array = json.dumps(said, ensure_ascii=draw(st.booleans()), separators=(comma, colon))
        parts = [*before, f'"{name}"{colon}{array}', *draw(around)]
        body = ("{" + comma.join(parts) + "}").encode("utf-8", "surrogatepass")
        for place, bytes_ in draw(edits) if draw(st.integers(0, 3)) == 0 else []:
            body = body[:place] + bytes_ + body[place + len(bytes_) :]
        bodies += [body] * draw(st.integers(1, 3))
    return kind, bodies


def said(known: KnownTalks, kind: int, body: bytes, model) -> object:
    """Return what a body says: its text, the messages, and all beside them; or that it fails."""
    try:
        talk, before, _ = known.read(kind, body)
        found = talk.conversation(model.tokenizer, before)
        laid = laid_out(model, talk, before)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    except Exception as error:  # noqa: BLE001 - the same must come of it
        return type(error), str(error)
    beside = msgspec.structs.asdict(talk)
    del beside["input" if kind == 2 else "messages"]
    rest = None if found is None else (found.messages, found.tools, found.arguments, found.answered)
    return laid, rest, beside


@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(talks(), st.sampled_from(sorted(MODELS)))
def test_a_body_says_the_same_whatever_came_before(drawn, name):
    """Or is as little understood."""
    kind, bodies = drawn
    known, model = KnownTalks(STRETCH), MODELS[name].models["m"]
    for body in bodies:
        assert said(known, kind, body, model) == said(KnownTalks(STRETCH), kind, body, model)


def conversation(kind: int, turns: int, *, behind: bool) -> bytes:
    """Return an agent's request, a call more with each turn; tools before or behind all of it."""
    ask = {"role": "user", "content": "What is in them?"}
    messages: list[object] = [ask]
    for turn in range(turns):
        asked, answered = json.dumps({"path": f"/{turn} " * 9}), f"{turn:3} " * 30
        messages += (
            [
                {"role": "assistant", "tool_calls": [
                    {"id": f"c{turn}", "type": "function",
                     "function": {"name": "read", "arguments": asked}}]},
                {"role": "tool", "tool_call_id": f"c{turn}", "content": answered},
            ],
            [
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": f"c{turn}", "name": "read", "input": {"a": asked}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": f"c{turn}", "content": answered}]},
            ],
            [
                {"type": "function_call", "name": "read", "arguments": asked,
                 "call_id": f"c{turn}"},
                {"type": "function_call_output", "call_id": f"c{turn}", "output": answered},
            ],
        )[kind]  # fmt: skip
    tool = (
        {"type": "function", "function": {"name": "read" * 99}},
        {"name": "read" * 99, "input_schema": {}},
        {"type": "function", "name": "read" * 99},
    )[kind]
    name, tools = "input" if kind == 2 else "messages", {"tools": [tool]}
    body = {"model": "m", name: messages}
    return json.dumps(body | tools if behind else tools | body).encode()


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("kind", range(3))
def test_of_an_agents_turn_only_what_did_not_come_twice_before_is_decoded(kind, behind):
    """But for the stretch in which that ends, and a message."""
    known = KnownTalks(STRETCH)
    for turns in range(1, 9):
        body = conversation(kind, turns, behind=behind)
        start, _, _ = known.find(kind, body)
        talk, before, done = known.read(kind, body)
        assert done == start.at
        assert start.count + talk.length == 2 * turns + 1
        assert bool(before) == bool(done)
        assert turns < 4 or done > body.index(b'c%d"' % (turns - 4))


def test_what_comes_once_is_not_kept():
    """Nor is it known in another form of body."""
    known = KnownTalks(STRETCH)
    for number in range(50):
        known.read(
            0,
            json.dumps({"messages": [{"role": "user", "content": f"{number} " * 99}] * 3}).encode(),
        )
    assert len(known) == 0
    body = conversation(1, 5, behind=True)
    for _ in range(3):
        known.read(1, body)
    assert known.find(1, body)[0].at > 0
    assert known.find(0, body)[0].at == 0


def test_starts_that_are_not_used_are_dropped():
    """Those that are used stay, in the younger generation."""
    known = KnownTalks(STRETCH, most=40)
    bodies = [conversation(0, 3, behind=True).replace(b"What", b"W%03d" % n) for n in range(30)]
    for body in bodies[1:]:
        for one in (body, body, bodies[0]):
            known.read(0, one)
    assert 40 <= len(known) < 2 * 40 + STRETCH
    assert known.find(0, bodies[0])[0].at > 0
    assert known.find(0, bodies[1])[0].at == 0


def test_a_turn_that_a_template_sees_is_made_once():
    """What many prompts have in them is one object in all of them."""
    tokens = PromptTokens()
    tokens.models["m"] = MODELS[next(iter(MODELS))].models["m"]
    tokens._talks = KnownTalks(STRETCH)
    body = conversation(0, 5, behind=True)
    found = [tokens.parse(PATHS[0], body) for _ in range(4)]
    first, second = (one.before[0].seen(parts=False) for one in found[2:])
    assert first is second
