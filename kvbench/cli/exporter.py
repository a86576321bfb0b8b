"""`kvbench exporter`: what pods' caches are made of, beside anybody's pods."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench import __version__


def exporter(
    pod: Annotated[
        list[str] | None,
        typer.Option(
            "--pod",
            envvar="KVBENCH_PODS",
            help="A pod, once for each: http://HOST:PORT[,events=tcp://…,replay=tcp://…]. The "
            "variable holds several, with blanks between.",
        ),
    ] = None,
    router: str | None = typer.Option(
        None,
        help="A kvbench router, whose pods are taken in; its key, if it has keys: OPENAI_API_KEY.",
    ),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    every: float = typer.Option(1.0, min=0.05, help="Seconds between two looks at a pod."),
    timeout: float = typer.Option(5.0, min=0.05, help="Seconds that a pod may take to answer."),
    remember: int = typer.Option(
        500_000, min=2, help="Blocks remembered after they are gone; 120 bytes each."
    ),
    exit_with_parent: bool = typer.Option(
        False, "--exit-with-parent", help="Stop when standard input ends."
    ),
) -> None:
    """Show what engines do not tell: cache composition, evictions, duplicates, headroom, balance.

    Example: kvbench exporter --pod http://10.0.0.1:8000,events=tcp://10.0.0.1:5557 --port 9410
    """
    import asyncio
    import os

    import uvloop

    from kvbench.cli.logbook import log_to_stderr
    from kvbench.clock import WallClock, utc_seconds
    from kvbench.exporter.service import Exporter, Settings
    from kvbench.http.lifetime import told_to_stop

    logger = log_to_stderr()
    settings = Settings(
        every_s=every,
        timeout_s=timeout,
        remember=remember,
        key=os.environ.get("OPENAI_API_KEY") or None,
    )
    service = Exporter(pod or [], router, settings, WallClock(), utc_seconds)

    async def run() -> None:
        stop = asyncio.ensure_future(told_to_stop(with_parent=exit_with_parent))
        try:
            url = await service.start(host, port)
            logger.info("kvbench %s shows metrics at %s/metrics", __version__, url)
            print(f"ready {url}", flush=True)
            await stop
        finally:
            await service.stop()
            logger.info("ended: %s", service.totals())

    uvloop.run(run())
