import math

import pytest
from fakes_records import failed_row, row, story

from kvbench.records.schema import TurnRecord
from kvbench.records.table import SCHEMA, chunk_gaps, join_tables, to_frame, to_table

DERIVED = ["lateness_s", "ttft_s", "ttft_intended_s", "tpot_s", "e2e_s"]


def test_the_columns_are_the_fields_of_a_row():
    """A field that is added to the row must be added here, or it would be lost on the way."""
    assert SCHEMA.names == list(TurnRecord.__struct_fields__)


def test_a_table_gives_the_rows_back():
    """Nothing is rounded or guessed between a row and its columns."""
    rows = [*story(sessions=3), failed_row(100, pod="pod-1"), row(101, first_answer_s=None)]

    assert [TurnRecord(**values) for values in to_table(rows).to_pylist()] == rows


def test_derived_columns_equal_the_properties_of_the_row():
    """One definition of every latency, whether it is asked of a row or of a column."""
    rows = [
        *story(sessions=4),
        failed_row(100),
        failed_row(101, error="not_sent", sent_s=None),
        row(102, completion_tokens=1),
        row(103, completion_tokens=None),
        row(104, error="cut"),
    ]
    frame = to_frame(rows)

    for name in DERIVED:
        expected = [getattr(r, name) for r in rows]
        assert frame[name].tolist() == pytest.approx(
            [math.nan if value is None else value for value in expected], nan_ok=True, abs=1e-12
        )
    assert frame["ok"].tolist() == [r.ok for r in rows]


def test_unknown_cached_tokens_are_nan_and_a_miss_is_zero():
    """Unknown is not a miss."""
    frame = to_frame([row(0, cached_tokens=None), row(1, cached_tokens=0), row(2)])

    assert frame["hit_share"].tolist() == pytest.approx([math.nan, 0.0, 0.512], nan_ok=True)
    assert frame["uncached_tokens"].tolist() == pytest.approx([math.nan, 1000, 488], nan_ok=True)


def test_rows_come_ordered_by_index_whatever_the_order_of_the_tables():
    """Two workers' rows interleave."""
    tables = [to_table([row(3), row(1)]), to_table([row(0), row(2)])]

    assert join_tables(tables)["index"].to_pylist() == [0, 1, 2, 3]


def test_no_rows_make_an_empty_frame_with_all_columns():
    """A run of which nothing is left has the same columns, and no rows."""
    frame = to_frame([])

    assert len(frame) == 0
    assert set(SCHEMA.names) | set(DERIVED) <= set(frame.columns)
    assert len(chunk_gaps(frame)) == 0


def test_chunk_gaps_follow_a_selection_of_rows():
    """The gaps of the selected rows, in their order."""
    frame = to_frame([row(i, chunk_gaps_s=[0.1 * i] * i) for i in range(5)])

    assert chunk_gaps(frame[frame["index"].isin([1, 3])]).tolist() == [
        0.1,
        0.3 + 5e-17,
        0.3 + 5e-17,
        0.3 + 5e-17,
    ]
