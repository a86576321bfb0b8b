"""`kvbench router`: the prefix-aware router in front of pods."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import Annotated

import typer

from kvbench.policies.names import DEFAULT, NAMES


def router(
    pod: Annotated[
        list[str],
        typer.Option(
            "--pod",
            envvar="KVBENCH_PODS",
            help="URL of a pod, http://HOST:PORT[,events=tcp://…,replay=tcp://…]; once for each. "
            "The variable holds several, with blanks between.",
        ),
    ],
    policy: str = typer.Option(DEFAULT, help=f"Which pod gets a request: {', '.join(NAMES)}."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    seed: int = typer.Option(0, help="Seed of random choices."),
    allow_policy_header: bool = typer.Option(
        False, "--allow-policy-header", help="Let requests choose their policy: x-kvbench-policy."
    ),
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Directory of the models' tokenizer; each model's own, if it is here."),
    ] = None,
    shadow: Annotated[
        list[str] | None,
        typer.Option(help="Policy that follows the traffic without serving it; once for each."),
    ] = None,
    decision_log: Annotated[
        Path | None, typer.Option(help="File that gets a JSON line for each decision.")
    ] = None,
    first_byte_timeout: float = typer.Option(
        600.0, min=0.001, help="Seconds that a pod may take to begin an answer."
    ),
    idle_timeout: float = typer.Option(
        300.0, min=0.001, help="Seconds that a pod may pause in an answer."
    ),
    probe_every: float = typer.Option(
        1.0, min=0.0, help="Seconds between probes of a pod's /health; 0 is never."
    ),
    grace: float = typer.Option(
        30.0, min=0.0, help="Seconds that requests under way may take to end when it is stopped."
    ),
    exit_with_parent: bool = typer.Option(
        False, "--exit-with-parent", help="Stop when standard input ends."
    ),
) -> None:
    """Route requests to the pods where their prefix is cached and their wait is short.

    Example: kvbench router --pod http://127.0.0.1:8001 --pod http://127.0.0.1:8002 --port 8000

    Example: kvbench router --pod http://a:8000,events=tcp://a:5557,replay=tcp://a:5558
    """
    import asyncio
    import logging

    import uvloop

    from kvbench.clock import WallClock
    from kvbench.http.lifetime import told_to_stop
    from kvbench.router.forward import Limits
    from kvbench.router.service import Router, Settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    settings = Settings(
        policy=policy,
        seed=seed,
        allow_policy_header=allow_policy_header,
        limits=Limits(first_byte_s=first_byte_timeout, idle_s=idle_timeout),
        probe_every_s=probe_every,
        tokenizer=tokenizer,
        shadows=tuple(shadow or ()),
        decision_log=decision_log,
    )

    async def run() -> None:
        service = Router(pod, settings, WallClock())
        stop = asyncio.ensure_future(told_to_stop(with_parent=exit_with_parent))
        url = await service.start(host, port)
        print(f"ready {url}", flush=True)
        await stop
        await service.stop(grace)

    uvloop.run(run())
