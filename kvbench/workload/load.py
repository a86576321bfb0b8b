"""From what the command line names, a workload file or a trace, to the plan."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.workload.build import build_plan
from kvbench.workload.parse import load_workload
from kvbench.workload.solve import solve
from kvbench.workload.trace import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.workload.plan import Plan


def load_plan(
    workload: Path | None,
    trace: Path | None,
    *,
    seed: int | None = None,
    limit: int | None = None,
    speed: float = 1.0,
) -> Plan:
    """Return the plan of a workload file or of a trace, exactly one of which is given.

    Args:
        workload: A workload file.
        trace: A trace, in any format of `kvbench.workload.trace`.
        seed: Root seed; None is the one in the workload file, the plan file's, or 0 for a trace.
        limit: Keep only so many turns, the first ones.
        speed: Play so many times faster: times and pauses are divided by it.

    Raises:
        InputError: A file, or a combination of arguments, is wrong.
    """
    if limit is not None and limit < 1:
        raise InputError(f"--limit: expected at least 1, got {limit}")
    if not 0 < speed < float("inf"):
        raise InputError(f"--speed: expected more than 0, got {speed:g}", hint="1 is real time")
    if workload is not None and trace is None:
        spec = load_workload(workload)
        root = spec.seed if seed is None else seed
        solved, notes = solve(spec, root, str(workload))
        plan = build_plan(solved, root, notes)
    elif trace is not None and workload is None:
        plan = read_trace(trace, seed=seed, limit=limit)
    else:
        raise InputError(
            "expected either a workload file or a trace",
            hint="kvbench plan workloads/chat.yaml, or kvbench plan --trace trace.jsonl",
        )
    if limit is not None:
        plan = replace(plan, turns=plan.turns[:limit])
    return faster(plan, speed)


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a workload or a trace, in hex; of a folder, that of its files in order.

    Raises:
        InputError: It cannot be read.
    """
    try:
        if path.is_dir():
            inner = "".join(f"{file.name} {fingerprint(file)}\n" for file in _files(path))
            return hashlib.sha256(inner.encode()).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def faster(plan: Plan, speed: float) -> Plan:
    """Return `plan` played `speed` times faster: every time and every pause divided by it."""
    if speed == 1:
        return plan
    turns = (
        replace(turn, at=None if turn.at is None else turn.at / speed, think=turn.think / speed)
        for turn in plan.turns
    )
    return replace(plan, turns=tuple(turns))
