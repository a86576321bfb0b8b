"""A plan, written and read again, is the plan."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.workload.build import build_plan
from kvbench.workload.plan_file import read_plan_file, write_plan
from kvbench.workload.trace import read_trace

HEAD = '{"kvbench": "plan", "version": 1, "name": "x"}\n'
TURN = '{"s": "a", "g": "g", "at": 0, "m": [["user", [["k", 4]]]], "n": 2, "a": "answer/0"}\n'


@given(workload=fakes_workload.agents(), seed=st.integers(0, 99))
def test_a_plan_comes_back_as_it_was(workload, seed):
    """Whatever its clients do."""
    plan = build_plan(workload, seed, ["solved"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.jsonl"
        write_plan(path, plan)
        assert read_plan_file(path, seed=None, limit=None) == plan


def test_what_a_conversation_repeats_is_not_written_again(tmp_path):
    """The file of twenty turns is not twice as large as that of ten turns, squared."""
    text = fakes_workload.CHAT
    sizes = []
    for turns in (100, 200):
        path = tmp_path / "chat.yaml"
        path.write_text(text.replace("{uniform: [1, 4]}", str(turns)))
        from kvbench.workload.load import load_plan

        write_plan(tmp_path / "plan.jsonl", load_plan(path, None))
        sizes.append((tmp_path / "plan.jsonl").stat().st_size)
    assert sizes[1] < 2.2 * sizes[0]


def test_a_limit_and_another_seed(tmp_path):
    """The first turns; other words."""
    path = tmp_path / "plan.jsonl"
    path.write_text(HEAD + TURN + TURN.replace('"at": 0', '"think": 1, "keep": 1'))
    assert len(read_trace(path).turns) == 2
    plan = read_trace(path, seed=7, limit=1)
    assert (plan.seed, len(plan.turns)) == (7, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kvbench": "plan"}', r"plan.jsonl:1: object missing required field `version`"),
        (HEAD.replace("1,", "2,"), r"plan.jsonl:1: version: expected 1, got 2"),
        (HEAD + "x", r"plan.jsonl:2: JSON is malformed"),
        (HEAD + TURN.replace('"n": 2', '"n": 0'), r"plan.jsonl:2: n: expected `int` >= 1"),
        (HEAD + TURN.replace('"n": 2', '"n": 2, "keep": 1'), r"2: keep: expected at most 0, got 1"),
        (
            HEAD + TURN.replace('"n": 2', '"n": 2, "after": [0]'),
            r"2: after: expected numbers below",
        ),
        (HEAD + TURN.replace('[["k", 4]]', "[]"), r"2: m: expected at least one token, got none"),
        (HEAD, r"plan.jsonl: expected at least one turn, got none"),
    ],
)
def test_a_file_that_is_no_plan_is_an_input_error(tmp_path, text, says):
    """With the line."""
    path = tmp_path / "plan.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_trace(path)


def test_a_plan_that_cannot_be_written_is_an_input_error(tmp_path):
    """A folder is no file."""
    path = tmp_path / "plan.jsonl"
    path.write_text(HEAD + TURN)
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        write_plan(tmp_path, read_trace(path))
