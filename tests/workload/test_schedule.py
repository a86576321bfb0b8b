"""The schedule decides when a turn is due, from the plan and from when its predecessor ended."""

from dataclasses import replace

from fakes_load import conversations, plan, turn
from hypothesis import given
from hypothesis import strategies as st

from kvbench.workload.schedule import Schedule


def test_a_turn_with_a_time_is_due_then_whatever_became_of_the_turn_before_it():
    """`at` wins over the predecessor and over `think`."""
    schedule = Schedule(
        plan(turn(0, session="a", at=1.0), turn(1, session="a", number=2, at=3.0, think=9.0))
    )
    assert [(due, t.index) for due, t in schedule.take(5.0)] == [(1.0, 0), (3.0, 1)]


def test_a_turn_without_a_time_is_due_its_think_time_after_its_predecessor_has_ended():
    """Not before, and not when the predecessor was sent."""
    first, second = turn(0, session="a", at=1.0), turn(1, session="a", number=2, think=0.5)
    schedule = Schedule(plan(first, second))
    assert schedule.take(10.0) == [(1.0, first)]
    assert schedule.next_due is None
    schedule.end(first, 11.0)
    assert schedule.take(11.4) == []
    assert schedule.take(11.5) == [(11.5, second)]


def test_a_session_that_begins_without_a_time_begins_its_think_time_after_the_start():
    """There is nothing to wait for but the pause itself."""
    schedule = Schedule(plan(turn(0, session="a", think=2.0)))
    assert schedule.next_due == 2.0


def test_a_slow_answer_makes_its_own_session_wait_and_no_other():
    """That is what open-loop means."""
    schedule = Schedule(conversations(3, 2, every=1.0, think=0.0))
    (_, first), *_ = schedule.take(0.0)
    assert [t.session for _, t in schedule.take(100.0)] == ["s1", "s2"]  # s0 unanswered
    schedule.end(first, 100.0)
    assert [(due, t.session, t.turn) for due, t in schedule.take(100.0)] == [(100.0, "s0", 2)]


def test_a_turn_waits_for_the_last_of_all_that_it_names():
    """A sub-agent begins after its parent's turn, and the parent goes on after both sub-agents."""
    parent = turn(0, session="p", at=1.0)
    helpers = [replace(turn(i, session=f"h{i}", think=0.5), after=(0,)) for i in (1, 2)]
    joined = replace(turn(3, session="p", number=2, think=1.0), after=(1, 2))
    schedule = Schedule(plan(parent, *helpers, joined))
    schedule.take(1.0)
    schedule.end(parent, 2.0)
    assert schedule.take(9.0) == [(2.5, helpers[0]), (2.5, helpers[1])]
    assert schedule.followers(helpers[0]) == [joined]
    schedule.end(helpers[1], 5.0)
    assert schedule.waits(joined)
    assert schedule.next_due is None
    schedule.end(helpers[0], 3.0)
    assert not schedule.waits(joined)
    assert schedule.take(9.0) == [(6.0, joined)]


def test_what_is_left_is_taken_in_the_order_of_waiting():
    """Also where turns wait for turns of other sessions."""
    first = turn(0, session="a", at=1.0)
    schedule = Schedule(plan(first, replace(turn(1, session="b", think=2.0), after=(0,))))
    assert [(due, t.index) for due, t in schedule.take_rest()] == [(1.0, 0), (3.0, 1)]


def test_turns_come_in_order_of_their_time_and_then_of_the_plan():
    """Ties are broken by index, so that every run has the same order."""
    schedule = Schedule(
        plan(
            turn(0, session="a", at=2.0), turn(1, session="b", at=1.0), turn(2, session="c", at=1.0)
        )
    )
    assert [t.index for _, t in schedule.take(2.0)] == [1, 2, 0]


def test_the_rest_comes_with_the_earliest_time_that_it_can_have_been_due():
    """As if every answer had come at once."""
    schedule = Schedule(conversations(1, 3, every=1.0, think=2.0))
    assert [(due, t.turn) for due, t in schedule.take_rest()] == [(0.0, 1), (2.0, 2), (4.0, 3)]
    assert len(schedule) == 0


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.integers(0, 20),
    st.data(),
)
def test_every_turn_is_taken_exactly_once_in_whatever_order_answers_come(lengths, taken, data):
    """Nothing is lost and nothing comes twice."""
    turns = [(session, number) for session, n in enumerate(lengths) for number in range(1, n + 1)]
    whole = plan(
        *(
            turn(i, session=str(s), number=n, at=0.0 if n == 1 else None, think=0.1)
            for i, (s, n) in enumerate(turns)
        )
    )
    schedule = Schedule(whole)
    now, under_way, seen = 0.0, [], []
    for _ in range(taken):
        fresh = schedule.take(now)
        seen += [t.index for _, t in fresh]
        under_way += [t for _, t in fresh]
        if under_way:
            ended = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            schedule.end(ended, now)
        now += 0.1
    for ended in under_way:
        schedule.end(ended, now)
    seen += [t.index for _, t in schedule.take_rest()]
    assert sorted(seen) == [t.index for t in whole.turns]
