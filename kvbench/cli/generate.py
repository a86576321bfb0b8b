"""`kvbench generate`: dashboards, rules and the page of metrics, from the catalogue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def generate(
    into: Annotated[
        Path, typer.Option(help="Where dashboards/, alerts/ and docs/ are written.")
    ] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a file would change.")
    ] = False,
    ttft: Annotated[
        str, typer.Option(help="Objective for the first token: SHARE%<SECONDS, at a bucket.")
    ] = "95%<1s",
    itl: Annotated[
        str, typer.Option(help="Objective for the time between tokens: SHARE%<SECONDS.")
    ] = "99%<100ms",
    runbooks: Annotated[str | None, typer.Option(help="URL of the runbook pages.")] = None,
    grafana: Annotated[str | None, typer.Option(help="URL of Grafana, for links.")] = None,
) -> None:
    """Write Grafana dashboards, Prometheus rules and docs/metrics.md.

    For example:

      kvbench generate --check

      kvbench generate --into monitoring --ttft '99%<1s' --grafana https://grafana.example.com
    """
    from kvbench.alerts.settings import GRAFANA, RUNBOOKS, Settings, parse_objective
    from kvbench.errors import InputError
    from kvbench.stack.artefacts import stale, write

    settings = Settings(
        ttft=parse_objective("--ttft", ttft),
        itl=parse_objective("--itl", itl),
        runbooks=runbooks or RUNBOOKS,
        grafana=grafana or GRAFANA,
    )
    settings.check()
    for caution in settings.cautions():
        print(f"kvbench: {caution}", file=sys.stderr)
    if check:
        if changed := stale(into, settings):
            raise InputError(f"stale: {', '.join(changed)}", hint="kvbench generate")
        return
    for name in write(into, settings):
        print(into / name)
