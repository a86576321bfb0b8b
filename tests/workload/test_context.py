"""What a client sends of a conversation that has outgrown its window."""

from __future__ import annotations

from itertools import pairwise

import fakes_workload
from hypothesis import given
from hypothesis import strategies as st

from kvbench.workload.context import beginning, condensed, fit, merged, outgrown, recent, tokens_of
from kvbench.workload.plan import Message, Segment
from kvbench.workload.strategies import Append, DropOldest, Gist, GistRecent, Summary


def message(role, tokens, key):
    """A message of one text."""
    return Message(role, (Segment(key, tokens),))


SYSTEM = message("system", 100, "prefix/a")
TALK = (
    SYSTEM,
    message("user", 50, "user/1"),
    message("assistant", 30, "answer/1"),
    message("user", 40, "user/2"),
    message("assistant", 20, "answer/2"),
    message("user", 10, "user/3"),
)


def sizes(messages):
    """Role and tokens of each message."""
    return [(m.role[0], m.tokens) for m in messages]


def test_what_fits_is_sent_as_it_is():
    """The very same messages; the answer to come counts."""
    for context in (Append(), DropOldest(260), Gist(260, 9), GistRecent(260, 9, 9)):
        assert fit(context, TALK, 10) is TALK
    assert not outgrown(DropOldest(260), TALK, 10)
    assert outgrown(DropOldest(260), TALK, 11)
    assert fit(Append(), TALK, 10**9) is TALK


def test_the_oldest_go_first_and_a_question_follows_the_prefix():
    """An answer without its question is no beginning."""
    assert sizes(fit(DropOldest(250), TALK, 10)) == [("s", 100), ("u", 40), ("a", 20), ("u", 10)]
    assert sizes(fit(DropOldest(175), TALK, 10)) == [("s", 100), ("u", 10)]
    assert sizes(fit(DropOldest(20), TALK, 10)) == [("s", 100), ("u", 10)]


def test_a_gist_is_the_first_tokens_and_the_question():
    """A question may be cut; two in a row become one message."""
    assert sizes(fit(Gist(200, 120), TALK, 10)) == [("s", 100), ("u", 30)]
    assert sizes(fit(Gist(250, 200), TALK, 10)) == [("s", 100), ("u", 50), ("a", 30), ("u", 30)]
    assert sizes(fit(Gist(200, 60), TALK, 10)) == [("s", 60), ("u", 10)]


def test_an_answer_is_kept_whole_or_left_out():
    """Also one that stands in a question, as the result of a sub-agent."""
    assert sizes(beginning(TALK, 170)) == [("s", 100), ("u", 50)]
    result = Message("user", (Segment("answer/7.a1/2", 30), Segment("user/4", 9)))
    assert beginning([SYSTEM, result], 120) == [SYSTEM]


def test_the_recent_part_are_whole_messages_behind_the_beginning():
    """None of them twice, and none of them cut."""
    kept = fit(GistRecent(250, 120, 60), TALK, 10)
    assert sizes(kept) == [("s", 100), ("u", 60), ("a", 20), ("u", 10)]
    assert sizes(recent(TALK, 69)) == [("a", 20), ("u", 10)]


def test_a_summary_stands_between_the_prefix_and_the_recent_messages():
    """As something that the user says."""
    summary = Segment("answer/0/9", 15)
    kept = condensed(Summary(250, 15, 60), TALK[:-1], summary)
    assert sizes(kept) == [("s", 100), ("u", 55), ("a", 20)]
    assert kept[1].segments[0] == summary
    assert sizes(condensed(Summary(250, 15), TALK[:-1], summary)) == [("s", 100), ("u", 15)]


@given(
    context=fakes_workload.CONTEXTS,
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=6),
    system=st.booleans(),
    answer=st.integers(1, 40),
)
def test_whatever_is_dropped_the_question_stays_and_roles_alternate(
    context, lengths, system, answer
):
    """And nothing is sent that was not said."""
    said = [SYSTEM] if system else []
    for i, (user, reply) in enumerate(lengths):
        said += [message("user", user, f"user/{i}"), message("assistant", reply, f"answer/{i}")]
    said.append(message("user", 7, "user/last"))
    kept = fit(context, tuple(said), answer)
    assert kept[-1].segments[-1] == Segment("user/last", 7)
    assert all(a.role != b.role for a, b in pairwise(kept))
    assert kept == merged(kept)
    known = {segment.key: segment.tokens for m in said for segment in m.segments}
    assert all(s.tokens <= known[s.key] for m in kept for s in m.segments)
    assert tokens_of(kept) <= tokens_of(said)
