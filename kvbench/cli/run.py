"""`kvbench run`: send a workload or a trace to a target, and say what it got."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.stack.run import Outcome


def run(
    workload: Annotated[
        Path | None, typer.Argument(help="Workload file, such as workloads/chat.yaml.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="Base URL of a vLLM pod or a kvbench router.")
    ] = "http://127.0.0.1:8000",
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this trace instead (`kvbench import --help` has the formats)."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many rows of the trace, or turns.")
    ] = None,
    speed: Annotated[
        float, typer.Option(min=1e-6, help="Replay the trace so many times faster.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Root seed; the workload has one.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for; default: the target's first.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Tokenizer to plan with: a directory or tokenizer.json."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the run is called.")] = None,
    arm: Annotated[
        str | None, typer.Option(help="What tells it from the runs it is compared with.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    isolation: Annotated[
        Literal["salt", "reset", "none"],
        typer.Option(
            help="How the run is kept from hitting what earlier runs left: a cache salt of its "
            "own, a reset of the pods' caches (dev mode), or not at all."
        ),
    ] = "salt",
    max_lateness: Annotated[
        str, typer.Option(help="Turns sent later than this (p99) make the run invalid.")
    ] = "100ms",
    request_timeout: Annotated[
        str, typer.Option(help="A turn that takes longer is given up.")
    ] = "10m",
    max_in_flight: Annotated[
        int,
        typer.Option(
            min=1,
            help="Turns that one load worker has open at most. One that is due beyond it is sent "
            "late, and counted as held back: a guard for this machine, not a concurrency to "
            "measure at.",
        ),
    ] = 4096,
    gates: Annotated[
        Path | None, typer.Option(help="Judge it by this file's gates too, beside the workload's.")
    ] = None,
    preflight: Annotated[
        bool, typer.Option(help="Ask the target first whether it is ready for this.")
    ] = True,
    processes: Annotated[
        int, typer.Option(min=1, help="Load workers: one fills a core at some thousand streams.")
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve live kvbench_load_* metrics there meanwhile."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of --metrics-port.")] = "127.0.0.1",
    warm: Annotated[
        bool,
        typer.Option("--warm", help="Accept that the caches hold this very plan from before."),
    ] = False,
) -> None:
    """Send a workload or a trace to a target; write rows, a report, and a table.

    For example:

      kvbench run workloads/chat.yaml --target http://127.0.0.1:8000

      kvbench run --trace conversation_trace.jsonl --limit 300 --speed 5 --target URL

    Exit codes: 0 measured · 2 your input · 3 the target failed · 4 not valid ·
    5 a gate failed · 130 interrupted, rows kept
    """
    from rich.console import Console

    from kvbench.cli.display import Display
    from kvbench.records.validity import Limits
    from kvbench.stack.run import Job
    from kvbench.stack.run import run as run_job

    job = Job(
        target=target,
        workload=workload,
        trace=trace,
        limit=limit,
        speed=speed,
        seed=seed,
        model=model,
        tokenizer=tokenizer,
        name=name,
        arm=arm,
        runs=runs,
        isolation=isolation,
        limits=Limits(lateness_p99_s=seconds("--max-lateness", max_lateness)),
        request_timeout_s=seconds("--request-timeout", request_timeout),
        max_in_flight=max_in_flight,
        command=tuple(sys.argv),
        gates=gates,
        preflight=preflight,
        processes=processes,
        metrics=None if metrics_port is None else (metrics_host, metrics_port),
        warm=warm,
    )
    console = Console(highlight=False)
    display = Display(console)
    with display.interruptible():
        outcome = run_job(job, display)
    tell(console, [outcome], outcome.report)
    problem = outcome.problem()
    if problem is not None:
        raise problem


def seconds(flag: str, text: str) -> float:
    """Return the seconds that a flag says.

    Raises:
        InputError: It is no duration.
    """
    from kvbench.errors import InputError
    from kvbench.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}") from None


def tell(console: Console, outcomes: list[Outcome], report: Path) -> None:
    """Print the table of some runs, what is to be known about them, and where the report is."""
    from kvbench.cli.gate import show
    from kvbench.report.generator import generator
    from kvbench.report.table import summary_table
    from kvbench.units import format_share

    console.print(summary_table([outcome.summary for outcome in outcomes]))
    for note in dict.fromkeys(note for outcome in outcomes for note in outcome.notes):
        console.print(f"note: {note}", style="yellow")
    show(console, [outcome.verdict for outcome in outcomes if outcome.verdict is not None])
    for outcome in outcomes:
        manifest = outcome.manifest
        if manifest.ids_ceiling and manifest.ceiling:
            console.print(
                f"ceiling  {format_share(manifest.ids_ceiling.hit_rate)} by the trace's own ids, "
                f"{format_share(manifest.ceiling.hit_rate)} in the pods' blocks of "
                f"{manifest.block_size}"
            )
        if (said := generator(manifest)) is not None:
            console.print(f"load     {said}", soft_wrap=True)
        console.print(f"rows     {outcome.folder.path}", soft_wrap=True)
    if report.exists():
        console.print(f"report   {report}", style="bold", soft_wrap=True)
