"""Traces of block ids: read row by row, refused with their line, shared by their ids."""

from __future__ import annotations

import fakes_workload
import pytest

from kvbench.errors import InputError
from kvbench.workload.hash_rows import HashRow
from kvbench.workload.plan import Message, Segment
from kvbench.workload.reading import TraceOptions
from kvbench.workload.trace import read_trace

MOONCAKE = TraceOptions(format="mooncake")


def test_each_row_becomes_a_session_of_one_turn(tmp_path):
    """Due at its time after the first row, with its blocks as segments, the last one partial."""
    plan = read_trace(fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS), seed=3)
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
    assert len(read_trace(path, limit=2).turns) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hash_ids": [0]}, "hash_ids: expected 3 ids for 1100 tokens in blocks of 512, got "),
        ({"hash_ids": [0, 1, -2]}, "hash_ids[2]: expected `int` >= 0"),
        ({"hash_ids": 5}, "hash_ids: expected `array`, got `int`"),
        ({"timestamp": -1}, "timestamp: expected `float` >= 0"),
        ({"timestamp": 1e30}, "timestamp: expected `float` <= 1"),
        ({"timestamp": 0}, "timestamp: expected at least 1000 as in the row before"),
        ({"input_length": 0}, "input_length: expected `int` >= 1, got 0"),
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
        read_trace(path)
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
        read_trace(path, MOONCAKE)


def test_files_that_are_no_traces_are_input_errors(tmp_path):
    """Missing, a directory, empty, one endless line."""
    with pytest.raises(InputError, match=r"none.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl", MOONCAKE)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_trace(tmp_path, MOONCAKE)
    with pytest.raises(InputError, match=r"trace.jsonl: expected at least one row, got none"):
        read_trace(fakes_workload.write_trace(tmp_path, "", ""), MOONCAKE)
    with pytest.raises(InputError, match=r"trace.jsonl:1: expected at most 50,000,000 bytes"):
        read_trace(fakes_workload.write_trace(tmp_path, " " * 50_000_001), MOONCAKE)


def row(n, ids):
    """A row of `n` tokens."""
    return HashRow(timestamp=0, input_length=n, output_length=1, hash_ids=ids)


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
    assert fakes_workload.ideal_hit_rate(rows) == pytest.approx(rate)


CHATS = [
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 40,
     "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
    {"chat_id": 9, "parent_chat_id": -1, "timestamp": 61.2, "input_length": 16,
     "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1]},
    {"chat_id": 11, "parent_chat_id": 7, "timestamp": 63.1, "input_length": 70,
     "output_length": 5, "type": "text", "turn": 2, "hash_ids": [1, 2, 3, 4, 5]},
]  # fmt: skip


def test_bailians_chats_are_sessions(tmp_path):
    """By their parents; blocks of 16 tokens, seconds; the partial block of one is not shared on."""
    plan = read_trace(fakes_workload.write_trace(tmp_path, *CHATS))
    assert [(t.session, t.turn) for t in plan.turns] == [("c7", 1), ("c9", 1), ("c7", 2)]
    assert [t.at for t in plan.turns] == pytest.approx([0, 0.1, 2.0])
    assert [t.content_tokens for t in plan.turns] == [40, 16, 70]
    assert plan.ids_block_size == 16
    assert plan.notes[0].startswith("read as Bailian: blocks of 16 tokens, times in s, global ids")


ADDED = [
    {"timestamp": 0, "input_length": 512, "output_length": 8, "hash_ids": [1], "session_id": "a"},
    {"delay": 250, "input_length": 100, "output_length": 9, "hash_ids": [2], "session_id": "a"},
]


def test_a_session_id_may_mean_that_rows_hold_what_is_new(tmp_path):
    """Taken as whole prompts unless said, with a note; then as added to what was said."""
    path = fakes_workload.write_trace(tmp_path, *ADDED)
    whole = read_trace(path)
    assert [t.content_tokens for t in whole.turns] == [512, 100]
    assert [(t.at, t.think) for t in whole.turns] == [(0, 0), (None, 0.25)]
    assert "taken as whole (--semantics delta)" in whole.notes[1]
    added = read_trace(path, TraceOptions(semantics="delta"))
    assert added.turns[1].messages[0].segments == (
        Segment("id/1", 512), Segment("answer/0", 8), Segment("id/2", 100),
    )  # fmt: skip


def test_block_size_time_unit_scope_and_tail_can_be_said(tmp_path):
    """Local ids are a session's own; without an id, the tail is the row's own."""
    rows = [
        {"timestamp": 0, "input_length": 70, "output_length": 1, "hash_ids": [1, 2]},
        {"timestamp": 2, "input_length": 64, "output_length": 1, "hash_ids": [1, 2]},
    ]
    options = TraceOptions(block_size=32, time_unit="s", ids="local", tail="floor")
    plan = read_trace(fakes_workload.write_trace(tmp_path, *rows), options)
    assert plan.turns[1].at == 2
    assert [s.key for s in plan.turns[0].messages[0].segments] == ["id/r0/1", "id/r0/2", "tail/0"]
    assert not {s.key for s in plan.turns[1].messages[0].segments} & {"id/r0/1"}


def test_a_wrong_block_size_is_recognised(tmp_path):
    """The error names the one that would fit."""
    path = fakes_workload.write_trace(tmp_path, {**CHATS[0], "timestamp": 0})
    with pytest.raises(InputError, match="blocks of 16 would fit: --block-size 16"):
        read_trace(path, MOONCAKE)
