"""Mooncake traces: read row by row, refused with their line, shared by their ids."""

from __future__ import annotations

import fakes_workload
import pytest

from kvbench.errors import InputError
from kvbench.workload.mooncake import TraceRow, ideal_hit_rate, read_plan, read_rows
from kvbench.workload.plan import Message, Segment


def test_each_row_becomes_a_session_of_one_turn(tmp_path):
    """Due at its time after the first row, with its blocks as segments, the last one partial."""
    plan = read_plan(fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS), seed=3)
    assert (plan.name, plan.seed, plan.api, plan.ids_block_size) == ("trace", 3, "completions", 512)
    assert [turn.at for turn in plan.turns] == [0, 0.5, 3.0005]
    assert [turn.max_tokens for turn in plan.turns] == [5, 7, 1]
    assert [turn.content_tokens for turn in plan.turns] == [1100, 1024, 600]
    assert [turn.group for turn in plan.turns] == ["id-0"] * 3
    assert len({turn.session for turn in plan.turns}) == 3
    assert plan.turns[0].messages == (
        Message("user", (Segment("id/0", 512), Segment("id/1", 512), Segment("id/2", 76))),
    )


def test_blank_lines_are_passed_over_and_a_limit_ends_the_reading(tmp_path):
    """What comes after the limit is not looked at."""
    path = fakes_workload.write_trace(
        tmp_path, fakes_workload.ROWS[0], "", "  ", fakes_workload.ROWS[1], "not JSON"
    )
    assert len(list(read_rows(path, limit=2))) == 2
    assert len(read_plan(path, limit=1).turns) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hash_ids": [0]}, "hash_ids: expected 3 ids for 1100 tokens in blocks of 512, got "),
        ({"hash_ids": [0, 1, -2]}, "hash_ids[2]: expected `int` >= 0"),
        ({"hash_ids": 5}, "hash_ids: expected `array`, got `int`"),
        ({"timestamp": -1}, "timestamp: expected `float` >= 0"),
        ({"timestamp": 1e30}, "timestamp: expected `float` <= 1"),
        ({"timestamp": 0}, "timestamp: expected at least 1000 as in the row before"),
        ({"input_length": 0}, "input_length: expected `int` >= 1"),
        ({"input_length": 1e3}, "input_length: expected `int`, got `float`"),
        ({"output_length": "5"}, "output_length: expected `int`, got `str`"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_with_its_line(tmp_path, change, says):
    """File, line, key, expectation."""
    path = fakes_workload.write_trace(
        tmp_path, fakes_workload.ROWS[0], "", fakes_workload.ROWS[0] | change
    )
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert caught.value.message.startswith(f"{path}:3: {says}")
    assert "timestamp, input_length, output_length, hash_ids" in caught.value.hint


@pytest.mark.parametrize(
    "line",
    ["not JSON", "{", "[1]", "5", '{"timestamp": 1}', "[" * 5000, '{"hash_ids": "\ud800"}'],
    ids=["words", "cut", "a list", "a number", "keys missing", "deep", "half a character"],
)
def test_a_line_that_is_no_row_is_an_input_error(tmp_path, line):
    """Whatever stands there."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(line.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=r"trace.jsonl:1: "):
        read_plan(path)


def test_files_that_are_no_traces_are_input_errors(tmp_path):
    """Missing, a directory, empty, one endless line."""
    with pytest.raises(InputError, match=r"none.jsonl: cannot be read: No such file"):
        read_plan(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_plan(tmp_path)
    with pytest.raises(InputError, match=r"trace.jsonl: expected at least one row, got none"):
        read_plan(fakes_workload.write_trace(tmp_path, "", ""))
    with pytest.raises(InputError, match=r"trace.jsonl:1: expected at most 10,000,000 bytes"):
        read_plan(fakes_workload.write_trace(tmp_path, " " * 10_000_001))


def row(n, ids):
    """A row of `n` tokens."""
    return TraceRow(timestamp=0, input_length=n, output_length=1, hash_ids=ids)


@pytest.mark.parametrize(
    ("rows", "rate"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([row(1024, [1, 2])], 0, id="cold"),
        pytest.param([row(1025, [1, 2, 3])] * 2, 1024 / 2050, id="a repeated prompt"),
        pytest.param([row(1024, [1, 2])] * 2, 512 / 2048, id="the last token is computed"),
        pytest.param([row(700, [1, 2]), row(2000, [1, 2, 3, 4])], 512 / 2700, id="a partial block"),
        pytest.param([row(1025, [1, 2, 3]), row(1025, [9, 2, 3])], 0, id="after another beginning"),
        pytest.param(
            [row(2000, [1, 2, 3, 4]), row(2000, [1, 9, 3, 4])], 512 / 4000, id="a gap ends the hit"
        ),
    ],
)
def test_the_ideal_hit_rate_counts_full_blocks_from_the_beginning(rows, rate):
    """Weighted by tokens, in the order of the rows."""
    assert ideal_hit_rate(rows) == pytest.approx(rate)
