"""The `kvbench` command: collects the verbs, and turns errors into sentences and exit codes."""

from __future__ import annotations

import sys

import typer

from kvbench import __version__
from kvbench.errors import KvbenchError

app = typer.Typer(
    name="kvbench",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Are my LLM requests landing where their KV cache is, and what does it cost when not?",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kvbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Hold the options that stand before the verb."""


def main() -> None:
    """Run the command line; print an error as one sentence and its hint, and exit with its code."""
    try:
        app()
    except KvbenchError as error:
        print(f"kvbench: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
