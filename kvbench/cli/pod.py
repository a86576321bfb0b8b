"""`kvbench pod`: a simulated vLLM server."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import Annotated

import typer

from kvbench import __version__


def pod(
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    served_model_name: str = typer.Option("kvbench-sim", help="Name of the model."),
    tokenizer: Annotated[
        Path | None, typer.Option(help="Directory of a tokenizer; kvbench has its own.")
    ] = None,
    profile: str = typer.Option(
        "llama-3.1-8b-l4", help="Whose timing the pod has: a name, or a file of `calibrate`."
    ),
    time_scale: float = typer.Option(
        1.0, min=0, help="Factor on all times: 0.5 is twice as fast, 0 takes no time."
    ),
    block_size: int = typer.Option(16, min=1, help="Tokens per KV block."),
    num_gpu_blocks: Annotated[
        int | None, typer.Option(min=2, help="KV blocks; what fits on the device if not given.")
    ] = None,
    max_num_seqs: int = typer.Option(256, min=1, help="Most requests in one batch."),
    max_num_batched_tokens: int = typer.Option(8192, min=1, help="Most tokens in one step."),
    max_model_len: int = typer.Option(131072, min=2, help="Most tokens of prompt and answer."),
    long_prefill_token_threshold: int = typer.Option(
        0, min=0, help="Longest piece of a prompt in one step; 0 is no limit."
    ),
    enable_prefix_caching: bool = typer.Option(True, help="Whether blocks are kept for reuse."),
    enable_prompt_tokens_details: bool = typer.Option(
        True, help="Whether usage tells how many prompt tokens were cached."
    ),
    enable_auto_tool_choice: bool = typer.Option(
        False, "--enable-auto-tool-choice", help="Take chats with tools; none is ever called."
    ),
    kv_events_config: Annotated[
        str | None, typer.Option(help="Where KV events go: vLLM's JSON.")
    ] = None,
    kv_events_form: str = typer.Option(
        "map", help='Encoding of KV events: "map" as vLLM from 0.24 on, or "array".'
    ),
    dev_mode: bool = typer.Option(
        False, help="Serve /reset_prefix_cache, /faults and /restart (VLLM_SERVER_DEV_MODE=1)."
    ),
    fault: Annotated[
        list[str] | None,
        typer.Option(help='What goes wrong: "cut:after=5,rate=0.1"; once for each.'),
    ] = None,
    seed: int = typer.Option(0, help="Of what the pod says, and of faults."),
    grace: float = typer.Option(
        30.0, min=0, help="Seconds that streams may take to end when it is stopped."
    ),
    exit_with_parent: bool = typer.Option(
        False, "--exit-with-parent", help="Stop when standard input ends."
    ),
) -> None:
    """Serve a simulated vLLM: its prefix cache, its metrics and errors, the timing of a GPU.

    Of its API: chats, completions, messages, responses, models, tokenize and detokenize. Else it is
    404, as vLLM is for what its model cannot do.

    Example: kvbench pod --port 8001 --profile llama-3.1-8b-h100 --dev-mode
    """
    import asyncio
    import gc

    import uvloop

    from kvbench.cli.logbook import log_to_stderr
    from kvbench.clock import WallClock, utc_seconds
    from kvbench.engine.profile_file import load_profile
    from kvbench.engine.values import EngineConfig
    from kvbench.errors import InputError
    from kvbench.http.lifetime import told_to_stop
    from kvbench.pod.faults import Faults, parse_fault
    from kvbench.pod.publisher import parse_events_config
    from kvbench.pod.server import PodConfig
    from kvbench.pod.service import PodService, fitted
    from kvbench.text.tokenizer import Tokenizer

    logger = log_to_stderr()
    if kv_events_form not in {"map", "array"}:
        raise InputError(f'--kv-events-form: expected "map" or "array", got {kv_events_form!r}')
    hardware = load_profile(profile)
    engine = EngineConfig(
        num_gpu_blocks=num_gpu_blocks or hardware.num_gpu_blocks(block_size),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
        long_prefill_token_threshold=long_prefill_token_threshold,
    )
    config = PodConfig(
        model=served_model_name,
        tokenizer=Tokenizer.load(tokenizer),
        engine=fitted(engine),
        time=hardware.time.faster(1 / time_scale if time_scale else float("inf")),
        tells_cached=enable_prompt_tokens_details,
        takes_tools=enable_auto_tool_choice,
        dev_mode=dev_mode,
        seed=seed,
        request_s=hardware.request_s * time_scale,
        request_token_s=hardware.request_token_s * time_scale,
        num_gpu_blocks_override=num_gpu_blocks,
    )
    service = PodService(
        config,
        WallClock(),
        utc_seconds,
        events=parse_events_config(kv_events_config),
        form="array" if kv_events_form == "array" else "map",
        faults=Faults(map(parse_fault, fault or ()), seed),
    )

    async def run() -> None:
        """Serve until told to stop."""
        stop = asyncio.ensure_future(told_to_stop(with_parent=exit_with_parent))
        starting = asyncio.ensure_future(service.start(host, port))
        await asyncio.wait({stop, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            gc.freeze()  # what is here now stays: collections need not look at it, and are short
            logger.info("kvbench %s simulates a pod at %s", __version__, starting.result())
            print(f"ready {starting.result()}", flush=True)
            await stop
        starting.cancel()
        await service.stop(grace)
        logger.info("ended")

    uvloop.run(run())
