"""The decisions of a run, from disk."""

from __future__ import annotations

import msgspec

from kvbench.records.decisions import Entry, Option, read_causes, read_decisions


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
