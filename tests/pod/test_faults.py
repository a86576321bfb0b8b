"""Faults: written in words, decided by the request's number."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.pod.faults import Fault, Faults, Trouble, parse_fault


def test_a_fault_is_written_as_a_kind_and_its_keys():
    """Keys that are left out have their defaults."""
    assert parse_fault("cut:after=5,rate=0.1") == Fault("cut", after=5, rate=0.1)
    assert parse_fault("degenerate") == Fault("degenerate")
    assert parse_fault("degenerate:kind=echo,nth=3") == Fault("degenerate", nth=3, illness="echo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode", "expected one of start-delay, .*, got 'explode'"),
        ("cut:status=5", "cut: expected keys after, nth, rate, got 'status'"),
        ("start-fail:rate=1", "start-fail: expected keys none, got 'rate'"),
        ("cut:after=x", "cut: after: expected a number, got 'x'"),
        ("cut:rate=2", "cut: rate: expected 0 to 1, got 2.0"),
        ("error:status=200", "error: status: expected 400 to 599, got 200"),
        ("degenerate:kind=flu", "degenerate: kind: expected one of loop, salad, echo, got 'flu'"),
        ("stall:seconds=-1", "stall: expected no negative numbers"),
    ],
)
def test_a_fault_that_is_none_is_refused(text: str, message: str):
    """With what was expected."""
    with pytest.raises(InputError, match=message):
        parse_fault(text)


def test_a_number_meets_one_request():
    """The others are spared."""
    faults = Faults([Fault("error", nth=2, status=503)])
    assert [faults.of_request(n).status for n in (1, 2, 3)] == [None, 503, None]


def test_a_rate_meets_as_many_requests_as_it_says_and_always_the_same():
    """By seed and number."""
    first = [Faults([Fault("cut", rate=0.3)], 1).of_request(n).cut_after for n in range(1000)]
    again = [Faults([Fault("cut", rate=0.3)], 1).of_request(n).cut_after for n in range(1000)]
    assert first == again
    assert 230 < sum(after is not None for after in first) < 370


def test_no_fault_is_no_trouble():
    """By default nothing goes wrong."""
    assert Faults().of_request(1) == Trouble()
    assert Faults().start() == (0.0, False)
    assert not Faults().drops_events(0)


def test_the_start_can_be_slow_and_can_fail():
    """Delays add up."""
    faults = Faults([Fault("start-delay", seconds=2), Fault("start-fail")])
    assert faults.start() == (2.0, True)
