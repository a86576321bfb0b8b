"""The journal: the last decisions, by id, by number, and in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.policies.decision import Candidate, Decision
from kvbench.router.journal import Journal, Record


def record(identity: str) -> Record:
    """Return a decision between two pods, one of which is known exactly."""
    candidates = (Candidate("a", 30, 2.0, {"x": 2.0}), Candidate("b", 48, 1.0, {"x": 1.0}))
    decision = Decision("b", "prefix_cost", "prefix", 48, candidates)
    return Record(identity, 7.0, "m", decision, 100, 16, {"b": 3}, {"b": 0.5}, {"a": "degraded"})


def test_an_entry_shows_every_pod_the_cheapest_first():
    """What is known exactly stands beside what the policy took it for."""
    entry = record("r").entry()
    assert [(one.pod, one.trust, one.held_tokens) for one in entry.candidates] == [
        ("b", "exact", 48),
        ("a", "degraded", None),
    ]
    assert [one.expected_ttft_s for one in entry.candidates] == [0.5, None]
    assert (entry.exact, entry.predicted_tokens, entry.number) == (True, 48, 0)


def test_decisions_are_found_by_id_in_their_order():
    """A request that was tried twice has two."""
    journal = Journal()
    for name in "aba":
        journal.begin(record(name))
    assert [entry.id for entry in journal.of("a")] == ["a", "a"]
    assert journal.of("z") == []
    assert [entry.id for entry in journal.latest(2)] == ["a", "b"]
    assert len(journal) == 3


def test_those_that_have_ended_are_numbered_and_can_be_asked_for_since_a_number():
    """Whoever asks again gets what is new, and no more than he wants."""
    journal = Journal()
    records = [record(str(n)) for n in range(4)]
    for one in records:
        journal.begin(one)
    for one in reversed(records):
        journal.complete(one)
    assert [entry.id for entry in journal.since(0, 10)] == ["3", "2", "1", "0"]
    assert [(entry.id, entry.number) for entry in journal.since(2, 1)] == [("1", 3)]
    assert journal.since(4, 10) == []
    assert journal.since(99, 10) == []
    assert journal.count == 4


def test_only_the_last_are_kept():
    """Both in the order of their beginning and of their end."""
    journal = Journal(most=3)
    for number in range(10):
        one = record(str(number))
        journal.begin(one)
        journal.complete(one)
    assert [entry.id for entry in journal.latest(99)] == ["9", "8", "7"]
    assert [entry.number for entry in journal.since(0, 99)] == [8, 9, 10]


def test_each_decision_is_a_line_of_the_file_when_its_request_has_ended(tmp_path):
    """Appended: a router that starts again goes on."""
    file = tmp_path / "decisions.jsonl"
    for name in "ab":
        journal = Journal(file)
        one = record(name)
        journal.begin(one)
        journal.flush()
        assert f'"id":"{name}"' not in file.read_text()
        journal.complete(one)
        journal.close()
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["a", "b"]


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    """Before the router starts."""
    with pytest.raises(InputError, match="cannot be written"):
        Journal(tmp_path / "missing" / "decisions.jsonl")


@pytest.mark.parametrize("act", ["flush", "close", "complete"])
def test_a_disk_that_is_full_ends_the_file_and_nothing_else(act, caplog):
    """It is said once, wherever it shows; decisions are kept in memory as before."""
    journal = Journal(Path("/dev/full"), most=1000)
    for number in range(500 if act == "complete" else 1):
        one = record(str(number))
        journal.begin(one)
        journal.complete(one)
    if act == "flush":
        journal.flush()
    journal.close()

    assert [line.getMessage() for line in caplog.records] == [
        "--decision-log /dev/full: No space left on device; no further decisions are written"
    ]
    one = record("later")
    journal.begin(one)
    journal.complete(one)
    assert [entry.id for entry in journal.of("later")] == ["later"]
