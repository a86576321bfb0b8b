"""`kvbench import`: a trace, or another load generator's settings, as a file that kvbench sends."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvbench.workload.formats import Format  # noqa: TC001 - typer reads the annotations

if TYPE_CHECKING:
    from kvbench.workload.plan import Plan


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A trace, a folder of traces, or settings.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Plan file (.jsonl), or workload file (.yaml).")
    ],
    trace_format: Annotated[
        Format | None, typer.Option("--format", help="What FILE is; guessed unless given.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens that one block id stands for.")
    ] = None,
    time_unit: Annotated[
        Literal["s", "ms"] | None, typer.Option(help="Unit of the trace's times.")
    ] = None,
    ids: Annotated[
        Literal["global", "local"] | None,
        typer.Option(help="Do equal ids mean the same everywhere, or within a session?"),
    ] = None,
    tail: Annotated[
        Literal["ceil", "floor"] | None,
        typer.Option(help="Has the last, partial block an id (ceil) or not (floor)?"),
    ] = None,
    semantics: Annotated[
        Literal["cumulative", "delta"] | None,
        typer.Option(help="Is a row its whole prompt, or only what is new in its session?"),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=1e-6, help="Sessions a second, if the trace has no times.")
    ] = 1.0,
    think: Annotated[
        float, typer.Option(min=0, help="Seconds between turns, if the trace does not say.")
    ] = 0.0,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of an answer, if the trace does not say.")
    ] = 128,
    history: Annotated[
        Literal["planned", "answers"],
        typer.Option(help="Do later turns repeat planned text, or the model's real answers?"),
    ] = "planned",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Counts texts: a directory or tokenizer.json.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root seed.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only so many turns.")] = None,
) -> None:
    """Turn a trace into a plan file, or another tool's settings into a workload file.

    Formats: mooncake, bailian, weka, tracelab, tracelab-rounds, sharegpt, messages (OpenAI's),
    aiperf, aiperf-dag, azure, burstgpt; inference-perf and production-stack become workloads.

    For example:

      kvbench import conversation_trace.jsonl -o chats.jsonl

      kvbench import shared_prefix.yaml --format inference-perf -o shared.yaml

      kvbench run --trace chats.jsonl --target http://127.0.0.1:8000

    Exit codes: 0 written · 2 your input
    """
    from kvbench.errors import InputError
    from kvbench.workload.plan_file import write_plan
    from kvbench.workload.reading import TraceOptions
    from kvbench.workload.trace import guess_format, read_trace

    if out.exists() and out.samefile(source):
        raise InputError(
            "--out: expected another file than the one that is read, got the same",
            where=str(out),
            hint="it would be gone",
        )
    kind = trace_format or guess_format(source)
    if kind in {"inference-perf", "production-stack"}:
        _import_settings(source, kind, out)
        return
    options = TraceOptions(
        format=kind,
        block_size=block_size,
        time_unit=time_unit,
        ids=ids,
        tail=tail,
        semantics=semantics,
        rate=rate,
        think=think,
        answer_tokens=answer_tokens,
        tokenizer=tokenizer,
        history=history,
    )
    plan = read_trace(source, options, seed=seed, limit=limit)
    write_plan(out, plan)
    if trace_format is None:
        print(f"guessed: {kind} (--format says otherwise)")
    _say(plan, out)


def _import_settings(source: Path, kind: str, out: Path) -> None:
    """Write another tool's settings as a workload file."""
    from kvbench.errors import InputError
    from kvbench.workload.foreign import from_inference_perf, from_production_stack, write_workload

    if kind == "inference-perf":
        content, notes = from_inference_perf(source)
    else:
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=str(source)) from error
        content, notes = from_production_stack(text, str(source))
    write_workload(out, content)
    for note in notes:
        print(f"note: {note}")
    print(f"wrote {out}: kvbench plan {out} shows what it will send")


def _say(plan: Plan, out: Path) -> None:
    """Say what was taken and where it lies."""
    for note in plan.notes:
        print(f"note: {note}")
    prompts = sum(turn.content_tokens for turn in plan.turns)
    print(
        f"wrote {out}: {plan.sessions:,} sessions, {len(plan.turns):,} turns, "
        f"{prompts:,} prompt tokens: kvbench plan --trace {out} shows more"
    )
