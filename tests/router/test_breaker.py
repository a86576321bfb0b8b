"""When a pod is left alone, and when it is tried again."""

from __future__ import annotations

from kvbench.router.breaker import Breaker


def opened(now: float = 0.0) -> Breaker:
    """Return a breaker that three failures have opened."""
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(now, sent=9)
    return breaker


def test_three_failures_in_a_row_open_it():
    """Two do not, and a success between them starts the count anew."""
    breaker = Breaker()
    breaker.failed(0.0, sent=9)
    breaker.failed(0.0, sent=9)
    assert breaker.allows(0.0, in_flight=5, sent=10)
    breaker.succeeded()
    breaker.failed(0.0, sent=9)
    breaker.failed(0.0, sent=9)
    assert breaker.allows(0.0, in_flight=5, sent=10)
    breaker.failed(0.0, sent=9)
    assert not breaker.allows(0.0, in_flight=0, sent=10)


def test_after_a_second_it_allows_one_at_a_time():
    """A trial."""
    breaker = opened()

    assert not breaker.allows(0.9, in_flight=0, sent=10)
    assert breaker.allows(1.0, in_flight=0, sent=10)
    assert not breaker.allows(1.0, in_flight=1, sent=10)


def test_what_was_under_way_when_it_opened_is_no_trial():
    """A stream may take an hour; one trial beside it is allowed, and after that fails another."""
    breaker = opened()

    assert not breaker.allows(0.9, in_flight=3, sent=9)
    assert breaker.allows(1.0, in_flight=3, sent=9)
    assert not breaker.allows(1.0, in_flight=4, sent=10)
    breaker.failed(1.0, sent=10)
    assert not breaker.allows(2.9, in_flight=3, sent=10)
    assert breaker.allows(3.0, in_flight=3, sent=10)


def test_failed_trials_double_the_pause_up_to_thirty_seconds():
    """1, 2, 4, 8, 16, 30, 30."""
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(7):
        pauses.append(breaker.pause_s)
        now = breaker.until
        breaker.failed(now, sent=9)

    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_a_hundred_requests_that_die_with_their_pod_count_as_one_failure_of_it():
    """They were under way when it opened, and say nothing about trials."""
    breaker = Breaker()
    for _ in range(100):
        breaker.failed(0.0, sent=9)

    assert breaker.until == 1.0


def test_a_trial_that_is_answered_closes_it_on_probation():
    """One more failure opens it again, for longer."""
    breaker = opened()
    breaker.answered()
    assert breaker.allows(1.0, in_flight=50, sent=10)

    breaker.failed(1.0, sent=9)

    assert not breaker.allows(1.5, in_flight=0, sent=10)
    assert breaker.until == 3.0


def test_an_answer_in_full_ends_probation():
    """And the pause starts at one second again."""
    breaker = opened()
    breaker.succeeded()

    assert breaker == Breaker()
