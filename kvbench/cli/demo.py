"""`kvbench demo`: what kvbench is for, in under a minute, on a laptop without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def demo(
    workload: Annotated[
        Path | None, typer.Option(help="Another workload than the demo's own.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policies to compare; repeat it. Default: round_robin, prefix_cost."),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    seed: Annotated[
        int | None, typer.Option(min=0, help="Root seed; the workload has one.")
    ] = None,
) -> None:
    """Three simulated pods, the same traffic under two routing policies, one report.

    Starts everything itself on free loopback ports and stops it again.

    For example:

      kvbench demo

      kvbench demo --policy random --policy session --policy prefix_cost
    """
    from rich.console import Console

    from kvbench.cli.display import Display
    from kvbench.cli.run import tell
    from kvbench.stack.demo import demo as run_demo

    console = Console(highlight=False)
    console.print("starting 3 simulated pods and a router on loopback …", style="dim")
    display = Display(console)
    with display.interruptible():
        outcomes, report = run_demo(
            workload=workload,
            policies=policy or ["round_robin", "prefix_cost"],
            runs=runs,
            seed=seed,
            command=tuple(sys.argv),
            watch=display,
        )
    tell(console, outcomes, report)
    for outcome in outcomes:
        problem = outcome.problem()
        if problem is not None:
            raise problem
