"""The decisions of a run, from disk."""

from __future__ import annotations

import msgspec

from kvbench.records.decisions import DecisionLog, Entry, Option, read_causes, read_decisions


def entry(identity, number=1):
    """Return a decision."""
    return Entry(
        id=identity,
        at=1.0,
        model="m",
        pod="a",
        policy="prefix_cost",
        reason="prefix",
        prompt_tokens=100,
        exact=True,
        predicted_tokens=96,
        candidates=[Option("a", 96, 0.1, {"prefill_s": 0.1}, "exact", 96, 0.2)],
        number=number,
    )


def test_decisions_come_back_by_request_in_their_order(tmp_path):
    """A request tried twice has two; a line that a crash has cut is passed over."""
    file = tmp_path / "decisions.jsonl"
    lines = [msgspec.json.encode(entry(name, n)) for n, name in enumerate("aba")]
    file.write_bytes(b"\n".join([*lines, lines[0][:40]]))
    found = read_decisions(file)
    assert {name: [one.number for one in entries] for name, entries in found.items()} == {
        "a": [0, 2],
        "b": [1],
    }
    assert found["b"] == [entry("b", 1)]
    assert list(read_decisions(file, {"b"})) == ["b"]


class Ring:
    """A router's last thousand decisions, some of which come before each look."""

    def __init__(self):
        self.ended = 0
        self.looks = 0

    def get(self, path):
        """Answer."""
        self.looks += 1
        since, most = (int(part.partition("=")[2]) for part in path.partition("?")[2].split("&"))
        first = max(since, self.ended - 1000)
        found = [entry(f"run-{n}", n) for n in range(first + 1, min(first + most, self.ended) + 1)]
        return msgspec.json.encode({"decisions": found, "ended": self.ended})


def test_the_faster_decisions_come_the_sooner_is_the_next_look(tmp_path):
    """At six thousand a second too they are all collected; when they stop, so does the hurry."""
    ring = Ring()
    log = DecisionLog(tmp_path / "decisions.jsonl", "run-", ring.get)
    log.begin()
    for per_second in (1900, 3000, 6000):
        for _ in range(10):
            ring.ended += int(per_second * log.wait_s)
            log.collect()
        assert log.wait_s < 300 / per_second
    assert log.lost == 0
    assert len(read_decisions(tmp_path / "decisions.jsonl")) == ring.ended
    for _ in range(5):
        log.collect()
    assert log.wait_s == 0.5


def test_what_came_faster_than_it_could_be_collected_is_counted(tmp_path):
    """The router keeps a thousand; the oldest are gone."""
    ring = Ring()
    log = DecisionLog(tmp_path / "decisions.jsonl", "run-", ring.get)
    log.begin()
    for number in (500, 1500, 1000):
        ring.ended += number
        log.collect()
    assert log.lost == 500
    assert len(read_decisions(tmp_path / "decisions.jsonl")) == 2500


def test_a_run_without_decisions_has_none(tmp_path):
    """There was no router, or it does not tell."""
    assert read_decisions(tmp_path / "decisions.jsonl") == {}
    assert read_causes(tmp_path / "decisions.jsonl") == {}


def test_of_a_request_that_was_tried_twice_the_last_cause_counts(tmp_path):
    """It is that of the pod that answered; a request that was not answered has none."""
    file = tmp_path / "decisions.jsonl"
    told = [("a", None), ("a", "evicted"), ("b", None), ("c", "none"), ("d", "late"), ("d", None)]
    entries = [msgspec.structs.replace(entry(name), cause=cause) for name, cause in told]
    file.write_bytes(b"\n".join([*map(msgspec.json.encode, entries), b"{torn", b"[]", b"\xff"]))
    assert read_causes(file) == {"a": "evicted", "c": "none"}
