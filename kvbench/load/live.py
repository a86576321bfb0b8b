"""A run while it is on, as its master sees it: sums of all workers, and how they came about.

Workers tell about once a second what they have filed since they last told (`tally`). From that
stand here the sums, for tables and `/metrics`, and a series of points, for charts. Of points there
are at most `MOST_POINTS`: when they are more, each two neighbours become one, so a run of a day
takes as much memory as a run of an hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from kvbench.load.tally import MOST_TURNS, Cell, Tally

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.load.distribution import Distribution

    Numbers = dict[str, float | int | None]

MOST_POINTS = 400

State = Literal["idle", "preparing", "running", "stopping", "finished", "interrupted", "failed"]
"""How far a run is; the last three are a manifest's."""


class Point(msgspec.Struct):
    """Some seconds of the run.

    Attributes:
        at_s: When they ended, seconds of the run.
        seconds: How many.
        cell: The turns that were filed in them.
        in_flight: Turns open at their end.
        numbers: What is drawn.
    """

    at_s: float
    seconds: float
    cell: Cell
    in_flight: int
    numbers: Numbers

    @classmethod
    def of(cls, at_s: float, seconds: float, cell: Cell, in_flight: int) -> Point:
        """Return a point with its numbers."""
        numbers: Numbers = {
            "at_s": round(at_s, 2),
            "turns_per_s": cell.turns / seconds if seconds > 0 else None,
            "tokens_per_s": cell.completion_tokens / seconds if seconds > 0 else None,
            "in_flight": in_flight,
            "failed": cell.failed,
            "hit_rate": cell.hit_rate,
            "ceiling": cell.ceiling,
            "ttft_p50_s": cell.ttft.percentile(0.5),
            "ttft_p95_s": cell.ttft.percentile(0.95),
            "itl_p50_s": cell.itl.percentile(0.5),
            "itl_p99_s": cell.itl.percentile(0.99),
            "lateness_p50_s": cell.lateness.percentile(0.5),
            "lateness_p99_s": cell.lateness.percentile(0.99),
        }
        return cls(at_s, seconds, cell, in_flight, numbers)

    def with_next(self, other: Point) -> Point:
        """Return the point of both."""
        cell = Cell()
        cell.merge(self.cell)
        cell.merge(other.cell)
        return Point.of(other.at_s, self.seconds + other.seconds, cell, other.in_flight)


class Live:
    """The run that is on, or was last.

    Attributes:
        run: The run's id; "" before the first.
        workload: What is sent: the workload's or trace's name.
        target: Where to.
        state: How far it is.
        planned: Turns of the plan; 0 while unknown.
        message: What went wrong, "" if nothing did.
        total: Sums of all workers.
        workers: What each worker last said of itself, by its name.
    """

    def __init__(self) -> None:
        self.begin("", "", "")
        self.state: State = "idle"

    def begin(self, run: str, workload: str, target: str) -> None:
        """Forget the last run, and begin another."""
        self.run, self.workload, self.target = run, workload, target
        self.state = "preparing"
        self.planned = 0
        self.message = ""
        self.total = Tally()
        self.workers: dict[str, Tally] = {}
        self._points: list[Point] = []
        self._delta = Cell()
        self._last_s = 0.0

    def hear(self, worker: str, tally: Tally) -> None:
        """Take what a worker has filed since it last told."""
        self.total.merge(tally)
        self._delta.merge(tally.all)
        self.workers[worker] = Tally(
            due=tally.due,
            begun=tally.begun,
            in_flight=tally.in_flight,
            cpu_s=tally.cpu_s,
            loop_delay_s=tally.loop_delay_s,
        )

    @property
    def running(self) -> bool:
        """Whether a run is on."""
        return self.state in {"preparing", "running", "stopping"}

    @property
    def in_flight(self) -> int:
        """Turns open now, of all workers."""
        return sum(worker.in_flight for worker in self.workers.values())

    def tick(self, at_s: float, least: float = 0.0) -> None:
        """End a point at second `at_s` of the run, if it is at least `least` seconds long."""
        seconds = at_s - self._last_s
        if seconds <= 0 or seconds < least:
            return
        self._points.append(Point.of(at_s, seconds, self._delta, self.in_flight))
        self._delta, self._last_s = Cell(), at_s
        if len(self._points) > MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            odd = self._points[-1:] if len(self._points) % 2 else []
            self._points = [*(first.with_next(second) for first, second in pairs), *odd]

    def snapshot(self) -> dict[str, object]:
        """Return everything that is shown, as JSON has it."""
        total = self.total
        turns = {
            f"turn {turn}" + ("+" if turn == MOST_TURNS else ""): cell
            for turn, cell in sorted(total.turns.items())
        }
        return {
            "run": self.run,
            "workload": self.workload,
            "target": self.target,
            "state": self.state,
            "message": self.message,
            "planned": self.planned,
            "filed": sum(total.outcomes.values()),
            "outcomes": total.outcomes,
            "in_flight": self.in_flight,
            "all": _line("all turns", total.all),
            "turns": [_line(name, cell) for name, cell in turns.items()],
            "pods": [_line(name, total.pods[name]) for name in sorted(total.pods)],
            "workers": _workers(self.workers),
            "points": [point.numbers for point in self._points],
        }


def _line(name: str, cell: Cell) -> dict[str, object]:
    """Return one line of a table."""
    return {
        "name": name,
        "turns": cell.turns,
        "failed": cell.failed,
        "prompt_tokens": cell.prompt_tokens,
        "hit_rate": cell.hit_rate,
        "ceiling": cell.ceiling,
        **_quantiles("ttft", cell.ttft, 0.5, 0.95, 0.99),
        **_quantiles("itl", cell.itl, 0.5, 0.99),
        **_quantiles("e2e", cell.e2e, 0.5, 0.95),
        **_quantiles("lateness", cell.lateness, 0.5, 0.99),
    }


def _quantiles(name: str, samples: Distribution, *shares: float) -> Mapping[str, float | None]:
    return {f"{name}_p{100 * share:.0f}_s": samples.percentile(share) for share in shares}


def _workers(workers: Mapping[str, Tally]) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "in_flight": worker.in_flight,
            "cpu_s": worker.cpu_s,
            "loop_delay_s": worker.loop_delay_s,
        }
        for name, worker in sorted(workers.items())
    ]
