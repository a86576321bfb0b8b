"""`kvbench ladder`: how much load each arm takes before it misses an objective."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvbench.gates.ladder import Ladder, Step
    from kvbench.report.ladder import LadderView


def ladder(
    workload: Annotated[Path, typer.Argument(help="Workload file; its rate is what is climbed.")],
    arm: Annotated[
        list[str] | None,
        typer.Option(help="A policy, or the URL of a target; repeat it."),
    ] = None,
    rates: Annotated[
        str, typer.Option(help="Sessions per second, with commas between.")
    ] = "1,2,4,8,16",
    objective: Annotated[
        str, typer.Option(help="What is to be met, as a gate.")
    ] = "ttft p95 < 500ms",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each step.")] = 3,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="In virtual time: seconds instead of hours.")
    ] = False,
    pods: Annotated[int, typer.Option(min=1, help="Simulated pods, for policies.")] = 3,
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of each of them.")] = 2048,
    seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The page; its figure lies beside it as .svg.")
    ] = Path("ladder.html"),
    max_lateness: Annotated[
        str, typer.Option(help="Turns sent later than this (p99) make a run invalid.")
    ] = "100ms",
) -> None:
    """Measure arms at rising rates, and find the highest that meets an objective.

    For example:

      kvbench ladder workloads/chat.yaml --arm round_robin --arm prefix_cost --virtual

      kvbench ladder workloads/chat.yaml --arm http://127.0.0.1:8000 --rates 1,2,3 --seeds 1

    Exit codes: 0 done · 2 your input · 3 the target failed · 4 a run is not valid
    """
    from rich.console import Console

    from kvbench.cli.display import Display
    from kvbench.cli.run import seconds
    from kvbench.errors import InvalidMeasurementError
    from kvbench.gates.grammar import parse_gate
    from kvbench.gates.ladder import check_objective
    from kvbench.records.validity import Limits
    from kvbench.report.ladder import build_ladder, knee_words
    from kvbench.stack.compare import Trial, measuring
    from kvbench.stack.ladder import climb

    console = Console(highlight=False)
    gate = parse_gate(objective, "--objective")
    check_objective(gate)
    trial = Trial(
        arms=tuple(arm or ("round_robin", "prefix_cost")),
        workload=workload,
        rounds=seeds,
        virtual=virtual,
        seed=seed,
        runs=runs,
        pods=pods,
        num_gpu_blocks=blocks,
        limits=Limits(lateness_p99_s=seconds("--max-lateness", max_lateness)),
        command=tuple(sys.argv),
    )

    def told(name: str, step: Step) -> None:
        low, high = (gate.measure.text(end) for end in (step.interval.low, step.interval.high))
        said = f"{gate.measure} {gate.measure.text(step.value)} ({low} to {high})"
        console.print(f"{step.rate:g}/s  {name}: {said}", markup=False, soft_wrap=True)

    with measuring(trial, Display(console)) as measure:
        found = climb(trial, _rates(rates), gate, measure, told)
    view = _view(found, trial.workload, seeds, virtual=virtual)
    page = build_ladder(view, out)
    for line in view.lines:
        knee, interval = knee_words(line)
        console.print(f"{line.arm}: {objective} up to {knee} ({interval})", markup=False)
    console.print(f"ladder   {page}", style="bold", soft_wrap=True)
    if reasons := [f"{line.arm}: {line.reason}" for line in view.lines if line.reason]:
        raise InvalidMeasurementError("; ".join(reasons), hint="measure those steps again")


def _rates(text: str) -> list[float]:
    """Return the rates of a list with commas.

    Raises:
        InputError: One is no positive number.
    """
    from kvbench.errors import InputError

    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise InputError(f"--rates: expected numbers such as 1,2,4, got {text!r}")
    return rates


def _view(found: Ladder, workload: Path, seeds: int, *, virtual: bool) -> LadderView:
    """Return the ladder as the page wants it."""
    from kvbench.report.ladder import LadderView, Line

    lines = []
    for name, knee in found.knees().items():
        steps = found.arms[name]
        lines.append(
            Line(
                arm=name,
                rates=tuple(step.rate for step in steps),
                values=tuple(step.value for step in steps),
                lows=tuple(step.interval.low for step in steps),
                highs=tuple(step.interval.high for step in steps),
                knee=knee.rate,
                knee_low=knee.interval.low,
                knee_high=knee.interval.high,
                reason=next((step.reason for step in steps if step.reason), None),
            )
        )
    measure = found.objective.measure
    return LadderView(
        title=workload.stem,
        facts=(
            ("Workload", str(workload)),
            ("Arms", ", ".join(found.arms)),
            ("Objective", found.objective.text),
            ("Runs of a step", str(seeds)),
            ("Time", "virtual" if virtual else "measured"),
        ),
        objective=found.objective.text,
        measured=str(measure),
        seconds=measure.subject.quantity == "seconds",
        limit=found.limit,
        seeds=seeds,
        lines=tuple(lines),
    )
