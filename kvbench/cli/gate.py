"""`kvbench gate`: judge runs by objectives, for people and for pipelines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from kvbench.errors import KvbenchError
    from kvbench.gates.gate import Gate
    from kvbench.records.evidence import Evidence
    from kvbench.records.verdict import Decided, Verdict


def gate(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    gates: Annotated[
        Path | None,
        typer.Option(help="File of gates. Else those of the workload that was run."),
    ] = None,
    line: Annotated[
        list[str] | None,
        typer.Option("--gate", "-g", help='A gate, such as "ttft p95 < 400ms"; repeat it.'),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="What relative gates are held against.")
    ] = None,
    across_machines: Annotated[
        bool,
        typer.Option(
            "--across-machines", help="Compare times also with a baseline of another machine."
        ),
    ] = False,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a summary in Markdown.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the verdicts as JSON.")] = None,
    report: Annotated[
        bool, typer.Option(help="Write each run's report anew, with the verdict in it.")
    ] = True,
) -> None:
    """Say whether runs meet their objectives: passed, failed, cannot tell, or not valid.

    For example:

      kvbench gate runs/20261129-204301-chat --gates gates.yaml

      kvbench gate runs/20261129-204301-chat -g "hit_rate > 0.97 of ceiling" -g "errors < 0.1%"

      kvbench gate runs/20261129-204301-chat --baseline baseline.json --junit gates.xml

    In GitHub Actions it annotates the lines of the gates, and adds to the step's summary.

    Exit codes: 0 passed · 2 your input · 4 cannot tell, or not valid · 5 failed
    """
    from rich.console import Console

    from kvbench.gates.baseline import read_baseline
    from kvbench.gates.ci import junit as to_junit
    from kvbench.gates.ci import markdown as to_markdown
    from kvbench.gates.judge import judge
    from kvbench.records.evidence import read_evidence
    from kvbench.records.run import RunFolder
    from kvbench.records.verdict import write_verdict

    known = None if baseline is None else read_baseline(baseline, across=across_machines)
    given = gates_of(gates, line)
    verdicts = []
    for path in runs:
        evidence = read_evidence(RunFolder.open(path))
        verdict = judge(
            evidence, given or _own_gates(evidence), baseline=known, confidence=confidence
        )
        write_verdict(evidence.folder, verdict)
        verdicts.append(verdict)
        if report:
            _refresh(path)
    show(Console(highlight=False), verdicts)
    write(junit, lambda: to_junit(verdicts))
    write(markdown, lambda: to_markdown(verdicts).encode())
    write(json, lambda: _json(verdicts))
    in_github(verdicts)
    if (problem := problem_of(verdicts)) is not None:
        raise problem


def gates_of(file: Path | None, lines: Sequence[str] | None) -> list[Gate]:
    """Return the gates of a file and of `--gate` flags, in this order."""
    from kvbench.gates.file import read_gates
    from kvbench.gates.grammar import parse_gate

    found = [] if file is None else read_gates(file)
    return [*found, *(parse_gate(text, "--gate") for text in lines or [])]


def _own_gates(evidence: Evidence) -> list[Gate]:
    """Return the gates of the workload that was run."""
    from kvbench.errors import InputError
    from kvbench.gates.grammar import parse_gate

    manifest = evidence.manifest
    if not manifest.gates:
        raise InputError(
            f"no gates: neither --gates nor --gate is given, and the workload of "
            f"{evidence.summary.run} has none",
            hint='for example: --gate "ttft p95 < 400ms"; docs/gates.md has all forms',
        )
    return [parse_gate(text, manifest.workload.file) for text in manifest.gates]


def show(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print each verdict with a table of its gates."""
    from rich.markup import escape

    from kvbench.gates.table import verdict_table

    for verdict in verdicts:
        console.print(f"[bold]{escape(verdict.arm)}[/bold] {escape(verdict.headline())}")
        for reason in verdict.reasons:
            console.print(f"not valid: {reason}", style="red", markup=False)
        for note in verdict.notes:
            console.print(f"note: {note}", style="yellow", markup=False)
        console.print(verdict_table(verdict))


def problem_of(verdicts: Sequence[Verdict]) -> KvbenchError | None:
    """Return what the command ends with, the worst first; None where all is passed."""
    by_decided = {verdict.decided: verdict for verdict in reversed(verdicts)}
    order: tuple[Decided, ...] = ("failed", "invalid", "cannot tell")
    return next((by_decided[one].problem() for one in order if one in by_decided), None)


def write(path: Path | None, content: Callable[[], bytes]) -> None:
    """Write what `content()` returns to a file that was asked for."""
    from kvbench.errors import InputError

    if path is None:
        return
    try:
        path.write_bytes(content())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def in_github(verdicts: Sequence[Verdict]) -> None:
    """Annotate and summarise where GitHub Actions runs this."""
    from kvbench.gates.ci import github_commands, markdown

    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for command in github_commands(verdicts):
        print(command)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown(verdicts) + "\n")


def _json(verdicts: Sequence[Verdict]) -> bytes:
    import msgspec

    from kvbench.records.verdict import verdict_json

    if len(verdicts) == 1:
        return verdict_json(verdicts[0])
    return msgspec.json.format(msgspec.json.encode(list(verdicts)), indent=2) + b"\n"


def _refresh(path: Path) -> None:
    from kvbench.report.page import build_report

    build_report([path], path / "report.html")
