import pytest
from fakes_records import failed_row, row, story, written_run

from kvbench.clock import VirtualClock
from kvbench.gates.grammar import parse_gate
from kvbench.stack.abort import Abort, GateAbortError


def _abort(folder, *gates):
    clock = VirtualClock()
    return Abort([parse_gate(text) for text in gates], folder, clock), clock


def test_a_gate_that_has_failed_for_certain_ends_the_run(tmp_path):
    """Half of the turns failed, and 1 % was the limit."""
    rows = [failed_row(i, session=f"s{i}") if i % 2 else row(i, session=f"s{i}") for i in range(60)]
    abort, clock = _abort(written_run(tmp_path, rows), "errors < 1% abort_on_fail")
    abort.check()
    clock.advance_to(2.0)
    with pytest.raises(GateAbortError) as caught:
        abort.check()
    assert caught.value.gate.text == "errors < 1% abort_on_fail"
    assert caught.value.message.startswith("errors < 1% abort_on_fail: 50 %")


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param("ttft p50 < 1ms", id="does not ask for it"),
        pytest.param("ttft p95 < 200ms abort_on_fail", id="cannot tell"),
        pytest.param("ttft p50 < 10s abort_on_fail", id="passes so far"),
        pytest.param("ttft{turn>50} p50 < 1s abort_on_fail", id="nothing to judge yet"),
    ],
)
def test_anything_else_lets_it_go_on(tmp_path, gate):
    """A look by chance must not cost a run."""
    abort, clock = _abort(written_run(tmp_path, story(sessions=30)), gate)
    clock.advance_to(100.0)
    abort.check()


def test_a_few_turns_are_too_few_to_end_anything(tmp_path):
    """However bad they are."""
    rows = [failed_row(i, session=f"s{i}") for i in range(8)]
    abort, clock = _abort(written_run(tmp_path, rows), "errors < 1% abort_on_fail")
    clock.advance_to(100.0)
    abort.check()
