"""`kvbench dashboards`: ask every query of every panel, and draw what comes back."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import Annotated

import typer


def dashboards(
    prometheus: Annotated[
        str, typer.Option(help="URL of the Prometheus that scrapes the fleet.")
    ] = "http://127.0.0.1:9090",
    render: Annotated[
        Path | None, typer.Option(help="Folder that gets a picture of each dashboard.")
    ] = None,
    last: Annotated[str, typer.Option(help="How much of the past is shown.")] = "1h",
    window: Annotated[
        str, typer.Option(help="Window of rates; at least four times the scrape interval.")
    ] = "1m",
    without: Annotated[
        list[str] | None,
        typer.Option(help="A part that is not running: exporter, router or load; once for each."),
    ] = None,
) -> None:
    """Ask every query of every dashboard, say which have no answer, and draw pictures.

    Exit code 3 if a query is refused, gives what is no number, or gives nothing where it should.

    For example:

      kvbench dashboards --prometheus http://127.0.0.1:9090

      kvbench dashboards --render pictures --last 15m --without load
    """
    import time

    from kvbench.alerts.rule import board_uid
    from kvbench.alerts.settings import Settings
    from kvbench.dashboards.boards import boards
    from kvbench.dashboards.picture import render as draw
    from kvbench.dashboards.replay import Prometheus, Span, replay
    from kvbench.errors import InputError, TargetError
    from kvbench.units import parse_seconds

    parts = {"pods", "exporter", "router", "load"}
    absent = set(without or ())
    if unknown := absent - (parts - {"pods"}):
        raise InputError(f"--without: expected exporter, router or load, got {min(unknown)}")
    try:
        seconds = parse_seconds(last)
    except ValueError as error:
        raise InputError(f"--last: {error}") from None
    end = time.time()  # noqa: TID251 - the command line is where the clock is
    span = Span(end - seconds, end, max(1.0, seconds / 240), window)
    source = Prometheus(prometheus)
    faults = 0
    for board in boards(Settings()):
        answers = replay(board, source, span, [p for p in parts if p not in absent])  # type: ignore[misc]
        faults += sum(len(answer.faults) for answer in answers)
        drawn = sum(not answer.empty for answer in answers)
        print(f"{board.title}: {drawn} of {len(answers)} panels have data")
        for answer in answers:
            for fault in answer.faults:
                print(f"  {answer.panel.title}: {fault}")
        if render:
            draw(board, answers, span, render / f"{board_uid(board.title)}.png")
    if faults:
        raise TargetError(f"{faults} faults in the dashboards' answers")
