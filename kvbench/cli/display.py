"""A run while it is on, in a terminal: a bar and the few numbers that matter.

Where the output is no terminal (a log, CI), a plain line every few seconds says the same.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvbench.units import format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console
    from rich.progress import TaskID

    from kvbench.stack.run import Prepared
    from kvbench.stack.tail import Tail
    from kvbench.workload.plan import Plan

PLAIN_SECONDS = 5.0
"""Seconds between two lines where there is no terminal to redraw."""


class Display:
    """Shows one run after another on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._folder: Path | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._arm = ""
        self._planned = 0
        self._said_at = 0.0

    def begin(self, prepared: Prepared) -> None:
        """Show what is about to be sent."""
        manifest, plan = prepared.manifest, prepared.plan
        self._folder = prepared.folder.path
        self._arm = manifest.arm or manifest.name or ""
        self._planned = len(plan.turns)
        self._said_at = time.monotonic()
        for note in prepared.notes:
            self._console.print(f"note: {note}", style="yellow")
        sentence = f"{self._arm}: {_size(plan)} → {manifest.target}{_least(plan)}"
        self._console.print(sentence, soft_wrap=True)
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task(
            f"{self._arm:<14}", total=self._planned, said="starting the load generator"
        )
        self._progress.start()

    def update(self, tail: Tail) -> None:
        """Show how far it is."""
        said = _said(tail) if tail.rows else "waiting for the first answer"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=tail.rows, said=said)
        elif time.monotonic() - self._said_at >= PLAIN_SECONDS:
            self._said_at = time.monotonic()
            self._console.print(f"{self._arm}: {tail.rows}/{self._planned} turns · {said}")

    def end(self) -> None:
        """Clear the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Say where the rows are when Ctrl-C ends what is inside."""
        try:
            yield
        except KeyboardInterrupt:
            if self._folder is not None:
                self._console.print(
                    f"interrupted; every row so far is kept: {self._folder}", soft_wrap=True
                )
            raise


def _size(plan: Plan) -> str:
    """Return how much there is to do."""
    turns = f"{len(plan.turns):,} turns"
    return turns if plan.sessions == len(plan.turns) else f"{plan.sessions:,} sessions, {turns}"


def _least(plan: Plan) -> str:
    """Return how long that takes at least, where the plan says so."""
    least_s = plan.shortest_s
    return f"; at least {format_seconds(least_s)}, by its arrivals and pauses" if least_s else ""


def _said(tail: Tail) -> str:
    parts = [f"hit rate {format_share(tail.hit_rate)}"]
    if tail.recent_ttft_s is not None:
        parts.append(f"recent TTFT {format_seconds(tail.recent_ttft_s)}")
    if tail.failed:
        parts.append(f"{tail.failed} failed")
    return " · ".join(parts)
