"""Shadows: policies on pods of their own, beside the one that serves."""

from __future__ import annotations

import pytest

from kvbench.policies.decision import RouteRequest
from kvbench.policies.names import NAMES
from kvbench.policies.rates import Rates
from kvbench.policies.shadow import Shadow

PODS = ["a", "b"]
BLOCKS = 100


def request(name, group=0, blocks=10, *, hashed=True):
    """Return a request of a prefix group, and 5 tokens more."""
    keys = tuple(range(1000 * group, 1000 * group + blocks))
    if hashed:
        return RouteRequest(name, "m", (), 64, 16 * blocks + 5, None, keys, 16)
    return RouteRequest(name, "m", keys, 16, 16 * blocks + 5)


def rates(prefill=0.01, base=0.1, beside=0.0):
    """Return rates that do not learn."""
    known = Rates()
    known.prefill, known.base, known.beside = prefill, base, beside
    return known


@pytest.mark.parametrize("hashed", [True, False])
def test_what_is_expected_is_read_off_caches_of_its_own(hashed):
    """The first time cold, the second cached but for the last tokens."""
    shadow = Shadow("prefix_cost", 1, rates())
    first = shadow.place(request("1", hashed=hashed), PODS, "a", BLOCKS, 0.0)
    shadow.ended(request("1", hashed=hashed), 5.0, served=True)
    second = shadow.place(request("2", hashed=hashed), PODS, "b", BLOCKS, 10.0)
    assert (first.cached_tokens, first.ttft_s) == (0, pytest.approx(0.1 + 1.65))
    assert (second.cached_tokens, second.ttft_s) == (160, pytest.approx(0.1 + 0.05))
    assert second.pod == first.pod


def test_the_choices_of_the_one_that_serves_are_played_on_the_same_kind_of_pods():
    """Round robin sends the second turn elsewhere: cold again."""
    served = Shadow(None, 1, rates())
    shadow = Shadow("prefix_precise", 1, rates())
    for number, pod in enumerate("ab"):
        real = served.place(request(str(number)), PODS, pod, BLOCKS, 10.0 * number)
        virtual = shadow.place(request(str(number)), PODS, pod, BLOCKS, 10.0 * number)
        for one in (served, shadow):
            one.ended(request(str(number)), 10.0 * number + 5, served=True)
    assert (real.pod, real.cached_tokens) == ("b", 0)
    assert virtual.cached_tokens == 160


def test_prefill_waits_its_turn():
    """Two at once on one pod: the second waits for the first."""
    shadow = Shadow(None, 1, rates(beside=1.0))
    first = shadow.place(request("1"), ["a"], "a", BLOCKS, 0.0)
    second = shadow.place(request("2", group=1), ["a"], "a", BLOCKS, 0.0)
    assert second.ttft_s == pytest.approx(first.ttft_s + 1.65 + 1.0)


def test_pods_that_cannot_keep_up_hold_no_more_than_so_many_prompts():
    """Though what is expected goes on to grow."""
    shadow = Shadow("least_load", 1, rates())
    expected = []
    for number in range(10_000):
        now = 0.001 * number
        one = request(str(number), group=number, blocks=1)
        expected.append(shadow.place(one, PODS, "a", BLOCKS, now).ttft_s)
        shadow.ended(one, now, served=True)

    assert len(shadow._fleet._agenda) == 4096
    assert expected[-1] > 1.9 * expected[5000] > 3.6 * expected[1300]


def test_a_full_cache_loses_what_was_used_least_recently():
    """Ten blocks of room, two groups of ten."""
    shadow = Shadow(None, 1, rates())
    for number, group in enumerate((0, 1, 0)):
        expected = shadow.place(request(str(number), group), ["a"], "a", 10, 10.0 * number)
    assert expected.cached_tokens == 0


def test_a_pod_that_lost_its_cache_loses_the_virtual_one():
    """A reset or a restart happens to both."""
    shadow = Shadow("prefix_estimate", 1, rates())
    shadow.place(request("1"), ["a"], "a", BLOCKS, 0.0)
    shadow.forget("a")
    assert shadow.place(request("2"), ["a"], "a", BLOCKS, 9.0).cached_tokens == 0


@pytest.mark.parametrize("name", [None, "round_robin"])
def test_what_is_expected_counts_once_it_was_served(name):
    """A request that was refused, and one that nobody knows, tell nothing."""
    shadow = Shadow(name, 1, rates())
    expected = shadow.place(request("1"), PODS, "a", BLOCKS, 0.0)
    shadow.place(request("2"), PODS, "a", BLOCKS, 0.0)
    assert shadow.ended(request("1"), 5.0, served=True) == expected
    assert shadow.ended(request("2"), 5.0, served=False) is None
    assert shadow.ended(request("3"), 5.0, served=True) is None


def test_what_was_never_served_keeps_no_pod_busy():
    """It is taken off at once: another waits for no token of it."""
    shadow = Shadow(None, 1, rates())
    shadow.place(request("1", blocks=90), ["a"], "a", BLOCKS, 0.0)
    shadow.ended(request("1"), 2.0, served=False)
    (state,) = shadow._fleet.states(["a"], BLOCKS, 2.0)
    assert (state.in_flight, state.in_flight_prefill_tokens) == (0, 0)
    assert shadow.place(request("2", 1), ["a"], "a", BLOCKS, 2.0).ttft_s == pytest.approx(1.75)
    (state,) = shadow._fleet.states(["a"], BLOCKS, 1e9)
    assert state.in_flight_prefill_tokens == 0


def test_a_prompt_longer_than_the_cache_drives_nothing_out():
    """No pod would have taken it."""
    shadow = Shadow(None, 1, rates())
    shadow.place(request("1"), ["a"], "a", 10, 0.0)
    shadow.place(request("2", 1, blocks=11), ["a"], "a", 10, 10.0)
    assert shadow.place(request("3"), ["a"], "a", 10, 20.0).cached_tokens == 160


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_can_be_a_shadow_and_nothing_is_left_of_requests_that_ended(name):
    """In flight returns to zero, and what was decided is forgotten."""
    shadow = Shadow(name, 3, rates())
    for number in range(40):
        shadow.place(request(str(number), number % 5), PODS, "a", BLOCKS, float(number))
    for number in range(40):
        shadow.ended(request(str(number), number % 5), 50.0, served=True)
    states = shadow._fleet.states(PODS, BLOCKS, 1e9)
    assert [(state.in_flight, state.in_flight_prefill_tokens) for state in states] == [(0, 0)] * 2
    assert shadow._decided == {}
