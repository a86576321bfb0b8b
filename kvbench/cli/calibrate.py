"""`kvbench calibrate`: measure how long a pod's steps take, and write it down as a profile."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.stack.calibrate import Calibration
    from kvbench.stack.facts import Facts


def calibrate(
    url: Annotated[str, typer.Argument(help="Base URL of one pod: http://127.0.0.1:8000.")],
    model: Annotated[
        str | None, typer.Option(help="Model to ask for; default: the pod's first.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the profile here (YAML).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted over measured: .svg, .png or .pdf.")
    ] = None,
    points: Annotated[int, typer.Option(help="How many prompts and batches to measure.")] = 64,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each is measured; more where there is noise.")
    ] = 5,
    most_sequences: Annotated[
        int, typer.Option(min=1, max=1024, help="Largest batch to measure.")
    ] = 16,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="The pod's token budget of a step, where it does not say."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of lengths, order and words.")] = 0,
) -> None:
    """Fit the time model to a real pod, and say how well it predicts what it has not seen.

    For example:

      kvbench calibrate http://127.0.0.1:8000 --out my-gpu.yaml --plot my-gpu.svg

      kvbench pod --profile my-gpu.yaml

    The pod must be idle, and be started with --enable-prompt-tokens-details.

    Exit codes: 0 measured · 2 your input · 3 the pod failed · 4 too noisy to trust
    """
    import asyncio
    import secrets

    from rich.console import Console
    from rich.progress import Progress

    from kvbench.clock import WallClock
    from kvbench.engine.experiment import design
    from kvbench.stack.ask import Asker
    from kvbench.stack.calibrate import calibrate as measure
    from kvbench.stack.facts import look

    _check_paths(out, plot)
    console = Console(highlight=False)
    facts = look(url, model, most_sequences, max_num_batched_tokens)
    experiment = design(points, rounds, facts.bounds, seed)
    _tell_facts(console, facts)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("warming up", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, description="measuring")

        asker = Asker(facts.url, facts.model, secrets.token_hex(8), WallClock())
        result = asyncio.run(measure(facts, asker, experiment, seed, advance))
    _tell_result(console, result)
    if out is not None:
        _write(out, result, f"--points {points} --rounds {rounds} --seed {seed}")
        console.print(f"profile  {out}", style="bold", soft_wrap=True)
    if plot is not None:
        _draw(plot, result)
        console.print(f"plot     {plot}", style="bold", soft_wrap=True)
    if (problem := result.problem()) is not None:
        raise problem


def _check_paths(out: Path | None, plot: Path | None) -> None:
    """Refuse files that could not be written, before minutes are spent on measuring."""
    from kvbench.errors import InputError
    from kvbench.report.calibration import FORMATS

    if plot is not None and plot.suffix not in FORMATS:
        raise InputError(f"--plot: expected a file that ends in {', '.join(FORMATS)}, got {plot}")
    if out is not None and out.suffix not in {".yaml", ".yml"}:
        raise InputError(f"--out: expected a file that ends in .yaml, got {out}")
    for flag, path in (("--out", out), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{flag}: no such directory: {path.parent}")


def _tell_facts(console: Console, facts: Facts) -> None:
    """Print what will be measured, and what is assumed of it."""
    bounds = facts.bounds
    console.print(
        f"{facts.model} at {facts.url}: prompts of up to {bounds.longest:,} tokens, blocks of "
        f"{bounds.block_size}, {bounds.kv_tokens:,} tokens of KV cache, steps of up to "
        f"{facts.budget:,} tokens"
    )
    if not facts.budget_known:
        console.print(
            f"note: the pod does not say its --max-num-batched-tokens; {facts.budget} is assumed "
            "(pass yours)",
            style="yellow",
        )


def _tell_result(console: Console, result: Calibration) -> None:
    """Print the constants, and how well they predict."""
    from dataclasses import fields

    from kvbench.units import format_seconds, format_share

    fitted = result.fitted
    constants = {field.name: getattr(fitted.time, field.name) for field in fields(fitted.time)}
    constants |= {"request_s": fitted.request_s, "request_token_s": fitted.request_token_s}
    for name, seconds in constants.items():
        console.print(f"  {name:<17}{_constant(seconds)}")
    held_out = [turn for turn in result.turns if turn.held_out]
    shortest = min(turn.ttft_s for turn in result.turns)
    longest = max(turn.ttft_s for turn in result.turns)
    console.print(
        f"TTFT from {format_seconds(shortest)} to {format_seconds(longest)}; median absolute error "
        f"of the prediction: [bold]{format_share(result.error(held_out=True))}[/bold] of "
        f"{len(held_out)} held-out prompts ({format_share(result.error(held_out=False))} of the "
        f"{len(result.turns) - len(held_out)} that were fitted)"
    )


def _constant(seconds: float) -> str:
    """Return a constant for people; nanoseconds too."""
    from kvbench.units import format_seconds

    if seconds == 0:
        return "0 (not to be seen in these measurements)"
    return f"{seconds * 1e9:.3g} ns" if seconds < 1e-6 else format_seconds(seconds)


def _write(out: Path, result: Calibration, flags: str) -> None:
    """Write the profile, with what it was measured from."""
    from kvbench import __version__
    from kvbench.clock import utc
    from kvbench.engine.profile_file import profile_text
    from kvbench.errors import InputError
    from kvbench.stack.calibrate import profile_of

    measured = {
        "model": result.facts.model,
        "at": utc().strftime("%Y-%m-%dT%H:%M:%SZ"),
        "by": f"kvbench {__version__} calibrate {flags}",
        "longest_prompt": result.facts.bounds.longest,
        "max_num_batched_tokens": result.facts.budget,
        "scatter": round(result.scatter, 4),
        "held_out_prompts": sum(turn.held_out for turn in result.turns),
        "held_out_median_absolute_error": round(result.error(held_out=True), 4),
    }
    try:
        out.write_text(profile_text(profile_of(result, out.stem), measured), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(out)) from error


def _draw(plot: Path, result: Calibration) -> None:
    """Draw the picture."""
    from kvbench.report.calibration import draw
    from kvbench.units import format_share

    def pairs(*, held_out: bool) -> list[tuple[float, float]]:
        turns = (turn for turn in result.turns if turn.held_out == held_out)
        return [(turn.ttft_s, turn.predicted_s) for turn in turns]

    error = format_share(result.error(held_out=True))
    title = f"{result.facts.model}: median absolute error of held-out TTFTs {error}"
    draw(plot, title, pairs(held_out=False), pairs(held_out=True), result.gaps)
