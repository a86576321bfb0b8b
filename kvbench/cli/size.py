"""`kvbench size`: what a token costs in KV cache, and how many tokens fit on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from kvbench.engine.memory import Budget, Capacity, Layout
    from kvbench.engine.shape import Dtype, Shape


def size(
    model: Annotated[
        str, typer.Argument(help="A known model, a config.json, or the directory of one.")
    ] = "",
    list_models: Annotated[
        bool, typer.Option("--list", help="List the models that are known.")
    ] = False,
    tokens: Annotated[int, typer.Option(min=1, help="Size a sequence of so many tokens.")] = 2048,
    gpu: Annotated[
        str | None, typer.Option(help="Which GPU: a100-40, a100-80, h100-80, h200 or l4.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Or how much memory each GPU has: 80GiB.")
    ] = None,
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(help="Or how much KV cache each GPU has: vLLM's --kv-cache-memory-bytes."),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the memory that vLLM may use for everything.")
    ] = 0.92,
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="GPUs that the model is spread over.")
    ] = 1,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a sequence; default: the model's.")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 16,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Token budget of a step.")
    ] = 8192,
    async_scheduling: Annotated[
        bool, typer.Option(help="Whether the next step is scheduled while one runs.")
    ] = True,
    dtype: Annotated[
        Literal["auto", "fp16", "bf16", "fp32", "fp8"], typer.Option(help="Of the weights.")
    ] = "auto",
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8"], typer.Option(help="Of keys and values; auto: as the weights.")
    ] = "auto",
    weights: Annotated[
        str | None, typer.Option(help="Size of all weights, if you know better: 14GiB.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a model's KV cache costs: bytes per token, tokens per GPU, sequences per pod.

    For example:

      kvbench size llama-2-7b --tokens 2048

      kvbench size qwen3-32b --gpu h100-80 --tensor-parallel-size 2 --max-model-len 32768

      kvbench size ./my-model/config.json --gpu-memory 24GiB --kv-cache-dtype fp8
    """
    from dataclasses import asdict

    from kvbench.engine.memory import capacity, lay_out
    from kvbench.engine.models import load_shape
    from kvbench.errors import InputError

    if list_models:
        _print_models()
        return
    if not model:
        raise InputError("MODEL: missing", hint="`kvbench size --list` names the known models")
    shape = load_shape(model)
    served: Dtype = shape.dtype if dtype == "auto" else dtype
    kept = "fp8" if kv_cache_dtype == "fp8" else "bf16" if served == "fp8" else served
    layout = lay_out(shape, dtype=kept, block_size=block_size, gpus=tensor_parallel_size)
    length = max_model_len or shape.max_model_len
    in_flight = max_num_batched_tokens * (2 if async_scheduling else 1)
    budget = None
    kv_bytes = None if kv_cache_memory is None else _size("--kv-cache-memory", kv_cache_memory)
    if kv_bytes is None and (gpu or gpu_memory):
        budget = _budget(
            shape,
            memory=_memory(gpu, gpu_memory),
            utilization=gpu_memory_utilization,
            weights=shape.weights.size(served) if weights is None else _size("--weights", weights),
            gpus=tensor_parallel_size,
            batched_tokens=max_num_batched_tokens,
        )
        budget.check_fits()
        kv_bytes = budget.kv_cache
    room = None if kv_bytes is None else capacity(layout, kv_bytes, length, in_flight)
    if as_json:
        facts = _facts(shape, layout, tokens, in_flight)
        facts |= {"dtype": served, "kv_cache_dtype": kept, "max_model_len": length}
        facts |= {"budget": budget and asdict(budget), "kv_cache_bytes_per_gpu": kv_bytes}
        facts |= {"capacity": room and asdict(room)}
        _print_json(facts)
        return
    _print_shape(shape, layout, kept)
    _print_sequence(layout, tokens, in_flight)
    if budget is not None:
        _print_budget(budget)
    if room is not None:
        _print_capacity(room, length)
    if budget is not None and room is not None:
        _print_utilization(budget, layout, room, (length, in_flight))


def _size(flag: str, text: str) -> int:
    """Return the bytes that a flag says."""
    from kvbench.errors import InputError
    from kvbench.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}") from None


def _memory(gpu: str | None, gpu_memory: str | None) -> int:
    """Return the bytes of memory of each GPU."""
    from kvbench.engine.memory import GPUS
    from kvbench.errors import InputError

    if gpu_memory is not None:
        return _size("--gpu-memory", gpu_memory)
    if gpu is None or gpu not in GPUS:
        raise InputError(
            f"--gpu: expected one of {', '.join(GPUS)}, got {gpu!r}",
            hint="say how much memory another one has, with --gpu-memory 48GiB",
        )
    return GPUS[gpu]


def _budget(
    shape: Shape,
    *,
    memory: int,
    utilization: float,
    weights: int,
    gpus: int,
    batched_tokens: int,
) -> Budget:
    """Return how a GPU's memory is spent."""
    from kvbench.engine.memory import Budget, estimate_overhead

    overhead = estimate_overhead(shape, gpus=gpus, batched_tokens=batched_tokens)
    return Budget(memory, utilization, weights // gpus, overhead)


def _facts(shape: Shape, layout: Layout, tokens: int, in_flight: int) -> dict[str, object]:
    """Return the numbers that need no GPU."""
    gpus = layout.gpus
    return {
        "model": shape.name,
        "attention": shape.attention,
        "parameters": shape.weights.parameters,
        "layers": len(shape.windows),
        "windowed_layers": sum(window is not None for window in shape.windows),
        "gpus": gpus,
        "replicas": layout.replicas,
        "block_size": layout.block_size,
        "bytes_per_token_per_gpu": layout.token_bytes,
        "bytes_per_token": layout.token_bytes * gpus,
        "bytes_per_block_per_gpu": layout.block_bytes,
        "groups": [[group.layers, group.window] for group in layout.groups],
        "tokens": tokens,
        "bytes_of_tokens": layout.sequence_bytes(tokens) * gpus,
        "blocks_of_tokens": layout.sequence_blocks(tokens, in_flight),
    }


def _print_json(facts: dict[str, object]) -> None:
    """Print an object."""
    import json

    print(json.dumps(facts, indent=2))


def _print_models() -> None:
    """Print the known models, one a line."""
    from kvbench.engine.memory import lay_out
    from kvbench.engine.models import known_models
    from kvbench.units import format_bytes

    print(f"{'model':<18}{'parameters':>11}  {'attention':<10}{'KV per token':>13}   window")
    for name, shape in known_models().items():
        layout = lay_out(shape, dtype="bf16", block_size=16)
        per_token = format_bytes(layout.token_bytes)
        count = f"{shape.weights.parameters / 1e9:.2f} B"
        print(f"{name:<18}{count:>11}  {shape.attention:<10}{per_token:>13}   {_windows(shape)}")


def _windows(shape: Shape) -> str:
    """Return in words which layers forget."""
    windows = [window for window in shape.windows if window is not None]
    if not windows:
        return "–"
    return f"{len(windows)} of {len(shape.windows)} layers keep {windows[0]:,} tokens"


def _print_shape(shape: Shape, layout: Layout, dtype: str) -> None:
    """Print what a token costs."""
    from kvbench.units import format_bytes

    heads = "one latent vector" if shape.latent else f"{shape.kv_heads} key-value heads"
    print(f"{shape.name}: {shape.weights.parameters / 1e9:.2f} B parameters, {shape.attention}")
    print(f"  {len(shape.windows)} layers with {heads}, {dtype}; window: {_windows(shape)}")
    total = format_bytes(layout.token_bytes * layout.gpus)
    where = "" if layout.gpus == 1 else f" = {format_bytes(layout.token_bytes)} on each GPU"
    print(f"  one token          {total}{where}")
    print(f"  one block          {format_bytes(layout.block_bytes)}", end="")
    print(f" of {layout.block_size} tokens" + ("" if layout.gpus == 1 else ", on each GPU"))
    if len(layout.groups) > 1:
        print(f"                     {len(layout.groups)} groups of layers draw blocks", end="")
        print(f"; {layout.padding:.1%} of the bytes are padding")
    if layout.replicas > 1:
        print(f"                     every key and value lies on {layout.replicas} GPUs")


def _print_sequence(layout: Layout, tokens: int, in_flight: int) -> None:
    """Print what a sequence costs."""
    from kvbench.units import format_bytes

    total = layout.sequence_bytes(tokens) * layout.gpus
    blocks = layout.sequence_blocks(tokens, in_flight)
    print(f"  {tokens:,} tokens".ljust(21), end="")
    print(f"{format_bytes(total)} ({total:,} bytes), up to {blocks:,} blocks")


def _print_budget(budget: Budget) -> None:
    """Print how a GPU's memory is spent."""
    from kvbench.units import format_bytes

    rest = budget.overhead
    print(f"\neach GPU: {budget.utilization:g} × {format_bytes(budget.memory)}", end="")
    print(f" = {format_bytes(budget.given)} for everything; estimated:")
    print(f"  weights            {format_bytes(budget.weights)}")
    print(f"  activations        {format_bytes(rest.activations)}   of the largest step")
    print(f"  context, buffers   {format_bytes(rest.context)}")
    print(f"  CUDA graphs        {format_bytes(rest.graphs)}")
    print(f"  KV cache           {format_bytes(budget.kv_cache)}   what is left")


def _print_capacity(room: Capacity, length: int) -> None:
    """Print what fits."""
    print(f"\n  {room.blocks:,} blocks (num_gpu_blocks), one of them the null block")
    print(f"  {room.tokens:,} tokens (kv_cache_size_tokens)")
    print(f"  {room.concurrency:.2f} sequences of {length:,} tokens (kv_cache_max_concurrency)")


def _print_utilization(
    budget: Budget, layout: Layout, room: Capacity, sequence: tuple[int, int]
) -> None:
    """Print what another utilisation would leave."""
    from dataclasses import replace

    from kvbench.engine.memory import UTILIZATION, capacity
    from kvbench.errors import InputError

    here = budget.utilization
    other = 0.7 if abs(here - 0.7) > 0.05 else UTILIZATION
    try:
        then = capacity(layout, replace(budget, utilization=other).kv_cache, *sequence).tokens
    except InputError:
        then = 0
    low, high = sorted([(here, room.tokens), (other, then)])
    print("\n--gpu-memory-utilization caps weights, activations and cache together; lowering it")
    print(f"shrinks the cache: {low[0]:g} gives {_tokens(low[1])}, {high[0]:g} {_tokens(high[1])}.")


def _tokens(count: int) -> str:
    """Return a number of tokens in words."""
    return f"{count:,} tokens" if count else "too little for one full sequence"
