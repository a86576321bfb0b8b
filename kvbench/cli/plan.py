"""`kvbench plan`: what a workload or a trace will send, without sending it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from kvbench.oracle.ceiling import Ceiling
    from kvbench.stack.target import Target
    from kvbench.workload.plan import Plan, PlannedTurn


def plan(
    workload: Annotated[
        Path | None, typer.Argument(help="Workload file, such as workloads/chat.yaml.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace instead, in any form that `kvbench import` knows.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Root seed; the workload has one.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many rows of the trace, or turns.")
    ] = None,
    speed: Annotated[float, typer.Option(min=1e-6, help="Play it so many times faster.")] = 1.0,
    target: Annotated[
        str | None,
        typer.Option(
            help="Base URL of a vLLM pod or a kvbench router, as for `run`: the plan is made with "
            "its tokenizer, blocks and window. It is only asked for these."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask --target for; default: its first.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Tokenizer: a directory or tokenizer.json; default: --target's, or ours"),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens per KV block; default: --target's, or 16.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="How many of the first turns to list.")] = 8,
) -> None:
    """Show what will be sent, and what an endless cache would hit of it; send nothing.

    For example:

      kvbench plan workloads/chat.yaml

      kvbench plan workloads/chat.yaml --target http://127.0.0.1:8000

      kvbench plan --trace conversation_trace.jsonl --limit 300 --block-size 512

    Exit codes: 0 shown · 2 your input · 3 the target did not answer
    """
    from rich.console import Console

    from kvbench.errors import InputError
    from kvbench.gates.file import read_gates
    from kvbench.oracle.ceiling import ceiling
    from kvbench.stack.own_tokenizer import tokenizer_for
    from kvbench.stack.preflight import Seen, problems
    from kvbench.stack.target import DEFAULT_BLOCK_SIZE, look_at
    from kvbench.text.tokenizer import Tokenizer
    from kvbench.workload.load import load_plan
    from kvbench.workload.render import Renderer

    planned = load_plan(workload, trace, seed=seed, limit=limit, speed=speed)
    gates = read_gates(workload) if workload is not None else []
    if model is not None and target is None:
        raise InputError("--model: expected --target beside it, which has the model")
    there = look_at(target, model) if target is not None else None
    words = Tokenizer.load(tokenizer) if there is None else tokenizer_for(there, tokenizer)
    size = block_size or (there.block_size if there is not None else None) or DEFAULT_BLOCK_SIZE
    top = ceiling(planned, Renderer(planned, words), size)
    console = Console()
    console.print(_summary(planned, top, there))
    if there is not None:
        pairs = zip(planned.turns, top.prompt_tokens, strict=True)
        lengths = [tokens + turn.max_tokens for turn, tokens in pairs]
        for problem in problems(Seen(there.max_model_len), lengths):
            console.print(f"note: {problem.sentence}", style="yellow", markup=False)
    for note in planned.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    for gate in gates:
        console.print(f"gate: {gate.text}", markup=False)
    if max(turn.turn for turn in planned.turns) > 1:
        console.print(_by_turn(planned, top))
    if show:
        console.print(_first_turns(planned, top, show))


def _summary(plan: Plan, top: Ceiling, there: Target | None) -> Table:
    """Return the plan in a dozen numbers."""
    from kvbench.cli.tables import facts_table
    from kvbench.units import format_seconds, format_share
    from kvbench.workload.sharing import prefix_tokens

    answers = [turn.max_tokens for turn in plan.turns]
    last = max((turn.at for turn in plan.turns if turn.at is not None), default=0.0)
    table = facts_table(f"{plan.name}, seed {plan.seed}")
    table.add_row("sent to", f"{plan.api}, history {plan.history}")
    if there is not None:
        window = f", window {there.max_model_len:,} tokens" if there.max_model_len else ""
        table.add_row("target", f"{there.url}, {there.model}{window}")
    table.add_row("sessions", f"{plan.sessions:,}")
    table.add_row("turns", f"{len(plan.turns):,}")
    table.add_row("prefix groups", f"{len({turn.group for turn in plan.turns}):,}")
    if working_set := prefix_tokens(plan):
        table.add_row("shared prefixes", f"{working_set:,} tokens in all that are asked for")
    table.add_row("last session begins", f"after {format_seconds(last)}")
    table.add_row("takes at least", f"{format_seconds(plan.shortest_s)}, were answers instant")
    table.add_row("prompt tokens", _spread(top.prompt_tokens))
    table.add_row("answer tokens", _spread(answers))
    table.add_row(
        "ceiling",
        f"{format_share(top.hit_rate)} of prompt tokens, with an endless cache and blocks of "
        f"{top.block_size}",
    )
    fresh = sum(top.prompt_tokens) - sum(top.cached_tokens)
    table.add_row("computed at least", f"{fresh:,} prompt tokens")
    return table


def _by_turn(plan: Plan, top: Ceiling) -> Table:
    """Return prompts, ceiling and what is left of the context, for the first turns and later."""
    from kvbench.cli.tables import rows_table
    from kvbench.units import format_share

    numbers = ("turn", "requests", "prompt, mean", "ceiling", "context kept")
    table = rows_table((), numbers, "\nturn by turn")
    for turns in _spans(plan.turns):
        prompt = sum(top.prompt_tokens[turn.index] for turn in turns)
        cached = sum(top.cached_tokens[turn.index] for turn in turns)
        sent = sum(turn.content_tokens for turn in turns)
        first, last = min(t.turn for t in turns), max(t.turn for t in turns)
        table.add_row(
            str(first) if first == last else f"{first}–{last}",
            f"{len(turns):,}",
            f"{prompt / len(turns):,.0f}",
            format_share(cached / prompt),
            format_share(sent / (sent + sum(turn.dropped_tokens for turn in turns))),
        )
    return table


def _spans(turns: Sequence[PlannedTurn]) -> list[list[PlannedTurn]]:
    """Return the turns by their number: 1, 2, 3, 4, 5 to 8, 9 to 16, and so on doubling."""
    spans: dict[int, list[PlannedTurn]] = {}
    for turn in turns:
        span = turn.turn if turn.turn < 5 else (turn.turn - 1).bit_length() + 2
        spans.setdefault(span, []).append(turn)
    return [spans[key] for key in sorted(spans)]


def _spread(numbers: Sequence[int]) -> str:
    """Return least, median, greatest and sum."""
    from statistics import median

    return (
        f"{min(numbers):,} · {median(numbers):,.0f} · {max(numbers):,}"
        f"  (least · median · most), {sum(numbers):,} in all"
    )


def _first_turns(plan: Plan, top: Ceiling, show: int) -> Table:
    """Return the first turns, one a row."""
    from kvbench.cli.tables import rows_table

    words = ("due", "session", "turn", "group")
    table = rows_table(words, ("prompt", "cached", "answer"), "\nthe first turns")
    for column in table.columns[: len(words)]:
        column.no_wrap, column.max_width = True, 18
    for turn in plan.turns[:show]:
        table.add_row(
            _due(turn),
            turn.session,
            str(turn.turn),
            turn.group,
            f"{top.prompt_tokens[turn.index]:,}",
            f"{top.cached_tokens[turn.index]:,}",
            f"{turn.max_tokens:,}",
        )
    return table


def _due(turn: PlannedTurn) -> str:
    """Return when a turn is due, for people."""
    if turn.at is not None:
        return f"{turn.at:.2f} s"
    after = f" after {', '.join(map(str, turn.after))}" if turn.after else ""
    return f"+{turn.think:.2f} s{after}"
