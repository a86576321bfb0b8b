"""Predictions of a run, folded by cause, and what is said of them."""

import msgspec
import pytest
from fakes_records import failed_row, row, written_run
from records.test_decisions import entry

from kvbench.policies.prediction import CAUSES
from kvbench.records.table import to_frame
from kvbench.records.validity import Limits
from kvbench.report.believed import MEANINGS, MOST_SHOWN, UNTOLD, believed, sentence
from kvbench.report.view import view_run

BLOCK = 16


def turn(index, predicted, cached, cause=None, **changes):
    """Return an answered turn with a prediction."""
    changes |= {"predicted_tokens": predicted, "cached_tokens": cached, "prediction_cause": cause}
    return row(index, **changes)


def test_every_cause_has_its_meaning():
    """A cause that is added must be explained here."""
    assert set(MEANINGS) == {*CAUSES, UNTOLD}


def test_turns_are_grouped_by_cause_in_the_order_of_causes():
    """What was met is "none" whatever is on file; what was not and has no cause is "untold"."""
    rows = [
        turn(0, 96, 96, "none"),
        turn(1, 96, 96, "evicted"),  # an attempt before had that cause
        turn(2, 96, 96),
        turn(3, 96, 64, "late"),
        turn(4, 96, 0, "evicted"),
        turn(5, 0, 96, "late"),
        turn(6, 96, 80),
        turn(7, 96, 80, "none"),  # it cannot be
        turn(8, 96, 80, "of the future"),
        turn(9, None, 80, "late"),
        turn(10, 80, None, None),
        failed_row(11),
    ]
    found = believed(to_frame(rows), BLOCK)
    assert [(one.cause, one.turns, one.apart) for one in found.shares] == [
        ("none", 3, 0), ("evicted", 1, 96), ("late", 2, 32 + 96),
        ("of the future", 1, 16), ("untold", 2, 32),
    ]  # fmt: skip
    assert [one.cause for one in found.failed] == [
        "late", "untold", "evicted", "of the future",
    ]  # fmt: skip
    late = found.shares[2]
    assert (late.predicted.tolist(), late.delivered.tolist()) == ([96, 0], [64, 96])
    assert found.turns == sum(one.turns for one in found.shares) == 9


def test_what_the_router_believed_is_counted_in_tokens():
    """Lost and surprising tokens do not cancel out."""
    rows = [
        turn(0, 512, 512),
        turn(1, 505, 512),  # right to a block of 16
        turn(2, 768, 512),  # 256 are missing
        turn(3, 0, 512),  # 512 are a surprise
        turn(4, None, 512),
    ]
    found = believed(to_frame(rows), BLOCK)
    assert (found.turns, found.exact) == (4, 0.5)
    assert (found.missing_tokens, found.surprise_tokens) == (256, 512 + 7)


def test_a_rare_cause_is_drawn_beside_many_turns_that_went_well():
    """At most so many of a cause, from all of the run; counts are of all."""
    many = [turn(n, 16 * n, 16 * n, "none") for n in range(3000)]
    found = believed(to_frame([*many, turn(3000, 96, 0, "evicted")]), BLOCK)
    well, evicted = found.shares
    assert (well.turns, len(well.predicted)) == (3000, MOST_SHOWN)
    assert (well.predicted[0], well.predicted[-1]) == (0, 16 * 2999)
    assert (evicted.turns, evicted.predicted.tolist()) == (1, [96])


def test_why_predictions_failed_is_told_with_turns_and_tokens(tmp_path):
    """From the decisions beside the rows; the last on a request counts."""
    rows = [turn(n, 96, cached) for n, cached in enumerate((64, 96, 80, 0))]
    folder = written_run(tmp_path, rows)
    told = [("r0", "late"), ("r0", "evicted"), ("r1", "none"), ("r2", "late"), ("r3", "evicted")]
    lines = [msgspec.json.encode(msgspec.structs.replace(entry(i), cause=c)) for i, c in told]
    folder.decisions_path.write_bytes(b"\n".join(lines))
    found = view_run(folder, Limits())
    assert sentence(found.believed) == (
        "right to a block in 25.0 % of 4 turns; 37.5 % of the predicted tokens were not there, "
        "and 0 were that nobody had predicted; why: 2 evicted (128 tokens), 1 late (16 tokens)."
    )
    causes = sorted(str(turn.cause) for turn in found.slowest)
    assert causes == ["evicted", "evicted", "late", "none"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([turn(0, 0, 512, policy="round_robin")], "round_robin predicted no cached token."),
        (
            [turn(0, None, 512, policy=None)],
            "nobody predicted what would be cached: a pod, or another router, does not.",
        ),
        (
            [turn(0, 96, None, policy="prefix_cost")],
            "there is no answer with which a prediction could be compared.",
        ),
        ([], "nobody predicted what would be cached: a pod, or another router, does not."),
    ],
    ids=["a policy that is blind", "no router", "pods that are silent", "nothing"],
)
def test_where_nothing_was_predicted_it_is_said_who_was_silent(rows, said):
    """Round robin, another router, a pod alone: not a router that was wrong."""
    found = believed(to_frame(rows), BLOCK)
    assert sentence(found) == said
    assert found.predicted_tokens == 0
