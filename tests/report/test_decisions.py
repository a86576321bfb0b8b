"""Why turns went where they went, in words and tables."""

from __future__ import annotations

import msgspec
import pytest
from fakes_records import row
from records.test_decisions import entry

from kvbench.records.decisions import Option
from kvbench.report.decisions import explain_run, explain_turn


def decided(identity, **changes):
    """Return a decision with some fields changed."""
    return msgspec.structs.replace(entry(identity), **changes)


def test_a_run_is_told_by_policies_causes_and_regret():
    """And the worst decisions come first in the table."""
    rows = [row(index=i, request_id=f"r{i}") for i in range(4)]
    decisions = {
        "r0": [decided("r0", cached_tokens=96, cause="none", regret_s=0.0)],
        "r1": [decided("r1", cached_tokens=32, cause="evicted", regret_s=0.25)],
        "r2": [decided("r2", cached_tokens=0, cause="late", regret_s=0.0)],
    }
    told = explain_run(rows, decisions)
    text = "\n".join(told.sentences)
    assert "3 decisions: 3 by prefix_cost" in text
    assert "288 predicted, 128 delivered; tokens known for 100.0 %" in text
    assert "1 × evicted: what was missing had been evicted since the decision" in text
    assert "83.3 ms on average; 66.7 % of the decisions were the best there was" in text
    assert "1 of 4 turns have no decision on file" in text
    assert [cells[0] for cells in told.grids[0].rows] == ["1", "2"]
    assert told.grids[0].rows[0][-1] == "250 ms"


def test_every_decision_of_a_run_has_its_line():
    """Causes where both sides are known; what became of the turn where the pod said nothing."""
    ends = [None, None, "cut", "cut", "http"]
    rows = [row(index=i, request_id=f"r{i}", error=error) for i, error in enumerate(ends)]
    decisions = {f"r{i}": [decided(f"r{i}")] for i in range(1, 5)}
    decisions["r0"] = [decided("r0", cached_tokens=96, cause="none")]
    lines = explain_run(rows, decisions).sentences
    assert lines[0] == "5 decisions: 5 by prefix_cost"
    assert [line.strip() for line in lines[2:]] == [
        "1 × none: as predicted",
        "2 × cut: the stream broke off",
        "1 × untold: the pod did not say how many tokens it had cached",
        "1 × http: the answer was an error",
    ]


def test_a_run_whose_decisions_were_all_good_has_no_table():
    """There is nothing to point at."""
    told = explain_run([row(request_id="r")], {"r": [decided("r", cached_tokens=96, cause="none")]})
    assert told.grids == []


def test_a_turn_is_told_with_every_pod_and_what_spoke_for_it():
    """Each attempt has its own table; the chosen pod has an arrow."""
    options = [
        Option("b", 0, 0.05, {"prefill_s": 0.05}, "exact", 0, 0.1),
        Option("a", 96, 0.10, {"prefill_s": 0.01, "beside_s": 0.09}, "exact", 96, 0.2),
        Option("c", 10, 0.40, {}, "degraded"),
    ]
    second = decided(
        "r", candidates=options, regret_s=0.1, cached_tokens=80, cause="evicted", policy="chwbl"
    )
    first, told = explain_turn(row(request_id="r"), [decided("r"), second])
    assert "96 cached tokens predicted" in first.sentences[2]
    assert "(attempt 2)" in told.sentences[0]
    assert told.sentences[1] == "chwbl chose it: its cached prefix decided"
    assert (
        "96 cached tokens predicted, 80 delivered (evicted): what was missing" in told.sentences[2]
    )
    assert told.sentences[4].endswith("expected 100 ms earlier on b")
    assert [cells[:3] for cells in told.grids[0].rows] == [
        ["", "b", "exact"],
        ["→", "a", "exact"],
        ["", "c", "degraded"],
    ]
    costs = told.grids[1]
    assert (list(costs.words), list(costs.numbers)) == (["", "pod"], ["prefill s", "beside s"])
    assert costs.rows == [
        ["", "b", "0.05", "–"],
        ["→", "a", "0.01", "0.09"],
        ["", "c", "–", "–"],
    ]
    assert told.grids[0].rows[2][-1] == "–"


def test_a_decision_without_regret_says_that_it_was_the_best():
    """Expected where the pods are known exactly."""
    (told,) = explain_turn(row(request_id="r"), [decided("r", regret_s=0.0)])
    assert "no other pod promised an earlier first token" in told.sentences


@pytest.mark.parametrize(
    ("seen", "first_token_s", "sentence"),
    [
        (0.25, 0.301, "first token: expected after 200 ms, came after 250 ms"),
        (None, 0.301, "first token: expected after 200 ms, came after 300 ms"),
        (None, None, "first token: expected after 200 ms, never came"),
    ],
)
def test_the_first_token_that_came_stands_beside_the_one_expected(seen, first_token_s, sentence):
    """By the router's clock, else by the client's."""
    turn = row(request_id="r", first_token_s=first_token_s)
    (told,) = explain_turn(turn, [decided("r", ttft_s=seen)])
    assert sentence in told.sentences


def test_an_attempt_that_was_followed_by_another_has_no_part_in_the_first_token():
    """That one is the last's; pods that are not exact have no expectation."""
    unknown = [Option("a", 96, 0.1, {}, "cold")]
    tried, told = explain_turn(
        row(request_id="r"), [decided("r"), decided("r", candidates=unknown)]
    )
    assert "first token: expected after 200 ms, never came" in tried.sentences
    assert "first token: came after 200 ms" in told.sentences


@pytest.mark.parametrize(
    ("end", "status", "sentence"),
    [
        ("failed", 503, "its end: answered 503: the pod failed before it was heard: another was"),
        ("failed", 0, "its end: the pod failed before it was heard: another was asked, if one was"),
        ("gone", 200, "its end: answered 200: the client left"),
        ("answered", 400, "its end: answered 400"),
    ],
)
def test_an_attempt_that_was_not_answered_well_says_how_it_ended(end, status, sentence):
    """The others, and those of runs of before, say nothing of it."""
    (told,) = explain_turn(row(request_id="r"), [decided("r", end=end, status=status)])
    assert told.sentences[-1].startswith(sentence)
    for fine in ({}, {"end": "answered", "status": 200}):
        (told,) = explain_turn(row(request_id="r"), [decided("r", **fine)])
        assert not any(line.startswith("its end") for line in told.sentences)
