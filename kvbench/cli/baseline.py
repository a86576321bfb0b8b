"""`kvbench baseline`: what some runs gave, and how much they differ, as a file to commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from kvbench.gates.baseline import BaselineFile


def baseline(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders of one arm: five or more, of the same plan."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file; replaced if it is there.")
    ] = Path("baseline.json"),
    gates: Annotated[
        Path | None, typer.Option(help="File of gates: what they measure is kept too.")
    ] = None,
) -> None:
    """Make a baseline of several runs: their values, their noise, their fingerprint.

    For example:

      kvbench baseline runs/*-chat-prefix -o baseline.json --gates gates.yaml

      kvbench gate runs/20261129-204301-chat --baseline baseline.json --gates gates.yaml

    The table says which change a gate will see: smaller ones drown in the noise between runs.
    """
    from rich.console import Console

    from kvbench.cli.gate import gates_of
    from kvbench.errors import InputError
    from kvbench.gates.baseline import make_baseline, write_baseline
    from kvbench.gates.grammar import parse_gate
    from kvbench.records.evidence import read_evidence
    from kvbench.records.run import RunFolder

    places = [path.resolve() for path in runs]
    for path, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise InputError(
                f"{path} is given twice",
                hint="a run that counts twice hides how much runs differ by themselves",
            )
    evidence = [read_evidence(RunFolder.open(path)) for path in runs]
    wanted = gates_of(gates, None)
    if gates is None and evidence:
        wanted = [parse_gate(text) for text in evidence[0].manifest.gates]
    file = make_baseline(evidence, wanted)
    write_baseline(out, file)
    console = Console(highlight=False)
    console.print(_table(file))
    if len(runs) < 5:
        console.print(
            f"note: {len(runs)} runs tell little about their noise; five or more are better",
            style="yellow",
        )
    console.print(f"baseline   {out}", style="bold", soft_wrap=True)


def _table(file: BaselineFile) -> Table:
    from kvbench.cli.tables import rows_table
    from kvbench.gates.baseline import Known, smallest_change
    from kvbench.gates.grammar import parse_gate
    from kvbench.units import format_share

    table = rows_table(("measure",), ("mean", "noise between runs", "smallest change seen"))
    for name, values in file.values.items():
        what = parse_gate(f"{name} no worse than baseline").measure
        finite = [value for value in values if value is not None]
        if len(finite) < len(values):
            table.add_row(name, "∞ or unknown in a run", "–", "–")
            continue
        known = Known.of(finite)
        noise = known.deviation / known.mean if known.mean and known.runs > 1 else None
        table.add_row(
            name, what.text(known.mean), format_share(noise), format_share(smallest_change(known))
        )
    return table
