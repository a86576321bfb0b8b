import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.gates.grammar import parse_gate
from kvbench.gates.ladder import Knee, Ladder, Step, check_objective, knee
from kvbench.gates.measure import Measurement
from kvbench.records.intervals import Interval

inf = math.inf


def _steps(*values, spread=0.0):
    return tuple(
        Step(rate, value, Interval(value - spread, value + spread), 3)
        for rate, value in enumerate(values, 1)
    )


@pytest.mark.parametrize(
    ("values", "spread", "expected"),
    [
        pytest.param((0.2, 0.4, 0.8), 0.0, Knee(2.25, Interval(2.25, 2.25)), id="between two"),
        pytest.param((0.2, 0.4, 0.8), 0.1, Knee(2.25, Interval(2.0, 2.5)), id="its interval"),
        pytest.param((0.6, 0.7), 0.05, Knee(-inf, Interval(-inf, -inf)), id="below the lowest"),
        pytest.param((0.2, 0.3), 0.05, Knee(inf, Interval(inf, inf)), id="beyond the highest"),
        pytest.param((0.2, 0.45), 0.1, Knee(inf, Interval(1.8, inf)), id="perhaps beyond"),
        pytest.param((0.2, 0.9, 0.4), 0.0, Knee(10 / 7, Interval(10 / 7, 10 / 7)), id="a dip"),
        pytest.param((0.2, inf), 0.0, Knee(1.0, Interval(1.0, 1.0)), id="failures"),
    ],
)
def test_the_knee_is_where_the_line_crosses_the_limit(values, spread, expected):
    """And its interval where the ends of the steps' intervals do; nothing is extrapolated."""
    found = knee(_steps(*values, spread=spread), 0.5, up=True)
    ends = (found.rate, found.interval.low, found.interval.high)
    assert ends == pytest.approx((expected.rate, expected.interval.low, expected.interval.high))


def test_of_a_number_that_falls_with_load_the_lower_ends_are_the_worse():
    """A hit rate crosses its limit from above."""
    found = knee(_steps(0.9, 0.8, 0.6, spread=0.05), 0.7, up=False)
    assert found.rate == pytest.approx(2.5)
    assert found.interval.low < found.rate < found.interval.high


@given(st.lists(st.floats(0.01, 2), min_size=1, max_size=8), st.floats(0, 0.5), st.floats(0.05, 2))
def test_a_knee_lies_in_its_interval(values, spread, limit):
    """Whatever the steps are."""
    found = knee(_steps(*values, spread=spread), limit, up=True)
    assert found.interval.low <= found.rate <= found.interval.high


def test_a_step_is_the_mean_of_its_seeds_with_students_interval():
    """Of one seed it is that of its sessions; a failed seed makes it infinite."""
    seeds = [Measurement(value) for value in (0.9, 1.0, 1.1)]
    step = Step.of(2.0, seeds)
    assert (step.value, step.seeds) == (pytest.approx(1.0), 3)
    assert step.interval.high == pytest.approx(1 + 4.303 * 0.1 / math.sqrt(3), rel=1e-3)
    one = Step.of(2.0, [Measurement(1.0, Interval(0.8, 1.5))])
    assert one.interval == Interval(0.8, 1.5)
    broken = Step.of(2.0, [Measurement(0.5), Measurement(inf)])
    assert (broken.value, broken.interval) == (inf, Interval(0.5, inf))


def test_every_arm_has_its_knee_and_an_objective_has_a_number():
    """A relative gate is no objective."""
    gate = parse_gate("ttft p95 < 500ms")
    ladder = Ladder(gate, check_objective(gate), {"a": _steps(0.2, 0.8), "b": _steps(0.1, 0.2)})
    assert {arm: k.rate for arm, k in ladder.knees().items()} == {"a": 1.5, "b": inf}
    with pytest.raises(InputError, match="got a relative one"):
        check_objective(parse_gate("ttft p95 no worse than baseline"))
