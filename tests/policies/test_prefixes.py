"""What pods are believed to hold."""

from __future__ import annotations

from itertools import takewhile

import msgspec
import pytest
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


def test_no_more_is_believed_there_than_a_pod_says_that_it_holds():
    """Of prompts of two blocks a pod with room for three has the last, and half of the other."""
    index = RoutedPrefixes(sizes={"small": 39, "large": 1000})
    for pod in ("small", "large", "silent"):
        index.placed(request(1, 2), pod, now=0.0)
        index.placed(request(3, 4), pod, now=1.0)

    pods = ["small", "large", "silent"]
    assert index.matched_tokens(request(1, 2), pods, now=2.0) == [10, 20, 20]
    assert index.matched_tokens(request(3, 4), pods, now=2.0) == [20, 20, 20]


def test_what_a_pod_says_counts_from_the_next_prompt_on_however_late_it_says_it():
    """It may say it anew, as one that came back with another cache; or take it back."""
    sizes: dict[str, int] = {}
    index = RoutedPrefixes(sizes=sizes)

    def kept(*names):
        index.placed(request(*names), "a", now=0.0)
        return index.size()

    assert kept(*range(50)) == 50
    sizes["a"] = 200
    assert kept(99) == 20
    sizes["a"] = 300
    assert kept(*range(50)) == 30
    del sizes["a"]
    assert kept(*range(50)) == 50


def test_less_than_a_pod_says_is_learned_until_it_says_something_else():
    """Answers take room too; a block of other tokens by a fiftieth is what it says, rounded."""
    index = RoutedPrefixes(sizes={"a": 5000})

    def placed(first, count, tokens=50):
        asked = RouteRequest("r", "m", chain(*range(first, first + count)), tokens, tokens * count)
        index.placed(asked, "a", now=float(first))
        return asked

    placed(0, 10)
    placed(1000, 60)
    again = placed(0, 10)
    index.finished(again, decided(450), Outcome(cached_tokens=0, prompt_tokens=500))
    kept = []
    for tokens in (50, 51, 60):  # so 100 blocks, 98, 83
        placed(2000, 200, tokens)
        kept.append(index.size())

    assert kept == [61, 61, 83]


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


def sent(index: RoutedPrefixes, *names: int, now: float, delivered: int) -> int:
    """Send a prompt to pod "a", which had so many tokens of it; return how many were believed."""
    asked = msgspec.structs.replace(request(*names), id=str(now))
    (believed,) = index.matched_tokens(asked, ["a"], now)
    index.placed(asked, "a", now)
    index.finished(asked, decided(believed), Outcome(None, asked.prompt_tokens, delivered))
    return believed


def test_a_pod_that_delivers_less_than_believed_holds_no_more_than_was_asked_for_since():
    """Of 104 blocks 60 were asked for since those that are missing: that, and 3 % more."""
    index = RoutedPrefixes()
    for name in range(40):
        sent(index, 1000 + name, now=float(name), delivered=0)
    sent(index, 1, 2, 3, 4, now=50.0, delivered=0)
    for name in range(60):
        sent(index, 2000 + name, now=100.0 + name, delivered=0)

    assert sent(index, 1, 2, 3, 4, now=200.0, delivered=0) == 40

    assert index.size() == 60 + 60 // 32
    assert index.matched_tokens(request(2002), ["a"], 200.0) == [0], "the oldest are forgotten"
    assert index.matched_tokens(request(2003), ["a"], 200.0) == [10]
    assert index.matched_tokens(request(1, 2, 3, 4), ["a"], 200.0) == [40], "it has them now"


def test_what_a_pod_still_had_of_a_prompt_had_its_room_too():
    """One of four blocks was there, beside 60 others."""
    index = RoutedPrefixes()
    sent(index, 1, 2, 3, 4, now=50.0, delivered=0)
    for name in range(60):
        sent(index, 2000 + name, now=100.0 + name, delivered=0)

    assert sent(index, 1, 2, 3, 4, now=200.0, delivered=10) == 40

    assert index.size() == 61 + 61 // 32


def test_what_was_sent_to_a_pod_after_a_prompt_says_nothing_of_the_room_before():
    """40 blocks had been asked for since when the prompt was sent."""
    index = RoutedPrefixes()
    sent(index, 1, 2, 3, 4, now=0.0, delivered=0)
    sent(index, *range(200, 240), now=1.0, delivered=0)
    asked = request(1, 2, 3, 4)
    index.placed(asked, "a", 2.0)
    sent(index, *range(100, 130), now=3.0, delivered=0)

    index.finished(asked, decided(40), Outcome(None, 45, 0))

    assert index.size() == 40 + 40 // 32


def test_one_answer_does_not_take_more_than_half():
    """However little there was room for by what it says."""
    index = RoutedPrefixes()
    for name in range(100):
        sent(index, 1000 + name, now=float(name), delivered=0)

    sent(index, 1090, now=200.0, delivered=0)
    assert index.size() == 100, "of one block two are left to chance"
    sent(index, 1, 2, 3, 4, now=201.0, delivered=0)
    for name in range(6):
        sent(index, 2000 + name, now=202.0 + name, delivered=0)
    sent(index, 1, 2, 3, 4, now=300.0, delivered=0)

    assert index.size() == 110 // 2


def test_what_a_request_under_way_asks_for_has_not_been_evicted():
    """Who is computed side by side with it misses what they have in common."""
    index = RoutedPrefixes()
    for name in range(100):
        sent(index, 1000 + name, now=float(name), delivered=0)
    index.placed(msgspec.structs.replace(request(1, 2, 3, 4), id="slow"), "a", 200.0)
    for name in range(60):
        sent(index, 2000 + name, now=300.0 + name, delivered=0)

    assert sent(index, 1, 2, 3, 4, now=400.0, delivered=0) == 40

    assert index.size() == 164


def test_a_shortfall_against_what_is_proven_is_not_believed():
    """There was room for a prompt of twenty blocks, and not for six? If it is always so."""
    index = RoutedPrefixes()
    sent(index, *range(1000, 1020), now=0.0, delivered=0)
    sent(index, 1, 2, 3, 4, now=1.0, delivered=0)
    sizes = []
    for turn in range(1, 31):
        for name in range(6):
            sent(index, 100 * turn + name, now=10.0 * turn + name, delivered=0)
        sent(index, 1, 2, 3, 4, now=10.0 * turn + 9, delivered=0)
        sizes.append(index.size())

    assert sizes[:9] == [24 + 6 * turn for turn in range(1, 10)]
    assert sizes[-1] < 24


def test_a_pod_that_delivers_what_was_forgotten_is_believed_to_hold_as_much_more():
    """So many blocks as were there against belief."""
    index = RoutedPrefixes(capacity=100)
    sent(index, 1, 2, 3, 4, now=0.0, delivered=0)
    sent(index, *range(200, 206), now=1.0, delivered=0)
    sent(index, 1, 2, 3, 4, now=2.0, delivered=0)
    assert index.size() == 6, "so many are kept from now on"
    assert sent(index, *range(200, 210), now=3.0, delivered=100) == 20

    sent(index, *range(10, 40), now=4.0, delivered=0)

    assert index.size() == 6 + 8


def test_a_block_that_was_there_though_about_to_be_forgotten_lets_more_be_remembered():
    """By one block, or 0.4 %; one that was asked for just now does not."""
    index = RoutedPrefixes(capacity=100)
    sent(index, 1, 2, 3, 4, now=0.0, delivered=0)
    for name in range(30):
        sent(index, 2000 + name, now=100.0 + name, delivered=0)
    sent(index, 1, 2, 3, 4, now=200.0, delivered=0)
    assert index.size() == 30
    sent(index, 1, 2, 3, 4, now=201.0, delivered=40)
    sent(index, *range(500, 560), now=202.0, delivered=0)
    assert index.size() == 30

    for name in range(24):
        sent(index, 3000 + name, now=300.0 + name, delivered=0)
    assert sent(index, 500, 501, 502, 503, 504, 505, now=400.0, delivered=60) == 60

    sent(index, *range(700, 800), now=500.0, delivered=0)
    assert index.size() == 31


def test_distances_are_taken_of_fewer_prompts_where_there_are_many_to_count():
    """Of every third where blocks are in 256 runs."""
    index = RoutedPrefixes()
    for name in range(300):
        sent(index, 1000 + name, now=float(name), delivered=0)

    taken = []
    for turn in range(6):
        asked = msgspec.structs.replace(request(1000 + turn), id=f"look {turn}")
        index.placed(asked, "a", 400.0 + turn)
        taken.append(len(index._under_way[asked.id].parts))

    assert sorted(taken) == [0, 0, 0, 0, 1, 1]


def test_requests_whose_end_is_never_told_are_not_kept_for_ever():
    """Some thousands are."""
    index = RoutedPrefixes()
    for number in range(5000):
        index.placed(msgspec.structs.replace(request(1), id=str(number)), "a", float(number))

    assert len(index._under_way) == 4096


@given(
    history=st.lists(st.integers(0, 11), min_size=60, max_size=200),
    room=st.integers(4, 24),
)
def test_a_cache_is_never_believed_to_be_smaller_than_it_is(history, room):
    """Whatever falls short: what is counted is a bound from above, and goes half the way.

    Prompts have three blocks and come one after the other, so that nothing misleads.
    """
    index, cache = RoutedPrefixes(), Plain(room, 1e9)
    for now, name in enumerate(history):
        held = 10 * cache.matched(request(name, 0, 0).blocks, float(now))
        sent(index, name, 0, 0, now=float(now), delivered=held)
        cache.placed(request(name, 0, 0).blocks, float(now))

        assert index.size() >= len(cache.stamps)


def test_an_estimate_of_tokens_that_is_off_is_not_taken_for_an_eviction():
    """Believed 40 of 45 by estimate, delivered 80 of 90 as counted: the same share."""
    index = RoutedPrefixes()
    index.placed(request(1, 2, 3, 4), "a", now=0.0)

    index.finished(request(1, 2, 3, 4), decided(40), Outcome(None, 90, 80))

    assert index.size() == 4


REFUSED = Outcome(end="answered", status=400)


@pytest.mark.parametrize(
    ("outcome", "believed"),
    [
        (REFUSED, 10),
        (Outcome(end="failed"), 10),
        (Outcome(end="gone", status=200), 10),
        (Outcome(end="gone", status=200, prefilled=True), 30),
        (Outcome(end="answered", status=200), 30),
        (Outcome(), 30),
    ],
)
def test_what_a_pod_has_not_computed_is_not_believed_there(outcome, believed):
    """Of a prompt of three blocks the first was there before."""
    index = RoutedPrefixes()
    sent(index, 1, now=0.0, delivered=0)
    asked = msgspec.structs.replace(request(1, 2, 3), id="asked")
    index.placed(asked, "a", 1.0)

    index.finished(asked, decided(10), outcome)

    assert index.matched_tokens(asked, ["a"], 2.0) == [believed]
    assert index.size() == believed // 10


@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.booleans()), max_size=12
    ),
    order=st.randoms(),
)
def test_what_others_have_computed_or_will_is_never_taken_back(prompts, order):
    """Whatever is refused, and in whatever order requests end."""
    index, asked = RoutedPrefixes(), []
    for at, (names, refused) in enumerate(prompts):
        one = msgspec.structs.replace(request(*names), id=str(at))
        index.placed(one, "a", float(at))
        asked.append((one, refused))
    computed = [one for one, refused in asked if not refused]
    order.shuffle(asked)
    for one, refused in asked:
        index.finished(one, decided(0), REFUSED if refused else Outcome(1.0, 1, None))
        for other in computed:
            assert index.matched_tokens(other, ["a"], 99.0) == [10 * len(other.blocks)]


@given(prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12))
def test_prompts_that_are_refused_one_after_the_other_leave_nothing(prompts):
    """As if they had never been sent."""
    index = RoutedPrefixes()
    sent(index, 0, 1, 2, now=0.0, delivered=0)
    for at, names in enumerate(prompts, 1):
        index.placed(request(*names), "a", float(at))
        index.finished(request(*names), decided(0), REFUSED)
    assert index.size() == 3
    assert index.matched_tokens(request(0, 1, 2), ["a"], 99.0) == [30]


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
        else:
            assert index.matched_tokens(wanted, ["a"], now) == [
                10 * plain.matched(wanted.blocks, now)
            ]
        assert index.size() == len(plain.stamps) <= capacity


def test_a_conversation_of_many_turns_stays_one_run_until_another_leaves_it():
    """So what a turn costs does not grow with the turns before it."""
    index = RoutedPrefixes()
    for turn in range(1, 50):
        index.placed(request(*range(turn)), "a", now=float(turn))
    held = index._pods["a"].held
    assert (held.size, len(held._runs)) == (49, 1)

    index.placed(request(*range(20), 99), "a", now=50.0)

    assert (held.size, len(held._runs)) == (50, 3)
    assert index.matched_tokens(request(*range(49)), ["a"], now=50.0) == [490]
    assert index.matched_tokens(request(*range(20), 99), ["a"], now=50.0) == [210]
