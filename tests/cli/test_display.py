"""A run while it is on."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from kvbench.cli.display import Display
from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment


@dataclass
class Given:
    """What the display reads of a run's manifest and folder."""

    arm: str = "mine"
    name: str = "chat"
    target: str = "U"
    path: Path = Path("runs/x")


@dataclass
class Ready:
    """What the display reads of a run that is about to begin."""

    plan: Plan
    manifest: Given
    folder: Given
    notes: tuple[str, ...] = ()


def plan(sessions: int, turns: int, pause_s: float) -> Plan:
    """Return a plan of so many sessions with so many turns each, and pauses between."""
    hello = (Message("user", (Segment("hello", 4),)),)
    numbers = [(session, number) for session in range(sessions) for number in range(turns)]
    return Plan("chat", 1, "chat", "planned", tuple(
        PlannedTurn(index, f"s{session}", number + 1, "g", None if number else 0.0,
                    pause_s if number else 0.0, hello, 8, f"a{index}")
        for index, (session, number) in enumerate(numbers)
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (
            plan(300, 5, 90.0),
            "mine: 300 sessions, 1,500 turns → U; at least 6m 00s, by its arrivals and pauses\n",
        ),
        (plan(2, 1, 0.0), "mine: 2 turns → U\n"),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_says_beforehand_how_much_there_is_to_do_and_how_long_that_takes(
    made, first, terminal
):
    """In one line, at a terminal and in a log."""
    said = io.StringIO()
    display = Display(Console(file=said, force_terminal=terminal, color_system=None, width=200))
    given = Given()

    display.begin(Ready(made, given, given))
    display.end()

    assert said.getvalue().startswith(first)
