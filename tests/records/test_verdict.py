import pytest
from fakes_records import row, written_run

from kvbench.records.verdict import (
    EXIT_CODES,
    GateResult,
    Verdict,
    overall,
    read_verdict,
    write_verdict,
)


def _results(*decided):
    return [GateResult(gate="g", decided=one, said="s") for one in decided]


@pytest.mark.parametrize(
    ("reasons", "gates", "decided"),
    [
        ([], [], "passed"),
        ([], ["passed", "passed"], "passed"),
        ([], ["passed", "cannot tell"], "cannot tell"),
        ([], ["invalid", "cannot tell"], "invalid"),
        ([], ["invalid", "failed", "passed"], "failed"),
        (["late"], ["failed"], "invalid"),
    ],
)
def test_the_worst_gate_decides_and_reasons_against_the_run_come_first(reasons, gates, decided):
    """More turns would not save a run that has failed."""
    assert overall(reasons, _results(*gates)) == decided


def test_ci_can_tell_failed_from_not_known():
    """And *cannot tell* asks for the same as *invalid*: measure again."""
    assert EXIT_CODES == {"passed": 0, "failed": 5, "cannot tell": 4, "invalid": 4}


def test_a_verdict_survives_its_file_and_a_broken_file_is_none(tmp_path):
    """A report shows the last one, or none."""
    folder = written_run(tmp_path, [row(0)])
    assert read_verdict(folder) is None
    verdict = Verdict(
        run="r", arm="a", decided="failed", gates=_results("failed", "passed"), confidence=0.95
    )
    write_verdict(folder, verdict)
    assert read_verdict(folder) == verdict
    assert verdict.headline() == "failed: 1 failed, 1 passed"
    folder.verdict_path.write_text("{")
    assert read_verdict(folder) is None
