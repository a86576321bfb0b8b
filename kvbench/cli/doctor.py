"""`kvbench doctor`: what is wrong with running pods, and the flag that mends it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated

import typer


def doctor(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="URL…", help="Pods or routers: http://HOST:PORT[,events=tcp://…,replay=tcp://…]"
        ),
    ],
    block_size: int | None = typer.Option(
        None, min=1, help="Tokens per block that the router or gateway in front expects."
    ),
    ttft: float = typer.Option(1.0, min=0, help="Objective for TTFT, seconds; 0: none."),
    itl: float = typer.Option(0.1, min=0, help="Objective between tokens, seconds; 0: none."),
    e2e: float = typer.Option(0.0, min=0, help="Objective for whole answers, seconds; 0: none."),
    config: Annotated[
        Path | None,
        typer.Option(help="The model's config.json or its directory: what it was trained for."),
    ] = None,
    probe: bool = typer.Option(True, help="Ask each pod two questions of one token."),
    strict: bool = typer.Option(False, "--strict", help="Warnings fail, too."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Look at running pods and say what costs hits, memory or sight, with the flag that mends it.

    Example: kvbench doctor http://127.0.0.1:8000 --ttft 0.5 --block-size 16

    Exit codes: 0 nothing that is an error, 5 an error (with --strict a warning), 3 a pod does not
    answer, or is no OpenAI-compatible server.
    """
    from kvbench.clock import utc_seconds
    from kvbench.errors import GateFailedError, TargetError
    from kvbench.stack.diagnosis import diagnose
    from kvbench.stack.doctor import examine
    from kvbench.stack.examined import WATCHED, Wish
    from kvbench.stack.findings import as_document, as_text

    objectives = tuple((q, s) for q, s in zip(WATCHED, (ttft, itl, e2e), strict=True) if s)
    seen = examine(targets, utc=utc_seconds, config=config, probe=probe)
    pods = seen.pods
    found = diagnose(pods, Wish(block_size, objectives), seen.routers)
    print(as_document(pods, found) if as_json else as_text(pods, found), flush=True)
    silent = [pod.name for pod in pods if pod.trouble is not None]
    bad = {"error", "warning"} if strict else {"error"}
    wrong = sum(finding.severity in bad for finding in found)
    if silent:
        raise TargetError(f"{', '.join(silent)} could not be examined")
    if wrong:
        raise GateFailedError(f"{wrong} of {len(found)} findings must be mended")
