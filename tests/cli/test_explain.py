"""`kvbench explain`: what it says and what it refuses."""

from __future__ import annotations

import msgspec
import pytest
from fakes_records import row, written_run
from records.test_decisions import entry

from kvbench.cli.explain import explain
from kvbench.errors import InputError
from kvbench.records.decisions import Option


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
    assert "What their cost is made of" in by_number


def test_tables_fit_eighty_columns_and_break_no_pods_name(run, capsys, monkeypatch):
    """A line for each pod, with all that the default policy weighs."""
    monkeypatch.setenv("COLUMNS", "80")
    terms = {
        "prefill_s": 0.0521,
        "beside_s": 0.0123,
        "others_s": 0.00921,
        "weight": 0.125,
        "waiting_tokens": 12043.0,
        "in_flight": 11.0,
    }
    pods = [f"127.0.0.1:4683{n}" for n in range(4)]
    options = [Option(pod, 12000, 0.07361, terms, "degraded", 12000, 0.123) for pod in pods]
    told = msgspec.structs.replace(
        entry("b"), pod=pods[2], candidates=options, regret_s=0.1, cached_tokens=0, cause="evicted",
        prompt_tokens=12345, predicted_tokens=12000,
    )  # fmt: skip
    run.decisions_path.write_bytes(msgspec.json.encode(told) + b"\n")

    explain(run.path, "1")
    lines = capsys.readouterr().out.splitlines()
    cells = [line.removeprefix("→").split() for line in lines if line[:1] in {" ", "→"}]
    assert [row[0] for row in cells if row[0].startswith("127.")] == pods * 2
    (row_of_terms,) = (line for line in lines if pods[0] in line and "0.0123" in line)
    assert row_of_terms.split() == [pods[0], "0.0521", "0.0123", "0.00921", "0.125", "12,043", "11"]
    assert all(len(line) <= 80 for line in lines if pods[0] in line)

    explain(run.path, None)
    (worst,) = (line for line in capsys.readouterr().out.splitlines() if pods[2] in line)
    assert worst.split() == [
        "1", pods[2], "prefix", "evicted", "12,345", "12,000", "0", "100", "ms",
    ]  # fmt: skip


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
