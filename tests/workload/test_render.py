"""What is sent: exact token counts, exact shared prefixes, and a body a server understands."""

from __future__ import annotations

import json
from dataclasses import replace

import fakes_text
import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.build import build_plan
from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment
from kvbench.workload.render import Renderer

SHIPPED = Tokenizer.load()
CHATS = fakes_workload.workloads(api="chat")


def a_turn(*messages, index=0, session="s", turn=1, at=0.0):
    """A turn of (role, key, tokens)."""
    return PlannedTurn(
        index=index,
        session=session,
        turn=turn,
        group="g",
        at=at,
        think=0.0,
        messages=tuple(Message(role, (Segment(key, n),)) for role, key, n in messages),
        max_tokens=9,
        answer_key="answer/0",
    )


TALK = a_turn(
    ("system", "p", 40), ("user", "u1", 5), ("assistant", "answer/0", 9), ("user", "u2", 3)
)


REORDERED = (
    "{% for m in messages[1:] %}{% if loop.last %}{{ messages[0].content }}\n\n{% endif %}"
    "<|user|>{{ m.content }}<|end|>{% endfor %}"
)


def a_plan(*turns, api="chat", history="planned"):
    """A plan of given turns."""
    return Plan("p", 1, api, history, turns)


@pytest.fixture(params=["marked", "headed", "bracketed"])
def template(request):
    """Templates that differ in what stands beside the content."""
    return getattr(fakes_text, request.param.upper())


@pytest.mark.parametrize("kind", ["byte_level", "prepended", "unigram", "word_piece"])
def test_the_tokens_of_a_chat_are_known_without_tokenising_it(kind, template):
    """For each kind of tokenizer and template: exactly what a server computes."""
    tokenizer = getattr(fakes_text, kind)(template)
    renderer = Renderer(a_plan(TALK), tokenizer)
    expected = tokenizer.encode_chat(renderer.messages(TALK))
    assert list(renderer.prompt_ids(TALK)) == expected
    assert renderer.prompt_tokens(TALK) == len(expected)


@given(workload=CHATS, seed=st.integers(0, 99))
def test_every_prompt_of_a_plan_has_the_tokens_that_were_planned(workload, seed):
    """Whole plans with the shipped tokenizer, every turn tokenised in full."""
    plan = build_plan(workload, seed)
    renderer = Renderer(plan, SHIPPED)
    for turn in plan.turns:
        ids = list(renderer.prompt_ids(turn))
        assert ids == SHIPPED.encode_chat(renderer.messages(turn))
        assert len(ids) == renderer.prompt_tokens(turn)
        flat = [
            (piece,) if isinstance(piece, int) else renderer.composer.ids(piece.key, piece.tokens)
            for piece in renderer.pieces(turn)
        ]
        assert sum(map(len, flat)) == len(ids)


@given(workload=fakes_workload.workloads())
def test_prompts_share_exactly_the_tokens_that_they_share_in_the_plan(workload):
    """Two first turns have in common their prefix, the template around it, and no more."""
    plan = build_plan(workload, 1)
    renderer = Renderer(plan, SHIPPED)
    firsts = [turn for turn in plan.turns if turn.turn == 1][:4]
    for left in firsts:
        for right in firsts:
            shared = common(flattened(renderer, left), flattened(renderer, right))
            in_tokens = common(renderer.prompt_ids(left), renderer.prompt_ids(right))
            assert shared <= in_tokens <= shared + 8  # a few first words may agree by chance


def flattened(renderer, turn):
    """The prompt as one name per token."""
    return [
        name
        for piece in renderer.pieces(turn)
        for name in (
            [piece] if isinstance(piece, int) else [(piece.key, i) for i in range(piece.tokens)]
        )
    ]


def common(left, right):
    """Length of the common beginning."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def test_a_chat_body_is_what_the_endpoint_expects():
    """Streamed, with usage, of exactly so many tokens, whatever the model would like."""
    renderer = Renderer(a_plan(TALK), SHIPPED)
    assert json.loads(renderer.body(TALK, 'a "model"')) == {
        "model": 'a "model"',
        "messages": renderer.messages(TALK),
        "max_tokens": 9,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert json.loads(renderer.body(TALK, "m", cache_salt="x\n"))["cache_salt"] == "x\n"


def test_a_completions_body_has_the_prompt_as_tokens():
    """No template, no tokenising on the way."""
    renderer = Renderer(a_plan(TALK, api="completions"), SHIPPED)
    body = json.loads(renderer.body(TALK, "m"))
    assert body["prompt"] == list(renderer.prompt_ids(TALK))
    assert len(body["prompt"]) == renderer.prompt_tokens(TALK) == TALK.content_tokens == 57
    assert "messages" not in body


def test_real_answers_stand_for_planned_ones_where_the_plan_says_so():
    """And only there; an answer that never came stays as planned."""
    answers = {"answer/0": 'It said "no".\n'}
    real = Renderer(a_plan(TALK, history="answers"), SHIPPED)
    planned = Renderer(a_plan(TALK), SHIPPED)
    assert real.messages(TALK, answers)[2]["content"] == 'It said "no".\n'
    assert json.loads(real.body(TALK, "m", answers=answers))["messages"] == real.messages(
        TALK, answers
    )
    assert real.messages(TALK, {}) == planned.messages(TALK, answers) == planned.messages(TALK)
    as_ids = Renderer(a_plan(TALK, api="completions", history="answers"), SHIPPED)
    prompt = json.loads(as_ids.body(TALK, "m", answers=answers))["prompt"]
    assert prompt[45:-3] == SHIPPED.encode('It said "no".\n')


@pytest.mark.parametrize("template", [fakes_text.MARKED, REORDERED], ids=["marked", "reordered"])
def test_what_was_rendered_before_changes_no_token(template):
    """Conversations that grow, shrink and change their roles, against renderers without a past."""
    tokenizer = fakes_text.byte_level(template)
    said = [("system", "p", 9)] + [
        (("user", "assistant")[i % 2], f"m{i}", 3 + i % 5) for i in range(12)
    ]
    talks = [a_turn(*said[:n]) for n in (2, 4, 12, 6, 8)] + [a_turn(*said[1:n]) for n in (3, 9)]
    renderer = Renderer(a_plan(TALK), tokenizer)
    for talk in talks:
        assert renderer.prompt_ids(talk) == Renderer(a_plan(TALK), tokenizer).prompt_ids(talk)


def test_a_template_may_reorder_messages():
    """Mistral's way: the system prompt stands before the last question."""
    tokenizer = fakes_text.byte_level(REORDERED)
    renderer = Renderer(a_plan(TALK), tokenizer)
    assert list(renderer.prompt_ids(TALK)) == tokenizer.encode_chat(renderer.messages(TALK))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        pytest.param("{{ messages[-1].content }}", "does not keep the text", id="drops messages"),
        pytest.param(
            "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
            "does not keep the text",
            id="changes the text",
        ),
        pytest.param("{{ raise_exception('no system role') }}", "no system role", id="refuses"),
        pytest.param(
            "{% for m in messages %}{{ m.content }}"
            "{% if m.content | length > 60 %}!{% endif %}<|end|>{% endfor %}",
            "does not tokenise to the tokens",
            id="depends on the text",
        ),
    ],
)
def test_a_template_that_makes_lengths_unknowable_is_refused(template, says):
    """Before anything is sent."""
    with pytest.raises(InputError, match=says):
        Renderer(a_plan(TALK), fakes_text.byte_level(template))


def test_without_a_template_only_completions_can_be_rendered():
    """The error says which way is open."""
    tokenizer = fakes_text.byte_level()
    tokenizer._template = None
    with pytest.raises(InputError, match="no chat template"):
        Renderer(a_plan(TALK), tokenizer)
    assert Renderer(a_plan(TALK, api="completions"), tokenizer).prompt_tokens(TALK) == 57


def test_a_seed_makes_the_words():
    """The same plan under another seed has the same lengths and other words."""
    one, two = Renderer(a_plan(TALK), SHIPPED), Renderer(replace(a_plan(TALK), seed=2), SHIPPED)
    assert one.messages(TALK) != two.messages(TALK)
    assert one.prompt_tokens(TALK) == two.prompt_tokens(TALK)
