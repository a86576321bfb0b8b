"""The journal: the last decisions, by id, by number, and in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from router.fakes import CHAT, Client, House, ask, chat, chunk, fine, run, until, untold

from kvbench.clock import VirtualClock
from kvbench.errors import InputError
from kvbench.policies.decision import Candidate, Decision
from kvbench.router.forward import Limits
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


# How requests end.


async def ends_of(house: House, name: str) -> list[tuple[str, int]]:
    """Return how a request ended on each pod that it was sent to, as the router shows it."""
    reply = await ask(house.url, "GET", f"/decisions/{name}")
    return [(one["end"], one["status"]) for one in reply.json()["decisions"]]


async def sick(call):
    """Answer that it can serve nobody."""
    await call.answer(b"{}", 503)


async def breaks_off(call):
    """Begin an answer, and no more."""
    await call.begin_stream(b"1")
    call.cut()


async def streams(call):
    """Begin an answer and let it hang."""
    await call.begin_stream(b"1")
    await call.gone()


async def silent(call):
    """Say nothing."""
    await call.gone()


@pytest.mark.parametrize(
    ("scripts", "ends"),
    [
        ([fine], [("answered", 200)]),
        ([untold], [("answered", 404)]),
        ([sick, fine], [("failed", 503), ("answered", 200)]),
        ([breaks_off, fine], [("cut", 200)]),
    ],
)
def test_a_decision_says_how_its_request_ended(scripts, ends):
    """Answered, elsewhere after a failure, cut off; the status is that of the pod."""

    async def case():
        async with House(*scripts, policy="round_robin") as house:
            await ask(house.url, "POST", CHAT, chat("hi"), "x-request-id: mine")
            await house.quiet()
            assert await ends_of(house, "mine") == ends

    run(case)


@pytest.mark.parametrize(
    ("script", "status"), [pytest.param(silent, 0, id="before"), pytest.param(streams, 200)]
)
@pytest.mark.parametrize("end", ["gone", "timeout"])
def test_a_decision_says_who_has_given_up(script, status, end):
    """The client that left, or the router whose limits of time were passed."""

    async def case():
        clock = VirtualClock()
        async with House(script, clock=clock) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi"), "x-request-id: mine")
            await house.pods[0].arrivals.get()
            if status:
                await client.head()
            assert await ends_of(house, "mine") == [("", 0)], "it has not ended"
            if end == "gone":
                client.vanish()
                await house.pods[0].calls[0].gone()
            else:
                clock.advance_to(601.0)
                house.router.fleet.sweep()
            await house.quiet()
            assert await ends_of(house, "mine") == [(end, status)]
            client.close()

    run(case)


def test_a_client_that_does_not_read_is_told_from_one_that_left():
    """Its pod had begun to answer, and bears no blame."""

    async def case():
        async def pour(call):
            await call.begin_stream()
            while not call.writer.is_closing():
                await call.send(chunk(bytes(2**16)))

        async with House(pour, limits=Limits(idle_s=0.1)) as house:
            client = await Client.to(house.url)
            client.writer.transport.pause_reading()
            client.send("POST", CHAT, chat("hi", stream=True), "x-request-id: mine")
            call = await house.pods[0].arrivals.get()
            await until(lambda: house.router.fleet.under_way)
            await house.quiet()
            assert await ends_of(house, "mine") == [("unread", 200)]
            await until(call.writer.is_closing)
            client.vanish()

    run(case)
