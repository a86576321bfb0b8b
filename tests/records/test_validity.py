import pytest
from fakes_records import failed_row, manifest, row, story

from kvbench.records.manifest import Testimony
from kvbench.records.reader import Damage
from kvbench.records.summary import summarise
from kvbench.records.table import to_frame
from kvbench.records.validity import Limits, validity


def _judge(rows, damage=Damage(), limits=Limits(), **changes):  # noqa: B008 - frozen values
    said = manifest(rows, **changes)
    return validity(summarise(to_frame(rows), said), said, damage, limits)


def test_a_punctual_complete_cold_run_is_valid():
    """No reason is found where there is none."""
    assert _judge(story()) == []


def test_failed_turns_are_a_result_and_not_a_reason():
    """A target that breaks is judged, not excused."""
    assert _judge([row(0), failed_row(1, "http"), failed_row(2, "timeout")]) == []


@pytest.mark.parametrize(
    ("rows", "changes", "reason"),
    [
        pytest.param(
            [row(i, sent_s=i + 0.25) for i in range(5)], {},
            "the load generator was late: p99 of 250 ms, limit 100 ms", id="late",
        ),
        pytest.param(
            [row(0)], {"planned_turns": 3}, "1 rows for 3 planned turns", id="rows lost"
        ),
        pytest.param([], {"planned_turns": None}, "there are no rows", id="no rows, no plan"),
        pytest.param([], {}, "the plan has no turns", id="empty plan"),
        pytest.param(
            [row(0, cached_tokens=992)], {},
            "hits of 99.2 % are above the ceiling of 76.8 %: "
            "the pods were probably warm from earlier traffic", id="warm pods",
        ),
        pytest.param(
            [row(0)], {"load": [Testimony(loop_delay_p99_s=0.3), Testimony(worker=1)]},
            "the load generator was too busy to keep time: its event loop ran late by a p99 of "
            "300 ms, limit 100 ms", id="busy generator",
        ),
        pytest.param(
            [row(0)], {"state": "interrupted"}, "the run was interrupted before its end",
            id="interrupted",
        ),
        pytest.param(
            [row(0)], {"state": "failed"}, "a part of the stack broke during the run", id="broken",
        ),
        pytest.param(
            [row(0)], {"state": "running"},
            "the run has not ended, or was killed before it could say so", id="not ended",
        ),
        pytest.param(
            [row(0), failed_row(1, "not_sent", sent_s=None)], {},
            "1 of 2 turns were never sent", id="not sent",
        ),
        pytest.param([row(0)], {"validity": ["pod-1 vanished"]}, "pod-1 vanished", id="said so"),
    ],
)  # fmt: skip
def test_each_reason_is_a_sentence_with_its_number(rows, changes, reason):
    """Exactly the one reason, in words."""
    assert _judge(rows, **changes) == [reason]


def test_damaged_rows_are_reasons():
    """Rows that were skipped may have been the slow ones."""
    damage = Damage(broken=1, first_broken="rows-0.jsonl:7: x", duplicates=2, first_duplicate=4)

    assert _judge([row(0)], damage) == damage.sentences()


def test_a_reason_that_the_manifest_holds_already_is_not_said_twice():
    """The run writes what it found; who reads it later finds it again."""
    said = ["the run was interrupted before its end"]

    assert _judge([row(0)], state="interrupted", validity=said) == said


def test_a_hair_above_the_ceiling_is_allowed():
    """Turns that overtake each other move a block or two."""
    assert _judge([row(0, cached_tokens=772)]) == []


def test_an_approximate_ceiling_is_allowed_to_be_off_by_as_much_as_the_tokens_are():
    """Pods with another tokenizer: five percent more tokens, four points more hits."""
    tokens = {"planned_prompt_tokens": 1000, "prompt_tokens": 1050, "ceiling_tokens": 768}

    assert _judge([row(0, cached_tokens=848, **tokens)]) == []
    assert len(_judge([row(0, cached_tokens=1000, **tokens)])) == 1


def test_limits_are_arguments():
    """Who needs a stricter generator says so."""
    assert len(_judge([row(0)], limits=Limits(lateness_p99_s=1e-4))) == 1
