"""`kvbench compare`: two arms in turns, and whether they differ."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from kvbench.gates.compare import ArmRun, Ratio, Round


def compare(
    a: Annotated[str, typer.Argument(help="A policy, a URL, a run folder or a folder of runs.")],
    b: Annotated[str, typer.Argument(help="What is held against it.")],
    workload: Annotated[
        Path | None, typer.Option(help="Workload file; not needed for runs that exist.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs of each arm, in the order A B B A A B B A …")
    ] = 4,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Compare policies in virtual time: in seconds.")
    ] = False,
    pods: Annotated[int, typer.Option(min=1, help="Simulated pods, for policies.")] = 3,
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of each of them.")] = 2048,
    seed: Annotated[int, typer.Option(help="Of the first round; the next have the next.")] = 0,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    gates: Annotated[Path | None, typer.Option(help="File of relative gates.")] = None,
    line: Annotated[
        list[str] | None,
        typer.Option(
            "--gate",
            "-g",
            help='Such as "ttft p95 no worse than baseline + 5%"; A is the baseline.',
        ),
    ] = None,
    max_lateness: Annotated[
        str, typer.Option(help="Turns sent later than this (p99) make a run invalid.")
    ] = "100ms",
    json: Annotated[
        Path | None, typer.Option(help="Write the verdict of the gates as JSON.")
    ] = None,
) -> None:
    """Measure two arms in turns, and say by how much they differ, with intervals.

    For example:

      kvbench compare round_robin prefix_cost --workload workloads/chat.yaml --virtual

      kvbench compare http://a:8000 http://b:8000 --workload workloads/chat.yaml --rounds 6

      kvbench compare runs/a runs/b -g "ttft p95 no worse than baseline + 5%"

    Exit codes: 0 done, or the gates passed · 4 cannot tell, or not valid · 5 failed
    """
    from rich.console import Console

    from kvbench.cli.display import Display
    from kvbench.cli.gate import gates_of, problem_of, show, write
    from kvbench.cli.run import seconds
    from kvbench.errors import InputError, InvalidMeasurementError
    from kvbench.gates.compare import check_rounds, judge_rounds, ratios
    from kvbench.records.validity import Limits
    from kvbench.records.verdict import verdict_json
    from kvbench.stack.compare import Trial, measuring, rounds_from, rounds_of

    console = Console(highlight=False)
    wanted = gates_of(gates, line)
    limits = Limits(lateness_p99_s=seconds("--max-lateness", max_lateness))
    if Path(a).is_dir() and Path(b).is_dir():
        found = rounds_from(Path(a), Path(b), wanted, limits)
    elif workload is None:
        raise InputError(
            "--workload: expected one to compare policies or targets",
            hint=f"kvbench compare {a} {b} --workload workloads/chat.yaml",
        )
    else:
        trial = Trial(
            arms=(a, b), workload=workload, rounds=rounds, virtual=virtual, seed=seed, runs=runs,
            pods=pods, num_gpu_blocks=blocks, limits=limits, command=tuple(sys.argv),
        )  # fmt: skip
        with measuring(trial, Display(console)) as measure:
            found = rounds_of(trial, measure, wanted, _telling(console, rounds))
    reasons = check_rounds(found)
    console.print(ratio_table(ratios(found, wanted), found))
    if wanted:
        verdict = judge_rounds(found, wanted)
        show(console, [verdict])
        write(json, lambda: verdict_json(verdict))
        if (problem := problem_of([verdict])) is not None:
            raise problem
    elif reasons:
        raise InvalidMeasurementError("; ".join(reasons), hint="measure again before comparing")


def _telling(console: Console, rounds: int) -> Callable[[int, ArmRun], None]:
    def told(number: int, run: ArmRun) -> None:
        console.print(f"round {number + 1} of {rounds}: {run.arm}", style="dim")

    return told


def _high(ratio: float) -> str:
    """Return the upper end of a ratio's interval, in words of a table's width."""
    return f"{ratio:.3f}" if ratio < 1000 else "∞" if math.isinf(ratio) else f"{ratio:.0e}"


def ratio_table(found: list[Ratio], rounds: list[Round]) -> Table:
    """Return a line for each measure: both arms, their ratio, its interval, what that means."""
    from rich.text import Text

    from kvbench.cli.tables import rows_table

    a, b = rounds[0][0].arm, rounds[0][1].arm
    names = (f"{a}\n(A)", f"{b}\n(B)") if a != b else ("A", "B")
    table = rows_table(("measure",), (*names, "B ÷ A", "95 of 100"))
    table.padding = 0  # the line has 80 columns
    table.columns[0].min_width = 16  # names break at their blanks, not in a word
    table.add_column("B is", no_wrap=True)
    styles = {"better": "green", "worse": "red"}
    for one in found:
        known = not math.isnan(one.ratio)
        table.add_row(
            str(one.what),
            one.what.text(one.a),
            one.what.text(one.b),
            f"{one.ratio:.3f}" if known else "–",
            f"{one.interval.low:.3f} to {_high(one.interval.high)}" if known else "–",
            Text(one.said, style=styles.get(one.said, "")),
        )
    return table
