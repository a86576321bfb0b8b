"""`kvbench up`: pods and a router on this machine until Ctrl-C."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from kvbench.stack.local import LocalStack
    from kvbench.stack.process import Child
    from kvbench.stack.topology import PodSpec, Topology, VllmSpec

_SIM, _VLLM = "Simulated pods", "Real vLLM pods (--engine vllm)"


def up(
    pods: Annotated[int, typer.Option(min=1, max=64, help="How many pods.")] = 3,
    engine: Annotated[
        Literal["sim", "vllm"], typer.Option(help="Simulated pods, or real ones.")
    ] = "sim",
    policy: Annotated[str, typer.Option(help="Which pod gets a request.")] = "prefix_cost",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The router's; 0: a free one.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the router's random choices.")] = 0,
    compose: Annotated[
        bool, typer.Option("--compose", help="Use docker-compose.yml and .env of this folder.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Start exporter, Prometheus and Alertmanager, too.")
    ] = False,
    usual_ports: Annotated[
        bool, typer.Option("--usual-ports", help="8000, 9410, 9090 and 9093, as under Docker.")
    ] = False,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens per KV block; 16, and 32 for vLLM on a CPU.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt and answer together, in tokens.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Whose timing the pods have.", rich_help_panel=_SIM)
    ] = "llama-3.1-8b-l4",
    num_gpu_blocks: Annotated[
        int, typer.Option(min=2, help="KV blocks in the cache of each pod.", rich_help_panel=_SIM)
    ] = 8192,
    time_scale: Annotated[
        float,
        typer.Option(min=0, help="Factor on times; 0.5 is twice as fast.", rich_help_panel=_SIM),
    ] = 1.0,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Directory of a tokenizer; kvbench has its own.", rich_help_panel=_SIM),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Name on the hub, or a directory.", rich_help_panel=_VLLM),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of a model on the hub.", rich_help_panel=_VLLM)
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of a GPU's memory.", rich_help_panel=_VLLM),
    ] = None,
    vllm_command: Annotated[
        str,
        typer.Option(
            help="What starts a pod; {model} and {port} are filled in.", rich_help_panel=_VLLM
        ),
    ] = "vllm serve {model}",
    vllm_arg: Annotated[
        list[str] | None,
        typer.Option(help="A further flag for vLLM; once for each.", rich_help_panel=_VLLM),
    ] = None,
) -> None:
    """Start pods and a router in front of them; Ctrl-C ends them all.

    For example:

      kvbench up

      kvbench up --pods 4 --policy round_robin --port 8000

      kvbench up --watch --usual-ports     (with Prometheus, its rules, and Alertmanager)

      kvbench up --engine vllm --model Qwen/Qwen2.5-7B-Instruct --pods 2     (a GPU each)

      kvbench up --compose     (docker-compose.yml of this folder; docs/compose.md)

      kvbench run workloads/chat.yaml --target http://127.0.0.1:8000     (in another terminal)
    """
    from rich.console import Console

    from kvbench.stack.compose import up as compose_up
    from kvbench.stack.gpus import count_gpus
    from kvbench.stack.topology import (
        ROUTER_PORT,
        PodSpec,
        RouterSpec,
        Topology,
        VllmSpec,
        on_gpus,
    )

    console = Console(highlight=False)
    if compose:
        _say(console, compose_up(Path.cwd()))
        return
    specs: tuple[PodSpec | VllmSpec, ...]
    if engine == "sim":
        from kvbench.engine.profile_file import load_profile

        load_profile(profile)  # refuses what the pods would refuse, before any is started
        pod = PodSpec(
            profile=profile,
            num_gpu_blocks=num_gpu_blocks,
            block_size=block_size or 16,
            max_model_len=max_model_len or 131072,
            time_scale=time_scale,
            tokenizer=str(tokenizer) if tokenizer else None,
        )
        specs = (pod,) * pods
    else:
        gpus = count_gpus()
        real = VllmSpec(
            _needed(model),
            revision=revision,
            block_size=block_size or (16 if gpus else 32),
            max_model_len=max_model_len,
            gpu_memory_utilization=gpu_memory_utilization,
            starts=vllm_command,
            extra=tuple(vllm_arg or ()),
        )
        specs = on_gpus(real, pods, gpus)
    topology = Topology(pods=specs, router=RouterSpec(policy=policy, seed=seed))
    port = port or (ROUTER_PORT if usual_ports else 0)
    try:
        _serve(console, topology, port, watch=watch, usual_ports=usual_ports)
    except KeyboardInterrupt:
        console.print("\nstopped")


def _needed(model: str | None) -> str:
    """Return the model, which real pods cannot do without."""
    from kvbench.errors import InputError

    if model is None:
        raise InputError(
            "--engine vllm: expected --model, got none",
            hint="--model Qwen/Qwen2.5-7B-Instruct, or the path of a directory",
        )
    return model


def _serve(
    console: Console, topology: Topology, port: int, *, watch: bool, usual_ports: bool
) -> NoReturn:
    """Start it all, say where it is, and watch over it until Ctrl-C."""
    from kvbench.stack.local import LocalStack
    from kvbench.stack.process import logs_folder
    from kvbench.stack.topology import ALERTMANAGER_PORT, EXPORTER_PORT, PROMETHEUS_PORT
    from kvbench.stack.watchers import Watchers

    ports = (EXPORTER_PORT, PROMETHEUS_PORT, ALERTMANAGER_PORT) if usual_ports else None
    with ExitStack() as all_of_it:
        logs = all_of_it.enter_context(logs_folder("up"))
        stack = all_of_it.enter_context(LocalStack(topology, logs, router_port=port))
        watchers: list[Child] = []
        if watch:
            started = Watchers(stack, logs, topology.host, ports)
            watchers += all_of_it.enter_context(started).children
        _say(console, {child.name: child.url or "" for child in [*stack.pods, *watchers]})
        console.print(f"[bold]{'router':15}{stack.url}[/bold]   policy {topology.router.policy}")
        console.print(f"\nkvbench run workloads/chat.yaml --target {stack.url}")
        more = "" if watch else " --watch adds exporter, Prometheus and alerts."
        console.print(f"Ctrl-C ends all of it.{more}", style="dim")
        _watch_over(console, stack, watchers)


def _watch_over(console: Console, stack: LocalStack, watchers: Sequence[Child]) -> NoReturn:
    """Wait for Ctrl-C. A pod that ends is said, and the others go on; the last one is the end."""
    from kvbench.stack.process import check

    assert stack.router is not None
    gone: set[Child] = set()
    while True:
        time.sleep(0.5)
        check([stack.router, *watchers])
        for pod in stack.pods:
            if pod not in gone and (code := pod.poll()) is not None:
                gone.add(pod)
                said = f"{pod.name} ended with {code}; the others go on. Its log: {pod.log}"
                console.print(said, style="yellow", soft_wrap=True)
        if len(gone) == len(stack.pods):
            check(stack.pods)


def _say(console: Console, urls: Mapping[str, str]) -> None:
    """Say where each part answers."""
    for name, url in urls.items():
        console.print(f"{name:15}{url}")
