"""What pods are believed to hold."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from kvbench.policies.decision import Candidate, Decision, Outcome, RouteRequest
from kvbench.policies.prefixes import RoutedPrefixes


def chain(*names: int) -> tuple[int, ...]:
    """Return keys that each stand for the whole prefix that ends there, as the router's do."""
    return tuple(hash(names[: i + 1]) for i in range(len(names)))


def request(*names: int, extra: int = 5) -> RouteRequest:
    """Return a request of so many blocks of ten tokens, and a rest."""
    return RouteRequest("r", "m", chain(*names), 10, 10 * len(names) + extra)


def decided(matched: int) -> Decision:
    """Return a decision for pod "a" that believed so many tokens there."""
    return Decision("a", "p", "prefix", matched, (Candidate("a", matched, 0.0, {}),))


def test_a_prompt_is_found_where_it_was_sent_up_to_where_it_differs():
    """And nowhere else."""
    index = RoutedPrefixes()
    index.placed(request(1, 2, 3), "a", now=0.0)
    index.placed(request(1, 9), "b", now=0.0)

    assert index.matched_tokens(request(1, 2, 7), ["a", "b", "c"], now=1.0) == [20, 10, 0]


def test_nothing_is_matched_before_anything_was_placed():
    """At the beginning of time too, when all that is past is younger than the time to live."""
    index = RoutedPrefixes()
    index.placed(request(5), "a", now=0.0)

    assert index.matched_tokens(request(1, 2), ["a"], now=0.0) == [0]


def test_the_last_token_is_never_cached():
    """A pod computes at least one token of a prompt."""
    index = RoutedPrefixes()
    whole = request(1, 2, extra=0)
    index.placed(whole, "a", now=0.0)

    assert index.matched_tokens(whole, ["a"], now=0.0) == [19]


def test_what_nobody_asked_for_in_time_is_forgotten():
    """The time to live counts from the last use."""
    index = RoutedPrefixes(ttl_s=60)
    index.placed(request(1, 2), "a", now=0.0)
    index.placed(request(1, 3), "a", now=50.0)

    assert index.matched_tokens(request(1, 2), ["a"], now=70.0) == [10]
    index.placed(request(7), "a", now=200.0)
    assert index.size() == 1


def test_a_pod_that_is_forgotten_holds_nothing():
    """The others keep what they had."""
    index = RoutedPrefixes()
    index.placed(request(1), "a", now=0.0)
    index.placed(request(1), "b", now=0.0)

    index.forget("a")

    assert index.matched_tokens(request(1), ["a", "b"], now=0.0) == [0, 10]


def test_a_pod_that_delivers_less_than_believed_is_believed_to_hold_less():
    """5 % of its blocks go, the least recently used; beliefs that hold let it grow again."""
    index = RoutedPrefixes()
    for name in range(100):
        index.placed(request(name), "a", now=float(name))

    index.finished(request(1, 2, 3, 4), decided(40), Outcome(None, 45, 0))

    assert index.size() == 95
    assert index.matched_tokens(request(4), ["a"], now=100.0) == [0]
    assert index.matched_tokens(request(5), ["a"], now=100.0) == [10]
    index.finished(request(1, 2, 3, 4), decided(40), Outcome(None, 45, 40))
    for name in range(200, 300):
        index.placed(request(name), "a", now=float(name))
    assert index.size() == 96


def test_an_estimate_of_tokens_that_is_off_is_not_taken_for_an_eviction():
    """Believed 40 of 45 by estimate, delivered 80 of 90 as counted: the same share."""
    index = RoutedPrefixes()
    index.placed(request(1, 2, 3, 4), "a", now=0.0)

    index.finished(request(1, 2, 3, 4), decided(40), Outcome(None, 90, 80))

    assert index.size() == 4


@given(
    placements=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=8), st.integers(0, 30)), max_size=30
    ),
    asked=st.lists(st.integers(0, 2), max_size=8),
    capacity=st.integers(1, 12),
)
def test_bisection_finds_what_walking_finds_and_memory_is_bounded(placements, asked, capacity):
    """What a pod holds of a chain is a beginning of it, after any history."""
    index = RoutedPrefixes(capacity=capacity, ttl_s=20)
    now = 0.0
    for names, pause in placements:
        now += pause
        index.placed(request(*names), "a", now)
        assert index.size() <= capacity

    stamps = index._pods["a"].stamps if placements else {}
    wanted = request(*asked)
    walked = sum(
        1 for _ in takewhile(lambda block: stamps.get(block, -1e9) >= now - 20, wanted.blocks)
    )

    assert index.matched_tokens(wanted, ["a"], now) == [walked * 10]
