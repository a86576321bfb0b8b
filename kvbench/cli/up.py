"""`kvbench up`: pods and a router on this machine until Ctrl-C."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvbench.stack.local import LocalStack
from kvbench.stack.topology import PodSpec, RouterSpec, Topology


def up(
    pods: Annotated[int, typer.Option(min=1, max=64, help="How many simulated pods.")] = 3,
    policy: Annotated[str, typer.Option(help="Which pod gets a request.")] = "prefix_cost",
    profile: Annotated[str, typer.Option(help="Whose timing the pods have.")] = "llama-3.1-8b-l4",
    num_gpu_blocks: Annotated[
        int, typer.Option(min=2, help="KV blocks in the cache of each pod.")
    ] = 8192,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 16,
    max_model_len: Annotated[
        int, typer.Option(min=1, help="Longest prompt and answer together, in tokens.")
    ] = 131072,
    time_scale: Annotated[
        float, typer.Option(min=0, help="Factor on the pods' times; 0.5 is twice as fast.")
    ] = 1.0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Directory of a tokenizer; kvbench has its own.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The router's; 0: a free one.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the router's random choices.")] = 0,
) -> None:
    """Start simulated pods and a router in front of them; Ctrl-C ends them all.

    [bold]Examples[/bold]

      kvbench up

      kvbench up --pods 4 --policy round_robin --port 8000

      kvbench run workloads/chat.yaml --target http://127.0.0.1:8000     (in another terminal)
    """
    pod = PodSpec(
        profile=profile,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        time_scale=time_scale,
        tokenizer=str(tokenizer) if tokenizer else None,
    )
    topology = Topology(pods=(pod,) * pods, router=RouterSpec(policy=policy, seed=seed))
    console = Console(highlight=False)
    logs = Path(tempfile.mkdtemp(prefix="kvbench-up-"))
    try:
        with LocalStack(topology, logs, router_port=port) as stack:
            for child in stack.pods:
                console.print(f"{child.name}    {child.url}")
            console.print(f"[bold]router   {stack.url}[/bold]   policy {policy}")
            console.print(f"\nkvbench run workloads/chat.yaml --target {stack.url}")
            console.print("Ctrl-C ends all of it.", style="dim")
            while True:
                time.sleep(0.5)
                stack.check()
    except KeyboardInterrupt:
        console.print("\nstopped")
        shutil.rmtree(logs, ignore_errors=True)
