from __future__ import annotations

from collections import Counter

from fakes_records import failed_row, row
from hypothesis import given
from hypothesis import strategies as st

from kvbench.records.table import to_frame
from kvbench.report.answers import answers_by_context
from kvbench.text.degeneration import KINDS

LONG = {"completion_tokens": 40, "max_tokens": 40}


def test_where_nothing_is_wrong_there_is_nothing_to_say():
    """However long the answers are."""
    assert answers_by_context(to_frame([row(i, **LONG) for i in range(3)])) == ()


def test_answers_are_counted_by_context_and_kind():
    """Three near the end of the window, of which one loops; one refused; one that is fine."""
    rows = [
        row(0, **LONG, context_ratio=0.1),
        row(1, **LONG, context_ratio=0.95),
        row(2, **LONG, context_ratio=0.95, degeneration="loop"),
        row(3, **LONG, context_ratio=1.0),
        failed_row(4, degeneration="overflow"),
    ]
    lines = answers_by_context(to_frame(rows))

    assert [(line.context, line.judged, round(line.share, 3)) for line in lines] == [
        ("0-25", 1, 0.0),
        ("90-100", 3, 0.333),
        ("over", 1, 1.0),
    ]
    assert lines[1].kinds == {"loop": 1, "salad": 0, "echo": 0, "empty": 0, "overflow": 0}


any_row = st.tuples(
    st.sampled_from([None, *KINDS]),
    st.one_of(st.none(), st.floats(0.0, 1.2)),
    st.sampled_from([3, 31, 32, 90]),
    st.booleans(),
)


@given(st.lists(any_row, min_size=1, max_size=20))
def test_columns_say_what_rows_say(drawn):
    """Judged and context are those of `TurnRecord`."""
    rows = [
        (row if ok else failed_row)(
            index, degeneration=kind, context_ratio=ratio, completion_tokens=tokens
        )
        for index, (kind, ratio, tokens, ok) in enumerate(drawn)
    ]
    lines = {line.context: line.judged for line in answers_by_context(to_frame(rows))}

    ill = any(one.degeneration is not None for one in rows)
    assert lines == (Counter(one.context for one in rows if one.judged) if ill else {})
