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


class Plain:
    """What `RoutedPrefixes` remembers of one pod, block by block: the least recently used go."""

    def __init__(self, capacity: int, ttl_s: float) -> None:
        self.capacity, self.ttl_s = capacity, ttl_s
        self.stamps: dict[int, float] = {}

    def placed(self, blocks: tuple[int, ...], now: float) -> None:
        """Make each block the most recent, the first last; forget what is too old."""
        if not blocks:
            return
        for block in reversed(blocks[: self.capacity]):
            self.stamps.pop(block, None)
            self.stamps[block] = now
        self.bound(self.capacity)
        self.stamps = {b: at for b, at in self.stamps.items() if at >= now - self.ttl_s}

    def bound(self, capacity: int) -> None:
        """Keep the last so many."""
        self.capacity = capacity
        surplus = max(len(self.stamps) - capacity, 0)
        self.stamps = dict(list(self.stamps.items())[surplus:])

    def matched(self, blocks: tuple[int, ...], now: float) -> int:
        """Walk."""
        fresh = now - self.ttl_s
        return sum(1 for _ in takewhile(lambda b: self.stamps.get(b, -1e9) >= fresh, blocks))


chains = st.lists(st.integers(0, 2), max_size=8)
steps = st.one_of(
    st.tuples(st.just("placed"), chains, st.integers(0, 30)),
    st.tuples(st.just("asked"), chains, st.integers(0, 30)),
    st.tuples(st.just("fell short"), chains, st.just(0)),
)


@given(history=st.lists(steps, max_size=40), capacity=st.integers(1, 12))
def test_runs_of_blocks_remember_what_block_by_block_would_be_remembered(history, capacity):
    """After any history, in any capacity: the same blocks, found by bisection as by walking."""
    index, plain = RoutedPrefixes(capacity=capacity, ttl_s=20), Plain(capacity, 20)
    now = 0.0
    history = [("placed", [0], 0), *history]  # before that there is nothing to be wrong about
    for step, names, pause in history:
        now += pause
        wanted = request(*names)
        if step == "placed":
            index.placed(wanted, "a", now)
            plain.placed(wanted.blocks, now)
        elif step == "asked":
            assert index.matched_tokens(wanted, ["a"], now) == [
                10 * plain.matched(wanted.blocks, now)
            ]
        else:
            index.finished(request(1, 2, 3, 4), decided(40), Outcome(None, 45, 0))
            plain.bound(max(len(plain.stamps) * 19 // 20, 1))
        assert index.size() == len(plain.stamps) <= capacity


def test_a_conversation_of_many_turns_stays_one_run_until_another_leaves_it():
    """So what a turn costs does not grow with the turns before it."""
    index = RoutedPrefixes()
    for turn in range(1, 50):
        index.placed(request(*range(turn)), "a", now=float(turn))
    held = index._pods["a"]
    assert (held.size, len(held._runs)) == (49, 1)

    index.placed(request(*range(20), 99), "a", now=50.0)

    assert (held.size, len(held._runs)) == (50, 3)
    assert index.matched_tokens(request(*range(49)), ["a"], now=50.0) == [490]
    assert index.matched_tokens(request(*range(20), 99), ["a"], now=50.0) == [210]
