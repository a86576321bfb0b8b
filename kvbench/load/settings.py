"""What a run is asked to do: Locust's options, parsed once into a frozen value.

The options come as argparse gives them or as the web UI's form does, where an empty field is an
empty string and every value may be text. A value that does not fit is an `InputError` that names
the flag.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvbench.errors import InputError
from kvbench.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Isolation = Literal["salt", "none"]


@dataclass(frozen=True, slots=True)
class Option:
    """A flag, as the command line and the web UI show it."""

    flag: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    shown: bool = True

    @property
    def name(self) -> str:
        """Its name among parsed options."""
        return self.flag.removeprefix("--").replace("-", "_")


class Offered(tuple[str, ...]):
    """Choices that are offered in a form while any other value is taken as well."""

    __slots__ = ()

    def __contains__(self, _value: object) -> bool:
        return True


def workload_files(words: Sequence[str], root: Path = Path("workloads")) -> tuple[str, ...]:
    """Return the workload files that the web UI's form offers: none, the one given, all of `root`.

    Args:
        words: The command line.
        root: Where workload files lie.
    """
    given = [word.partition("=")[2] for word in words if word.startswith("--workload=")]
    given += [after for word, after in pairwise(words) if word == "--workload"]
    return tuple(dict.fromkeys(["", *given, *sorted(map(str, root.glob("*.yaml")))]))


OPTIONS = (
    Option("--workload", "", "Workload file to send (this or --trace)"),
    Option("--trace", "", "Trace or plan file to replay (this or --workload)"),
    Option("--limit", "", "Send only the first N turns, or rows of a trace"),
    Option("--speed", "1", "Replay a trace this many times faster than recorded"),
    Option("--seed", "", "Root seed; empty: the workload's own"),
    Option("--model", "", "Model to ask for; empty: the first that the target serves"),
    Option("--tokenizer", "", "Directory of the model's tokenizer; empty: kvbench's own"),
    Option("--run-dir", "", "Folder of this run; empty: a new one under runs/"),
    Option("--run-name", "", "Name of the run; empty: the workload's"),
    Option("--isolation", "salt", "Keep off the caches of earlier runs", ("salt", "none")),
    Option("--warm", "no", "Accept caches that hold this very plan already", ("no", "yes")),
    Option("--block-size", "16", "Tokens per KV block of the target, for the ceiling"),
    Option("--max-in-flight", "4096", "Turns that a worker has open at most; others are held back"),
    Option("--request-timeout", "10m", "Longest that one answer may take"),
    Option("--api-key-file", "", "File with the key; else OPENAI_API_KEY is used", shown=False),
    Option("--metrics-host", "127.0.0.1", "Address of --metrics-port", shown=False),
    Option("--metrics-port", "", "Serve the master's /metrics there; 0: a free port", shown=False),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A run, as asked for. Attributes are named as the flags are.

    Attributes:
        request_timeout: Seconds.
    """

    host: str
    workload: Path | None
    trace: Path | None
    limit: int | None
    speed: float
    seed: int | None
    model: str | None
    tokenizer: Path | None
    run_dir: Path | None
    run_name: str
    isolation: Isolation
    warm: bool
    block_size: int
    max_in_flight: int
    request_timeout: float
    api_key_file: Path | None

    @classmethod
    def parse(cls, host: str | None, options: Mapping[str, object]) -> Settings:
        """Take the options of Locust apart.

        Raises:
            InputError: A value does not fit its flag, or there is nothing to send.
        """
        given = _Given(options)
        workload, trace = given.path("workload"), given.path("trace")
        if (workload is None) == (trace is None):
            raise InputError(
                "expected one of --workload and --trace, got "
                + ("none" if workload is None else "both"),
                hint="try --workload workloads/demo.yaml",
            )
        if not host:
            raise InputError(
                "--host: expected the base URL of a pod or a router, got nothing",
                hint="`kvbench up` starts a stack and prints its URL",
            )
        source = workload or trace
        assert source is not None
        return cls(
            host=host,
            workload=workload,
            trace=trace,
            limit=given.integer("limit"),
            speed=given.positive("speed"),
            seed=given.integer("seed", least=0),
            model=given.text("model"),
            tokenizer=given.path("tokenizer"),
            run_dir=given.path("run_dir"),
            run_name=given.text("run_name") or source.stem,
            isolation="none" if given.text("isolation") == "none" else "salt",
            warm=given.text("warm") == "yes",
            block_size=given.integer("block_size") or 16,
            max_in_flight=given.integer("max_in_flight") or 4096,
            request_timeout=given.seconds("request_timeout"),
            api_key_file=given.path("api_key_file"),
        )

    @property
    def source(self) -> Path:
        """The workload or the trace: one of them is there."""
        source = self.workload or self.trace
        assert source is not None
        return source

    def key(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Return the key for the target, if there is one; it is never part of a message.

        Raises:
            InputError: The file cannot be read, or what is in it cannot be a key.
        """
        if self.api_key_file is None:
            key = environ.get("OPENAI_API_KEY", "").strip()
            where = "OPENAI_API_KEY"
        else:
            where = str(self.api_key_file)
            try:
                key = self.api_key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"cannot be read as a key: {error}", where=where) from None
        if not all("!" <= character <= "~" for character in key):
            raise InputError("expected a key of printable ASCII without spaces", where=where)
        return key or None


def metrics_address(options: Mapping[str, object]) -> tuple[str, int] | None:
    """Return where the master serves `/metrics`; None: nowhere of its own.

    Raises:
        InputError: The port is none.
    """
    given = _Given(options)
    port = given.integer("metrics_port", least=0)
    if port is None:
        return None
    if port > 65535:
        raise _unfit("metrics_port", "a port", str(port))
    return given.text("metrics_host") or "127.0.0.1", port


class _Given:
    """The options, with errors that name their flags."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = options

    def text(self, name: str) -> str | None:
        """Return an option without blanks around it; None if it is empty."""
        value = self._options.get(name)
        return None if value is None else str(value).strip() or None

    def path(self, name: str) -> Path | None:
        """Return a path."""
        text = self.text(name)
        return None if text is None else Path(text)

    def integer(self, name: str, least: int = 1) -> int | None:
        """Return a whole number."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise _unfit(name, f"a whole number of at least {least}", text)
        return int(text)

    def positive(self, name: str) -> float:
        """Return a number above zero; 1 if there is none."""
        text = self.text(name) or "1"
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise _unfit(name, "a number above zero", text)
        return value

    def seconds(self, name: str) -> float:
        """Return a duration."""
        text = self.text(name) or "10m"
        try:
            value = parse_seconds(text)
        except ValueError as error:
            raise InputError(f"{_flag(name)}: {error}") from None
        if value <= 0:
            raise _unfit(name, "a duration above zero", text)
        return value


def _flag(name: str) -> str:
    """Return the flag of an option."""
    return "--" + name.replace("_", "-")


def _unfit(name: str, expected: str, got: str) -> InputError:
    """Return the error for a value that does not fit."""
    return InputError(f"{_flag(name)}: expected {expected}, got {got!r}")
