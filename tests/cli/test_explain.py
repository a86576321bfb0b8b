"""`kvbench explain`: what it says and what it refuses."""

from __future__ import annotations

import msgspec
import pytest
from fakes_records import row, written_run
from records.test_decisions import entry

from kvbench.cli.explain import explain
from kvbench.errors import InputError


@pytest.fixture
def run(tmp_path):
    """A run of two turns, on one of which there is a decision."""
    rows = [row(index=0, request_id="a"), row(index=1, request_id="b", session="s", turn=2)]
    folder = written_run(tmp_path, rows)
    folder.decisions_path.write_bytes(msgspec.json.encode(entry("b")) + b"\n")
    return folder


def test_a_run_and_a_turn_are_explained(run, capsys):
    """The turn by number, or by session."""
    explain(run.path, None)
    assert "1 decisions: 1 by prefix_cost" in capsys.readouterr().out
    explain(run.path, "1")
    by_number = capsys.readouterr().out
    explain(run.path, "s:2")
    assert capsys.readouterr().out == by_number
    assert "prefix_cost chose it" in by_number
    assert "prefill_s 0.1" in by_number


@pytest.mark.parametrize(
    ("turn", "words"),
    [("7", "this run has no turn '7'"), ("0", "no decision on it is on file")],
)
def test_a_turn_that_is_not_there_is_refused(run, turn, words):
    """With what there is."""
    with pytest.raises(InputError, match=words):
        explain(run.path, turn)


def test_a_run_without_decisions_is_refused(run):
    """It was not sent to a router of ours."""
    run.decisions_path.unlink()
    with pytest.raises(InputError, match="no decisions of a router") as raised:
        explain(run.path, None)
    assert "kvbench router" in raised.value.hint
