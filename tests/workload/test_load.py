"""A plan from what the command line names."""

from __future__ import annotations

import fakes_workload
import pytest

from kvbench.errors import InputError
from kvbench.workload.load import fingerprint, load_plan


@pytest.fixture
def workload(tmp_path):
    """A workload file."""
    path = tmp_path / "chat.yaml"
    path.write_text(fakes_workload.CHAT, encoding="utf-8")
    return path


def test_the_seed_of_the_file_holds_unless_another_is_given(workload):
    """The seed is part of the plan."""
    assert load_plan(workload, None).seed == 5
    assert load_plan(workload, None, seed=0).seed == 0
    assert load_plan(workload, None) == load_plan(workload, None, seed=5)
    assert load_plan(workload, None, seed=6).turns != load_plan(workload, None).turns


def test_a_limit_keeps_the_first_turns(workload):
    """In the order of the plan."""
    whole = load_plan(workload, None)
    assert load_plan(workload, None, limit=5).turns == whole.turns[:5]


def test_speed_divides_times_and_pauses(workload, tmp_path):
    """For workloads and for traces; nothing else changes."""
    slow, fast = load_plan(workload, None), load_plan(workload, None, speed=4)
    assert [t.at and t.at / 4 for t in slow.turns] == [t.at for t in fast.turns]
    assert [t.think / 4 for t in slow.turns] == [t.think for t in fast.turns]
    assert [t.messages for t in slow.turns] == [t.messages for t in fast.turns]
    trace = fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS)
    assert [turn.at for turn in load_plan(None, trace, speed=2).turns] == [0, 0.25, 1.50025]


def test_a_trace_has_a_seed_for_its_words(tmp_path):
    """Which tokens an id stands for depends on it."""
    trace = fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS)
    assert load_plan(None, trace).seed == 0
    assert load_plan(None, trace, seed=9, limit=2).seed == 9
    assert len(load_plan(None, trace, limit=2).turns) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit": 0}, "--limit: expected at least 1, got 0"),
        ({"speed": 0}, "--speed: expected more than 0, got 0"),
        ({"speed": float("inf")}, "--speed: expected more than 0, got inf"),
        ({"speed": float("nan")}, "--speed: expected more than 0, got nan"),
    ],
)
def test_options_out_of_range_are_refused(workload, options, says):
    """By their name on the command line."""
    with pytest.raises(InputError, match=says):
        load_plan(workload, None, **options)


def test_exactly_one_source_is_needed(workload):
    """Neither and both are mistakes."""
    for arguments in [(None, None), (workload, workload)]:
        with pytest.raises(InputError, match="either a workload file or a trace"):
            load_plan(*arguments)


def test_a_fingerprint_is_the_digest_of_a_file_or_of_a_folders_files(tmp_path):
    """Of the bytes, read piece by piece; a folder's changes with any of its files."""
    (tmp_path / "a").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert fingerprint(tmp_path / "a") == known
    before = fingerprint(tmp_path)
    (tmp_path / "b").write_bytes(b"")
    assert fingerprint(tmp_path) != before
    with pytest.raises(InputError, match="none: cannot be read"):
        fingerprint(tmp_path / "none")
