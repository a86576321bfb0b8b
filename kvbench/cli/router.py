"""`kvbench router`: the prefix-aware router in front of pods."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import Annotated

import typer

from kvbench import __version__
from kvbench.policies.names import DEFAULT, NAMES


def router(
    pod: Annotated[
        list[str] | None,
        typer.Option(
            "--pod",
            envvar="KVBENCH_PODS",
            help="URL of a pod, http://HOST:PORT[,events=tcp://…,replay=tcp://…], or "
            "dns://NAME:PORT[,events=tcp://NAME:…] for a pod at each of its addresses; once for "
            "each. The variable holds several, with blanks between.",
        ),
    ] = None,
    pods_file: Annotated[
        Path | None,
        typer.Option(help="YAML file that names pods; it is read again when it changes."),
    ] = None,
    policy: str = typer.Option(DEFAULT, help=f"Which pod gets a request: {', '.join(NAMES)}."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of random choices, which breaks ties. Without one each router draws its "
            "own: several in front of the same pods must not all choose alike."
        ),
    ] = None,
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
    api_keys_file: Annotated[
        Path | None,
        typer.Option(help="YAML file of API keys and their limits; without one all may ask."),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests of all clients that are passed on to pods at once; those beyond wait in "
            "--queue, or are answered 429. No limit if absent. (A client's own: `in_flight` in "
            "--api-keys-file.)",
        ),
    ] = None,
    queue: int = typer.Option(
        0, min=0, help="Requests that may wait for --max-in-flight; more are answered 429."
    ),
    queue_timeout: float = typer.Option(
        30.0, min=0.001, help="Seconds that a request may wait there."
    ),
    max_body: int = typer.Option(64, min=1, help="MiB of a request's body; more is answered 413."),
    connect_timeout: float = typer.Option(
        5.0, min=0.001, help="Seconds that a connection to a pod may take."
    ),
    first_byte_timeout: float = typer.Option(
        600.0, min=0.001, help="Seconds that a pod may take to begin an answer."
    ),
    idle_timeout: float = typer.Option(
        300.0, min=0.001, help="Seconds that a pod may pause in an answer."
    ),
    probe_every: float = typer.Option(
        1.0,
        min=0.0,
        help="Seconds between probes of a pod's /health; 0 is never. One that has no answer within "
        "5 s has failed; three of those in a row, or one refused connection, and the pod is down.",
    ),
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of the admin API, on loopback; 0 takes a free one."
        ),
    ] = None,
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

    Example: kvbench router --pods-file pods.yaml --api-keys-file keys.yaml --admin-port 9001
    """
    import asyncio
    import gc
    import os
    import secrets

    import uvloop

    from kvbench.cli.logbook import log_to_stderr
    from kvbench.clock import WallClock
    from kvbench.errors import InputError
    from kvbench.http.lifetime import told_to_stop
    from kvbench.router.forward import Limits
    from kvbench.router.service import Router, Settings
    from kvbench.router.totals import totals

    logger = log_to_stderr()
    # Short texts are encoded on the loop: waiting for other threads would cost more than they save.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    settings = Settings(
        name=f"kvbench-{secrets.token_hex(4)}",
        policy=policy,
        seed=secrets.randbits(32) if seed is None else seed,
        allow_policy_header=allow_policy_header,
        limits=Limits(connect_timeout, first_byte_timeout, idle_timeout),
        probe_every_s=probe_every,
        tokenizer=tokenizer,
        shadows=tuple(shadow or ()),
        decision_log=decision_log,
        pods_file=pods_file,
        keys_file=api_keys_file,
        admin=admin_port is not None,
        max_in_flight=max_in_flight,
        queue=queue,
        patience_s=queue_timeout,
        max_body=max_body * 2**20,
    )
    if queue and max_in_flight is None:
        raise InputError("--queue: expected --max-in-flight beside it, for which requests wait")
    _open_many()

    async def run() -> None:
        service = Router(pod or [], settings, WallClock())
        stop = asyncio.ensure_future(told_to_stop(with_parent=exit_with_parent))
        url = await service.start(host, port)
        if admin_port is not None:
            logger.info("admin API at %s", await service.start_admin(admin_port))
        gc.freeze()  # what is here now stays: collections need not look at it, and are short
        gc.set_threshold(5_000)  # not because a few dozen requests come at once
        logger.info(
            "kvbench %s routes by %s at %s, via %s, seed %d",
            __version__, policy, url, settings.name, settings.seed,
        )  # fmt: skip
        print(f"ready {url}", flush=True)
        await stop
        under_way = len(service.fleet.under_way)
        logger.info("told to stop: %d under way may take %g s more", under_way, grace)
        await service.stop(grace)
        logger.info("ended: %s", totals(service.fleet.meters))

    uvloop.run(run())


def _open_many() -> None:
    """Allow this process as many connections as the system lets it have."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
