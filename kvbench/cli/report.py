"""`kvbench report`: one HTML page that explains a run, or compares several."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, in the order in which they shall stand.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The HTML file. Else report.html in the run's folder; for several runs "
            "report-<ids>.html beside the first.",
        ),
    ] = None,
) -> None:
    """Write a report of one run, or of several side by side, as one self-contained HTML file.

    For example:

      kvbench report runs/20261129-204301-chat-prefix

      kvbench report runs/20261129-204301-chat-prefix runs/20261129-204305-chat-random -o both.html
    """
    from kvbench.report.page import build_report, default_path

    print(build_report(runs, out or default_path(runs)))
