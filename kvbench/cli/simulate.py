"""`kvbench simulate`: a workload, trace or request log in virtual time, without a single socket."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.policies.names import DEFAULT, NAMES

if TYPE_CHECKING:
    from rich.table import Table

    from kvbench.oracle.play import Mode, Play
    from kvbench.oracle.row import Summary
    from kvbench.oracle.script import Script


def simulate(
    file: Annotated[
        Path, typer.Argument(help="Workload (.yaml), trace of any known format, or request log.")
    ],
    pods: Annotated[int, typer.Option(min=1, max=1024, help="How many pods.")] = 1,
    blocks: Annotated[
        int | None,
        typer.Option(min=2, help="vLLM's num_gpu_blocks of each pod; default: the profile's."),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 16,
    policy: Annotated[
        str, typer.Option(help=f"Which pod gets a request: {', '.join(NAMES)}.")
    ] = DEFAULT,
    events: Annotated[
        bool,
        typer.Option(
            "--events", help="The policy hears the pods' KV events: it knows what each holds."
        ),
    ] = False,
    serial: Annotated[
        bool, typer.Option("--serial", help="Send each request when the one before has ended.")
    ] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Send all requests at once, in their order.")
    ] = False,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most requests in a batch.")] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Token budget of a step.")
    ] = 8192,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, help="Longest prompt and answer together; default: what fits."),
    ] = None,
    profile: Annotated[str, typer.Option(help="Whose timing the pods have.")] = "llama-3.1-8b-h100",
    join: Annotated[
        float,
        typer.Option(min=0.0, help="The last pod joins only after so many seconds, cold."),
    ] = 0.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many requests.")] = None,
    speed: Annotated[float, typer.Option(min=1e-6, help="Play so many times faster.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Root seed; the workload has one.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Whose chat template is used; kvbench has its own.")
    ] = None,
    prefill_only: Annotated[
        bool,
        typer.Option(
            "--prefill-only",
            "--no-output-blocks",
            help="Cut every answer to one token, so that answers take no blocks.",
        ),
    ] = False,
    rows: Annotated[Path | None, typer.Option(help="Write a row per request, as JSONL.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, not as a table.")
    ] = False,
) -> None:
    """Play a workload, a trace or a request log in virtual time, and say what it would get.

    For example:

      kvbench simulate workloads/chat.yaml --pods 4 --policy round_robin

      kvbench simulate conversation_trace.jsonl --pods 4 --blocks 5000 --block-size 512 --serial

      kvbench simulate requests.jsonl.gz --blocks 600 --block-size 32 --serial --rows out.jsonl

    Times are those of the profile, virtual; hits are those that vLLM would have.
    """
    from kvbench.engine.profile_file import load_profile
    from kvbench.engine.values import EngineConfig
    from kvbench.errors import InputError
    from kvbench.oracle.load import Reading, load_script
    from kvbench.oracle.play import Fleet, play

    if serial and batch:
        raise InputError("expected --serial or --batch, got both")
    if max_model_len is not None and block_size > max_model_len:
        raise InputError(
            f"--block-size: expected at most {max_model_len} tokens (--max-model-len), got "
            f"{block_size}",
            hint="no block size above it would ever fill a block",
        )
    device = load_profile(profile)
    num_gpu_blocks = blocks or device.num_gpu_blocks(block_size)
    config = EngineConfig(
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len or (num_gpu_blocks - 1) * block_size + 1,
    )
    reading = Reading(block_size, seed, limit, speed, tokenizer, prefill_only)
    script = load_script(file, reading)
    fleet = Fleet(
        pods,
        config,
        device.time,
        policy,
        seed or 0,
        request_s=device.request_s,
        request_token_s=device.request_token_s,
        join_s=join,
        events=events,
    )
    run = play(script, fleet, _mode(script, serial=serial, batch=batch))
    _write(run, rows)
    _tell(run.summary(), script.notes, json=json)


def _mode(script: Script, *, serial: bool, batch: bool) -> Mode:
    """Return how requests arrive; a log without times is played one after the other."""
    if batch:
        return "batch"
    return "serial" if serial or not script.timed else "timed"


def _write(run: Play, path: Path | None) -> None:
    """Play, and write the rows as they come."""
    import msgspec

    from kvbench.errors import InputError

    if path is None:
        for _ in run:
            pass
        return
    encoder = msgspec.json.Encoder()
    try:
        with path.open("wb") as out:
            for row in run:
                out.write(encoder.encode(row) + b"\n")
    except OSError as error:
        raise InputError(f"--rows: cannot be written: {error.strerror}", where=str(path)) from error


def _tell(summary: Summary, notes: tuple[str, ...], *, json: bool) -> None:
    """Print the summary."""
    import msgspec
    from rich.console import Console

    if json:
        print(msgspec.json.format(msgspec.json.encode(summary)).decode())
        return
    console = Console(highlight=False)
    console.print(_summary_table(summary))
    if len(summary.pods) > 1:
        console.print()
        console.print(_pod_table(summary))
    if summary.resets_refused:
        notes += (f"{summary.resets_refused} resets were refused: blocks were in use",)
    for note in notes:
        console.print(f"note: {note}", style="yellow")


def _summary_table(summary: Summary) -> Table:
    """Return the simulation in a table."""
    from kvbench.cli.tables import facts_table
    from kvbench.units import format_number, format_seconds, format_share

    table = facts_table(f"{summary.name}: {summary.policy} (virtual time)")
    ttft, requests, uncached = summary.ttft_s, summary.request_balance, summary.uncached_balance
    for name, value in (
        ("requests", format_number(summary.requests)),
        ("prompt tokens", format_number(summary.prompt_tokens)),
        ("hit rate", format_share(summary.hit_rate)),
        ("ceiling", format_share(summary.ceiling)),
        ("TTFT p50", format_seconds(ttft.p50)),
        ("TTFT p95", format_seconds(ttft.p95)),
        ("TTFT p99", format_seconds(ttft.p99)),
        ("evictions", format_number(summary.evictions)),
        ("preemptions", format_number(summary.preemptions)),
        ("requests, max/mean", f"{requests.max_over_mean:.3f}  (Jain {requests.jain:.3f})"),
        ("uncached, max/mean", f"{uncached.max_over_mean:.3f}  (Jain {uncached.jain:.3f})"),
        ("virtual time", format_seconds(summary.duration_s)),
    ):
        table.add_row(name, value)
    return table


def _pod_table(summary: Summary) -> Table:
    """Return the pods in a table."""
    from kvbench.cli.tables import rows_table
    from kvbench.units import format_number, format_share

    numbers = ("requests", "prompt tokens", "hit rate", "evictions", "preemptions")
    table = rows_table(("pod",), numbers)
    for pod in summary.pods:
        rate = pod.cached_tokens / pod.prompt_tokens if pod.prompt_tokens else None
        table.add_row(
            pod.pod,
            format_number(pod.requests),
            format_number(pod.prompt_tokens),
            format_share(rate),
            format_number(pod.evictions),
            format_number(pod.preemptions),
        )
    return table
