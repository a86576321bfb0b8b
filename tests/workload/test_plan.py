"""What a plan says of itself."""

from __future__ import annotations

import pytest

from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment

HELLO = (Message("user", (Segment("hello", 4),)),)


def turn(index: int, session: str, at: float | None, think: float = 0.0, after=()) -> PlannedTurn:
    """Return a turn that is due at a moment, or so long after what came before."""
    return PlannedTurn(index, session, 1, "g", at, think, HELLO, 8, f"a{index}", after)


@pytest.mark.parametrize(
    ("turns", "seconds"),
    [
        pytest.param([], 0.0, id="nothing"),
        pytest.param([turn(0, "a", 2.5)], 2.5, id="an arrival"),
        pytest.param([turn(0, "a", 1.0), turn(1, "a", None, 4.0)], 5.0, id="a pause behind it"),
        pytest.param(
            [turn(0, "a", 0.0), turn(1, "b", 7.0), turn(2, "a", None, 3.0)],
            7.0,
            id="the slowest session, not the sum",
        ),
        pytest.param(
            [
                turn(0, "a", 1.0),
                turn(1, "b", None, 2.0, after=(0,)),
                turn(2, "a", None, 0.5),
                turn(3, "a", None, 4.0, after=(1,)),
            ],
            7.0,
            id="a turn that waits for another session's",
        ),
        pytest.param(
            [turn(0, "u0", 0.0), turn(1, "u0", None, 1.0), turn(2, "u1", None, 0.0, after=(1,))],
            1.0,
            id="a user's next conversation",
        ),
    ],
)
def test_a_plan_takes_at_least_its_arrivals_and_pauses(turns, seconds):
    """As if every answer were instant."""
    plan = Plan("p", 1, "chat", "planned", tuple(turns))

    assert plan.shortest_s == seconds
