"""Exact where the pod is known, an estimate where not, and promises until the events have come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.policies.decision import Candidate, Decision, Outcome, RouteRequest
from kvbench.policies.indexed import IndexedPrefixes

PODS = ["a", "b"]
BLOCK = 16


class Known:
    """An index in which pods hold so many blocks of every prompt, as long as they are exact."""

    def __init__(self, **held):
        self.held = held

    def match(self, hashes, block_size, pods):
        """Return what is known."""
        assert block_size == BLOCK
        return {pod: min(self.held[pod], len(hashes)) for pod in pods if pod in self.held}


def request(name="r", blocks=10, first=0):
    """Return a request of so many blocks and some tokens more."""
    hashes = tuple(range(first, first + blocks))
    return RouteRequest(name, "m", hashes, BLOCK, BLOCK * blocks + 5, None, hashes, BLOCK)


def decided(pod, tokens):
    """Return a decision."""
    return Decision(pod, "p", "prefix", tokens, (Candidate(pod, tokens, 0.0, {}),))


def test_what_an_exact_pod_holds_is_counted_in_its_own_blocks():
    """The other one has never been sent anything: its estimate is nothing."""
    prefixes = IndexedPrefixes(Known(a=7))
    assert prefixes.matched_tokens(request(), PODS, 0.0) == [7 * BLOCK, 0]


def test_a_pod_that_is_not_exact_is_estimated():
    """From what it was sent, in blocks four times as large; the exact one is not."""
    prefixes = IndexedPrefixes(Known(a=0))
    for pod in PODS:
        prefixes.placed(request("old"), pod, 0.0)
    assert prefixes.matched_tokens(request(), PODS, 1000.0) == [0, 8 * BLOCK]


def test_a_request_without_token_ids_is_estimated_everywhere():
    """Even where the pod is exact."""
    prefixes = IndexedPrefixes(Known(a=7))
    plain = RouteRequest("r", "m", (1, 2), 80, 165)
    prefixes.placed(plain, "a", 0.0)
    assert prefixes.matched_tokens(plain, PODS, 1.0) == [160, 0]


def test_blocks_of_a_request_under_way_are_promised():
    """A second request with the same prefix finds them, and one that shares half of them, half."""
    prefixes = IndexedPrefixes(Known(a=2, b=0))
    prefixes.matched_tokens(request(), PODS, 0.0)
    prefixes.placed(request(), "a", 0.0)
    assert prefixes.matched_tokens(request("second"), PODS, 60.0) == [160, 0]
    half = RouteRequest("h", "m", (), 80, 165, None, (0, 1, 2, 3, 4, 77, 78), BLOCK)
    assert prefixes.matched_tokens(half, PODS, 60.0) == [5 * BLOCK, 0]


def test_a_promise_ends_soon_after_its_request():
    """By then the events have come, or the blocks are not there."""
    prefixes = IndexedPrefixes(Known(a=0))
    prefixes.placed(request(), "a", 0.0)
    prefixes.matched_tokens(request("look"), ["a"], 10.0)
    prefixes.finished(request(), decided("a", 0), Outcome(1.0, 165, 0))
    assert prefixes.matched_tokens(request("look"), ["a"], 11.0) == [160]
    assert prefixes.matched_tokens(request("look"), ["a"], 12.5) == [0]


def test_a_promise_whose_events_have_come_is_void_at_once():
    """From then on the index knows better: what it has no more was evicted."""
    known = Known(a=0)
    prefixes = IndexedPrefixes(known)
    prefixes.matched_tokens(request(), ["a"], 0.0)
    prefixes.placed(request(), "a", 0.0)
    known.held["a"] = 10
    prefixes.finished(request(), decided("a", 0), Outcome(1.0, 165, 0))
    known.held["a"] = 4
    assert prefixes.matched_tokens(request("look"), ["a"], 0.0) == [4 * BLOCK]


REFUSED = Outcome(end="answered", status=400)


@pytest.mark.parametrize("outcome", [REFUSED, Outcome(end="failed"), Outcome(end="gone")])
def test_a_promise_that_will_not_be_kept_ends_at_once(outcome):
    """Refused, failed, or left by its client before it was computed."""
    prefixes = IndexedPrefixes(Known(a=2))
    prefixes.matched_tokens(request(), ["a"], 10.0)
    prefixes.placed(request(), "a", 10.0)
    prefixes.finished(request(), decided("a", 32), outcome)
    assert prefixes.matched_tokens(request("look"), ["a"], 10.0) == [32]


def test_a_refusal_is_told_to_the_estimate_too():
    """It takes back what it believed, wherever it is asked later."""
    known = Known(a=0)
    prefixes = IndexedPrefixes(known)
    prefixes.placed(request(), "a", 0.0)
    prefixes.finished(request(), decided("a", 0), REFUSED)
    known.held.clear()
    assert prefixes.matched_tokens(request("look"), ["a"], 1.0) == [0]


@given(
    prompts=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1), st.booleans()), max_size=10),
    computed=st.lists(st.integers(0, 3), min_size=10, max_size=10).map(sorted),
    order=st.randoms(),
)
def test_what_other_requests_have_promised_holds_whoever_is_refused(prompts, computed, order):
    """Those under way, and those that have ended of late; nothing else that is not computed."""
    known = Known(a=0)
    prefixes, asked = IndexedPrefixes(known), []
    for at, (blocks, first, refused) in enumerate(prompts):
        one = request(str(at), blocks, 1000 * first)
        known.held["a"] = computed[at]
        prefixes.matched_tokens(one, ["a"], float(at))
        prefixes.placed(one, "a", float(at))
        known.held["a"] = 0
        asked.append((one, refused))
    now = float(len(prompts))
    prefixes.matched_tokens(request("look"), ["a"], now)
    order.shuffle(asked)
    under_way = list(asked)
    for one, refused in asked:
        under_way = [other for other in under_way if other[0] is not one or not refused]
        prefixes.finished(one, decided("a", 0), REFUSED if refused else Outcome(1.0, 1, 0))
        promised = {block for other, _ in under_way for block in other.hashes}
        until = prefixes._promises["a"].until if "a" in prefixes._promises else {}
        holds = {block for block, at in until.items() if at > now}
        assert {block for block in holds ^ promised if block % 1000 >= computed[-1]} == set()


def test_a_promise_that_another_request_has_made_again_holds():
    """The first has ended, the second is under way."""
    prefixes = IndexedPrefixes(Known(a=0))
    prefixes.placed(request("first"), "a", 0.0)
    prefixes.placed(request("second"), "a", 1.0)
    prefixes.finished(request("first"), decided("a", 0), Outcome())
    assert prefixes.matched_tokens(request("look"), ["a"], 50.0) == [160]


def test_a_promise_of_which_nothing_is_heard_ends_too():
    """And nothing of it is kept."""
    prefixes = IndexedPrefixes(Known(a=0))
    prefixes.placed(request(), "a", 0.0)
    assert prefixes.matched_tokens(request("look"), ["a"], 121.0) == [0]
    prefixes.placed(request("late", first=500), "a", 200.0)
    assert len(prefixes._promises["a"].until) == 10
    assert len(prefixes._under_way) == 1


class Told:
    """An estimate that remembers how many cached tokens it was told of."""

    def __init__(self) -> None:
        self.cached = []

    def finished(self, _request, _decision, outcome) -> None:
        """Remember."""
        self.cached.append(outcome.cached_tokens)


def test_the_estimate_learns_only_where_it_was_used():
    """An exact prediction that failed says nothing about it."""
    for known, learned in ((Known(a=10), None), (Known(), 0)):
        told = Told()
        IndexedPrefixes(known, told).finished(request(), decided("a", 160), Outcome(1.0, 165, 0))
        assert told.cached == [learned]


def test_the_estimate_waits_for_no_request_that_has_ended():
    """Also where its answer says nothing of an estimate."""
    prefixes = IndexedPrefixes(Known(a=10))
    prefixes.placed(request(), "a", 0.0)
    assert len(prefixes._estimate._under_way) == 1
    prefixes.finished(request(), decided("a", 160), Outcome(1.0, 165, 160))
    assert not prefixes._estimate._under_way


def test_a_pod_that_lost_its_cache_has_made_no_promises():
    """Nor is anything estimated of it."""
    prefixes = IndexedPrefixes(Known(a=0))
    prefixes.placed(request(), "a", 0.0)
    prefixes.forget("a")
    assert prefixes.matched_tokens(request("look"), ["a"], 1.0) == [0]
