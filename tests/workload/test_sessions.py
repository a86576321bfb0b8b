"""Sessions with tools, sub-agents, reasoning, windows and users: who waits, who repeats what."""

from __future__ import annotations

from dataclasses import replace

import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.build import build_plan
from kvbench.workload.distributions import Constant, Uniform
from kvbench.workload.plan import Segment
from kvbench.workload.render import Renderer
from kvbench.workload.spec import (
    ConstantArrival,
    PrefixLevel,
    Sessions,
    Subagents,
    Tools,
    UsersArrival,
    Workload,
)
from kvbench.workload.strategies import GistRecent, Summary

SHIPPED = Tokenizer.load()
TALK = Workload(
    name="talk",
    sessions=Sessions(
        count=1,
        turns=Constant(3),
        user_tokens=Constant(10),
        answer_tokens=Constant(20),
        think=Constant(5),
    ),
    arrival=ConstantArrival(1.0),
    prefixes=(PrefixLevel("p", 1, Constant(100)),),
)
HELPERS = Subagents(
    chance=1.0, turns=Constant(2), user_tokens=Constant(7), answer_tokens=Constant(9),
    count=Constant(2), think=Constant(1),
)  # fmt: skip


def with_sessions(**changes):
    """The plan of the talk with other sessions."""
    return build_plan(replace(TALK, sessions=replace(TALK.sessions, **changes)), 1)


@given(workload=fakes_workload.agents(), seed=st.integers(0, 99), workers=st.integers(1, 5))
def test_whatever_clients_do_the_plan_is_whole_in_order_and_the_same(workload, seed, workers):
    """Predecessors come first, parts tear nothing apart, and it is built twice alike."""
    plan = build_plan(workload, seed)
    assert repr(build_plan(workload, seed)) == repr(plan)
    assert [turn.index for turn in plan.turns] == list(range(len(plan.turns)))
    numbers: dict[str, int] = {}
    for turn in plan.turns:
        assert turn.turn == numbers.get(turn.session, 0) + 1
        numbers[turn.session] = turn.turn
        assert all(before < turn.index for before in turn.after)
        assert turn.at is None or not (turn.after or turn.think)
        assert turn.reasoning_tokens <= turn.max_tokens
        assert turn.content_tokens >= 1
    parts = [plan.part(worker, workers) for worker in range(workers)]
    union = sorted((turn for part in parts for turn in part.turns), key=lambda turn: turn.index)
    assert tuple(union) == plan.turns
    for part in parts:
        own = {turn.index for turn in part.turns}
        assert all(own.issuperset(turn.after) for turn in part.turns)


@given(workload=fakes_workload.agents(api="chat"), seed=st.integers(0, 99))
def test_whatever_clients_do_every_prompt_has_the_tokens_that_were_planned(workload, seed):
    """Tokenised in full, template included."""
    plan = build_plan(workload, seed)
    renderer = Renderer(plan, SHIPPED)
    for turn in plan.turns[:40]:
        ids = SHIPPED.encode_chat(renderer.messages(turn))
        assert list(renderer.prompt_ids(turn)) == ids
        assert renderer.prompt_tokens(turn) == len(ids)


def test_tool_calls_come_between_a_question_and_its_answer():
    """Each a request of its own, after the time that the tool takes."""
    tools = Tools(Constant(2), Constant(50), Constant(0.5), Constant(4))
    turns = with_sessions(turns=Constant(2), tools=tools).turns
    assert [(t.think, t.max_tokens, t.messages[-1].tokens) for t in turns] == [
        (0, 4, 10), (0.5, 4, 50), (0.5, 20, 50), (5, 4, 10), (0.5, 4, 50), (0.5, 20, 50),
    ]  # fmt: skip
    assert turns[1].messages[-1].segments[0].key == "tool/0/2"
    assert turns[2].messages[:-2] == turns[1].messages


def test_tools_leave_questions_and_answers_as_they_are():
    """What is optional draws from a generator of its own."""
    lengths = {"user_tokens": Uniform(1, 500), "answer_tokens": Uniform(1, 500)}
    plain = with_sessions(**lengths)
    busy = with_sessions(**lengths, tools=Tools(Constant(1), Uniform(1, 99)), subagents=HELPERS)
    asked = [t.messages[-1].segments[-1].tokens for t in plain.turns]
    assert asked == [
        t.messages[-1].segments[-1].tokens
        for t in busy.turns
        if t.session == "s0" and t.messages[-1].segments[-1].key.startswith("user/")
    ]


def test_subagents_fork_from_their_parent_and_join_it():
    """They begin with all that was said; the next question waits, and repeats their answers."""
    turns = with_sessions(turns=Constant(2), subagents=HELPERS).turns
    assert [(t.session, t.turn, t.after) for t in turns] == [
        ("s0", 1, ()), ("s0.a1", 1, (0,)), ("s0.a2", 1, (0,)), ("s0.a1", 2, ()), ("s0.a2", 2, ()),
        ("s0", 2, (3, 4)),
    ]  # fmt: skip
    parent, first = turns[0], turns[1]
    assert first.messages[:2] == parent.messages
    assert first.messages[2].segments == (Segment(parent.answer_key, 20),)
    joined = turns[5].messages[-1]
    assert joined.segments == (
        Segment(turns[3].answer_key, 9),
        Segment(turns[4].answer_key, 9),
        Segment("user/0/2", 10),
    )
    assert turns[5].think == 5


def test_subagents_may_begin_fresh_and_need_not_join():
    """With the shared prefix alone; and then the parent waits for nobody."""
    helpers = replace(HELPERS, context="fresh", join=False)
    turns = with_sessions(turns=Constant(2), subagents=helpers).turns
    assert [m.role for m in turns[1].messages] == ["system", "user"]
    parent = next(t for t in turns if t.session == "s0" and t.turn == 2)
    assert parent.after == ()
    assert parent.messages[-1].tokens == 10


def test_a_users_next_session_waits_for_the_last_one():
    """Two users, five sessions, a pause between."""
    users = UsersArrival(2, 0.5, Constant(3))
    sessions = replace(TALK.sessions, count=5, turns=Constant(2))
    turns = build_plan(replace(TALK, arrival=users, sessions=sessions), 1).turns
    firsts = {t.session: t for t in turns if t.turn == 1}
    lasts = {t.session: t for t in turns if t.turn == 2}
    assert [firsts[f"s{i}"].at for i in range(5)] == [0, 0.5, None, None, None]
    for i in range(2, 5):
        assert firsts[f"s{i}"].after == (lasts[f"s{i - 2}"].index,)
        assert firsts[f"s{i}"].think == 3
    plan = build_plan(replace(TALK, arrival=users, sessions=sessions), 1)
    assert {t.session for t in plan.part(0, 2).turns} == {"s0", "s2", "s4"}


@pytest.mark.parametrize(("choice", "repeated"), [("drop", [20]), ("echo", [6, 20])])
def test_reasoning_is_repeated_or_left_out(choice, repeated):
    """It is generated either way."""
    turns = with_sessions(turns=Constant(2), reasoning_tokens=Constant(6), reasoning=choice).turns
    assert (turns[0].max_tokens, turns[0].reasoning_tokens) == (26, 6)
    answer = turns[1].messages[-2]
    assert [segment.tokens for segment in answer.segments] == repeated
    assert answer.segments[-1].key == turns[0].answer_key
    assert choice == "drop" or answer.segments[0].key == turns[0].reasoning_key


def test_a_summary_is_a_request_and_then_stands_for_what_came_before():
    """Prefix 100, turns of 30: the fourth exceeds 220 tokens, and so the talk is summed up."""
    sessions = replace(TALK.sessions, turns=Constant(5))
    turns = build_plan(replace(TALK, context=Summary(220, 15), sessions=sessions), 1).turns
    assert [(t.max_tokens, t.content_tokens, t.dropped_tokens) for t in turns] == [
        (20, 110, 0), (20, 140, 0), (20, 170, 0), (20, 200, 0),
        (15, 100 + 4 * 30 + 32, 0), (20, 100 + 15 + 10, 4 * 30 - 15),
    ]  # fmt: skip
    assert [t.think for t in turns] == [0, 5, 5, 5, 5, 0]
    assert turns[5].messages[1].segments[0].key == turns[4].answer_key


def test_the_context_that_is_left_is_in_the_plan():
    """Of 230 tokens, the prefix and its turn stay, and the last answer."""
    sessions = replace(TALK.sessions, turns=Constant(5))
    turns = build_plan(replace(TALK, context=GistRecent(210, 110, 20), sessions=sessions), 1).turns
    assert [t.dropped_tokens for t in turns] == [0, 0, 0, 60, 90]
    assert turns[4].conversation_tokens == 230
    assert turns[4].content_tokens == 140
