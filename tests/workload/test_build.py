"""Plans: the same from the same seed, whole in any number of parts, sharing what was specified."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import mean, stdev

import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench import seeds
from kvbench.errors import InputError
from kvbench.workload import drafts
from kvbench.workload.arrivals import arrivals
from kvbench.workload.build import build_plan
from kvbench.workload.distributions import Constant, Uniform
from kvbench.workload.plan import Segment
from kvbench.workload.spec import (
    BurstArrival,
    ConstantArrival,
    GammaArrival,
    PoissonArrival,
    PrefixLevel,
    Sessions,
    Workload,
    ZipfPopularity,
)

SMALL = Workload(
    name="small",
    sessions=Sessions(
        count=3, turns=Constant(2), user_tokens=Constant(5), answer_tokens=Constant(7)
    ),
    arrival=ConstantArrival(1.0),
)


@given(workload=fakes_workload.workloads(), seed=st.integers(0, 2**64 - 1))
def test_the_same_seed_gives_the_same_plan(workload, seed):
    """Byte for byte, built twice."""
    assert repr(build_plan(workload, seed)) == repr(build_plan(workload, seed))


@given(workload=fakes_workload.workloads(), workers=st.integers(1, 12))
def test_the_parts_of_a_plan_are_the_plan(workload, workers):
    """No turn is lost or sent twice, and no session is split, for any number of workers."""
    plan = build_plan(workload, 1)
    parts = [plan.part(worker, workers) for worker in range(workers)]
    union = sorted((turn for part in parts for turn in part.turns), key=lambda turn: turn.index)
    assert tuple(union) == plan.turns
    assert sum(part.sessions for part in parts) == plan.sessions


@given(workload=fakes_workload.workloads())
def test_turns_come_in_order_and_only_the_first_has_a_time(workload):
    """Indices count from 0, no turn stands before its predecessor, starts never decrease."""
    plan = build_plan(workload, 1)
    assert [turn.index for turn in plan.turns] == list(range(len(plan.turns)))
    seen: dict[str, int] = {}
    for turn in plan.turns:
        assert turn.turn == seen.get(turn.session, 0) + 1
        seen[turn.session] = turn.turn
        assert (turn.at is None) == (turn.turn > 1)
        assert turn.turn > 1 or turn.think == 0
    starts = [turn.at for turn in plan.turns if turn.at is not None]
    assert starts == sorted(starts)
    assert len(starts) == workload.sessions.count == plan.sessions


@given(workload=fakes_workload.workloads())
def test_every_turn_repeats_the_turn_before_it_and_adds_its_answer_and_a_question(workload):
    """The prompt of turn k is a prefix of the prompt of turn k + 1."""
    plan = build_plan(workload, 1)
    before = {}
    for turn in plan.turns:
        previous = before.get(turn.session)
        if previous is not None:
            answer, question = turn.messages[-2:]
            assert turn.messages[:-2] == previous.messages
            assert answer.role == "assistant"
            assert answer.segments == (Segment(previous.answer_key, previous.max_tokens),)
            assert question.role == "user"
        before[turn.session] = turn


@given(workload=fakes_workload.workloads())
def test_two_sessions_share_their_way_down_the_prefix_tree_and_nothing_else(workload):
    """Equal nodes have equal keys and lengths; all other keys are a session's own."""
    plan = build_plan(workload, 1)
    first_turns = [turn for turn in plan.turns if turn.turn == 1]
    keys = {}
    for turn in first_turns:
        prefix = turn.messages[0].segments if workload.prefixes else ()
        assert len(prefix) == len(workload.prefixes)
        names = turn.group.split("/") if workload.prefixes else []
        assert [s.key for s in prefix] == [
            "prefix/" + "/".join(names[: depth + 1]) for depth in range(len(names))
        ]
        for segment in prefix:
            assert keys.setdefault(segment.key, segment.tokens) == segment.tokens
    own = [m.segments[0].key for turn in first_turns for m in turn.messages if m.role == "user"]
    assert len(own) == len(set(own))


@given(workload=fakes_workload.workloads())
def test_lengths_lie_within_what_the_workload_says(workload):
    """Turns, questions and answers."""
    plan = build_plan(workload, 3)
    low, high = workload.sessions.answer_tokens.bounds
    assert all(low <= turn.max_tokens <= high for turn in plan.turns)
    low, high = workload.sessions.user_tokens.bounds
    assert all(low <= turn.messages[-1].tokens <= high for turn in plan.turns)
    low, high = workload.sessions.turns.bounds
    for _, turns in itertools.groupby(
        sorted(plan.turns, key=lambda t: t.session), lambda t: t.session
    ):
        assert low <= len(list(turns)) <= high


def test_turns_are_numbered_in_the_order_in_which_an_idle_server_sees_them():
    """Sessions start every second and pause for 1.5 s: the turns interleave."""
    workload = replace(SMALL, sessions=replace(SMALL.sessions, think=Constant(1.5)))
    turns = build_plan(workload, 1).turns
    assert [(t.session, t.turn) for t in turns] == [
        ("s0", 1), ("s1", 1), ("s0", 2), ("s2", 1), ("s1", 2), ("s2", 2),
    ]  # fmt: skip


def test_more_sessions_leave_the_others_as_they_are():
    """A session draws from its own generator."""
    workload = replace(SMALL, sessions=replace(SMALL.sessions, user_tokens=Uniform(1, 500)))
    more = replace(workload, sessions=replace(workload.sessions, count=5))
    lengths = [
        {(t.session, t.turn): t.content_tokens for t in build_plan(w, 1).turns}
        for w in (workload, more)
    ]
    assert lengths[0].items() <= lengths[1].items()
    assert len(lengths[1]) == 10


def test_a_popular_prefix_is_chosen_more_often():
    """Zipf with exponent 1: the first of two children twice as often as the second."""
    level = PrefixLevel("tenant", 2, Constant(8), ZipfPopularity(1.0))
    sessions = replace(SMALL.sessions, count=3000, turns=Constant(1))
    plan = build_plan(replace(SMALL, prefixes=(level,), sessions=sessions), 1)
    groups = [turn.group for turn in plan.turns]
    assert groups.count("tenant-0") / groups.count("tenant-1") == pytest.approx(2, rel=0.1)


def test_a_prompt_may_be_its_prefix_alone():
    """No question: every session of a group sends the same prompt."""
    sessions = replace(SMALL.sessions, turns=Constant(1), user_tokens=Constant(0))
    level = PrefixLevel("prompt", 1, Constant(159))
    plan = build_plan(replace(SMALL, api="completions", prefixes=(level,), sessions=sessions), 1)
    assert {turn.messages for turn in plan.turns} == {plan.turns[0].messages}
    assert [turn.content_tokens for turn in plan.turns] == [159, 159, 159]


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        (ConstantArrival(4), [0, 0.25, 0.5, 0.75, 1.0]),
        (BurstArrival(2, 10), [0, 0, 10, 10, 20]),
    ],
    ids=["constant", "burst"],
)
def test_regular_arrivals_are_regular(arrival, expected):
    """No chance is involved."""
    assert list(itertools.islice(arrivals(arrival, seeds.rng(1)), 5)) == expected


@pytest.mark.parametrize(
    ("arrival", "spread"),
    [
        pytest.param(PoissonArrival(5), 1.0, id="poisson: gaps spread as far as they are long"),
        pytest.param(GammaArrival(5, 0.25), 2.0, id="gamma below 1: in clusters"),
        pytest.param(GammaArrival(5, 4), 0.5, id="gamma above 1: more even"),
    ],
)
def test_random_arrivals_have_their_rate_and_their_spread(arrival, spread):
    """The first comes at 0; gaps have mean 1/rate and a relative spread of 1/sqrt(shape)."""
    times = list(itertools.islice(arrivals(arrival, seeds.rng(1)), 20_000))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 0
    assert mean(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(spread, rel=0.05)
    assert math.isclose(sum(gaps), times[-1])


def test_a_plan_that_would_fill_the_memory_is_refused(monkeypatch):
    """One sentence instead of a killed process."""
    monkeypatch.setattr(drafts, "MOST_TURNS", 5)
    with pytest.raises(InputError, match="small: expected at most 5 turns, got more"):
        build_plan(SMALL, 1)
