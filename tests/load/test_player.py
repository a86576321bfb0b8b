"""What Locust's tables get to see of a row."""

import msgspec
from fakes_load import turn

from kvbench.load.outcome import STOPPED
from kvbench.load.player import entries
from kvbench.records.unsent import Expected, unsent


def row(**more):
    """Return a row with these fields."""
    asked = turn(0, session="s", number=more.pop("turn", 1))
    bare = unsent(asked, worker=0, intended=1.0, expected=Expected(), request_id="x")
    return msgspec.structs.replace(bare, error=None, error_message=None, **more)


def test_an_answered_turn_is_shown_whole_and_by_its_first_token():
    """In milliseconds from the actual send."""
    shown = entries(row(sent_s=1.5, first_token_s=1.75, last_token_s=3.5, end_s=4.0, status=200))
    assert [(e["request_type"], e["name"], e["response_time"]) for e in shown] == [
        ("E2E", "turn 1", 2000.0),
        ("TTFT", "turn 1", 250.0),
    ]
    assert {e["exception"] for e in shown} == {None}


def test_first_and_later_turns_have_lines_of_their_own():
    """The first has a cold prefix, so mixing them would say little."""
    assert entries(row(turn=3, sent_s=1.0, last_token_s=2.0))[0]["name"] == "turn 2+"


def test_a_failed_turn_is_one_failure_with_few_words():
    """Locust keeps a line for each different sentence."""
    failed = row(sent_s=1.0, first_token_s=1.5, end_s=2.0, status=503)
    failed = msgspec.structs.replace(failed, error="http", error_message="503: queue is at 17")
    (shown,) = entries(failed)
    assert (shown["response_time"], str(shown["exception"])) == (1000.0, "http 503")


def test_a_turn_that_found_no_connection_is_a_failure():
    """It was tried, though nothing was sent."""
    failed = msgspec.structs.replace(row(end_s=1.25), error="connect", error_message="refused")
    (shown,) = entries(failed)
    assert (shown["response_time"], str(shown["exception"])) == (250.0, "connect")


def test_what_was_stopped_is_nobodys_failure():
    """Neither what was not sent nor what was on its way."""
    cut = msgspec.structs.replace(row(sent_s=1.0), error="cut", error_message=STOPPED)
    assert entries(cut) == []
    assert entries(msgspec.structs.replace(cut, error="not_sent", error_message="…")) == []
