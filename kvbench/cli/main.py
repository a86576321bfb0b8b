"""The `kvbench` command: collects the verbs, and turns errors into sentences and exit codes."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand

from kvbench import __version__
from kvbench.cli.baseline import baseline
from kvbench.cli.calibrate import calibrate
from kvbench.cli.compare import compare
from kvbench.cli.dashboards import dashboards
from kvbench.cli.demo import demo
from kvbench.cli.doctor import doctor
from kvbench.cli.explain import explain
from kvbench.cli.exporter import exporter
from kvbench.cli.gate import gate
from kvbench.cli.generate import generate
from kvbench.cli.import_ import import_
from kvbench.cli.ladder import ladder
from kvbench.cli.plan import plan
from kvbench.cli.pod import pod
from kvbench.cli.report import report
from kvbench.cli.router import router
from kvbench.cli.run import run
from kvbench.cli.simulate import simulate
from kvbench.cli.size import size
from kvbench.cli.up import up
from kvbench.errors import KvbenchError

if TYPE_CHECKING:
    from types import FrameType

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


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

_MEASURE, _JUDGE, _WITHOUT, _PARTS = "Measure", "Judge", "Without a pod", "Parts of a stack"
VERBS = (
    ("demo", demo, _MEASURE),
    ("run", run, _MEASURE),
    ("compare", compare, _MEASURE),
    ("ladder", ladder, _MEASURE),
    ("calibrate", calibrate, _MEASURE),
    ("report", report, _JUDGE),
    ("explain", explain, _JUDGE),
    ("gate", gate, _JUDGE),
    ("baseline", baseline, _JUDGE),
    ("doctor", doctor, _JUDGE),
    ("plan", plan, _WITHOUT),
    ("import", import_, _WITHOUT),
    ("simulate", simulate, _WITHOUT),
    ("size", size, _WITHOUT),
    ("up", up, _PARTS),
    ("generate", generate, _PARTS),
    ("dashboards", dashboards, _PARTS),
    ("pod", pod, _PARTS),
    ("router", router, _PARTS),
    ("exporter", exporter, _PARTS),
)


class _Verb(TyperCommand):
    """A verb whose help lists its options: a table of them cuts long names short."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "rich_markup_mode": None})


for _name, _verb, _panel in VERBS:
    app.command(_name, cls=_Verb, rich_help_panel=_panel)(_verb)


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Hold the options that stand before the verb."""


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Treat SIGTERM as Ctrl-C: unwind, so that children are ended and rows are kept."""
    raise KeyboardInterrupt


def _harmless(text: str) -> str:
    """Escape what a terminal would obey: a message may hold what a file or a server said."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text.rstrip())


def main() -> None:
    """Run the command line; print an error as one sentence and its hint, and exit with its code."""
    signal.signal(signal.SIGTERM, _terminate)
    # A shell starts background commands with SIGINT ignored; whoever sends one means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except KvbenchError as error:
        print(f"kvbench: {_harmless(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {_harmless(error.hint)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # Whoever read our output has seen enough (`kvbench plan … | head`): no bug of ours, which
        # is what typer's exit code 1 would say.
        sys.exit(0 if isinstance(end.__context__, BrokenPipeError) else end.code)


if __name__ == "__main__":
    main()
