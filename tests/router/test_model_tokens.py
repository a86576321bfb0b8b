"""A model's tokens, and how far they are relied on; `test_tokens.py` has what comes of it."""

from __future__ import annotations

import json

import msgspec
import pytest
from fakes_text import byte_level
from tool_templates import TAGGED
from vllm_chats import model_of

from kvbench.router.conversations import Chat
from kvbench.router.model_tokens import FORMS, ModelTokens, laid_out
from kvbench.text.agreement import PROBE_CHAT
from kvbench.text.prefix_store import PrefixStore


def chat(*messages: object, **fields: object) -> Chat:
    """Return the body of a chat."""
    return msgspec.json.decode(json.dumps({"messages": messages} | fields), type=Chat)


ASK = {"role": "user", "content": "What?"}


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (chat(ASK), ""),
        (chat(ASK | {"content": [{"type": "text", "text": "What?"}]}), "parts"),
        (chat(ASK, tools=[{"function": {"name": "f"}}]), "tools"),
        (chat(ASK, reasoning_effort="low"), "tools"),
        (chat(ASK, chat_template_kwargs={"enable_thinking": None}), ""),
        (chat({"role": "assistant", "content": "x", "reasoning": "y"}, ASK), "tools"),
        (chat({"role": "developer", "content": "x"}, ASK), "tools"),
    ],
)
def test_a_chat_has_the_form_of_what_is_most_in_it(body, form):
    """Forms are trusted apart, so each has a name in the log."""
    model = model_of(TAGGED).models["m"]
    assert laid_out(model, body)[0] == form
    assert form in FORMS
    model.distrust("it is another one", form)
    assert laid_out(model, body) is None


def test_one_count_in_a_hundred_may_be_another_and_two_of_few():
    """More than that, and the form is given up; the first difference is named."""
    model = model_of(TAGGED).models["m"]
    found = []
    for number in range(1, 400):
        model.count(7, 7 if number % 90 else 9, "tools")
        found.append(model.of("tools").trouble is not None)
    assert (found.index(True), model.trouble) == (269, None)
    assert model.of("tools").trouble.startswith("the pod counted 9 prompt tokens where ours are 7:")


@pytest.mark.parametrize("told", [False, True])
def test_what_a_pod_hands_to_its_template_by_default_is_found_by_trying(told):
    """What a client says goes before it."""
    model = model_of(TAGGED).models["m"]
    probe = model.tokenizer.template().render(PROBE_CHAT, arguments={"enable_thinking": told})
    assert model.difference(model.tokenizer.encode(probe)) is None
    empty = "<think>\n\n</think>\n\n"
    for fields, thinks in (
        ({}, told),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
    ):
        assert "".join(laid_out(model, chat(ASK, **fields))[1]).endswith(empty) == (not thinks)


def test_how_a_pod_differs_is_said_though_our_template_refuses():
    """The first difference, or what the template says."""
    model = model_of(TAGGED).models["m"]
    assert "the chat template of the server is another one" in model.difference([1, 2])
    strict = model_of("{{ raise_exception('no system') }}").models["m"]
    assert "no system" in strict.difference([1, 2])


def test_hashes_are_kept_by_the_size_of_blocks():
    """Models that differ in it do not share a store; one has the same each time."""
    model = ModelTokens("m", byte_level(), PrefixStore(byte_level()))
    assert model.chains(16) is model.chains(16)
    assert model.chains(16) is not model.chains(32)
