"""A child process that cannot outlive its parent, and that says when it is ready.

Rules:

- A child gets a pipe as standard input and ends when it reads end-of-file from it, so even a parent
  that is killed without a chance to clean up leaves nothing running.
- A child that serves prints one line, `ready URL`, on its standard output: nobody polls a port, and
  a port is never chosen before it is bound.
- A child is in a session of its own: Ctrl-C in the terminal reaches the parent alone, which ends
  its children in the right order.
- What a child logs goes to a file, and so does what else it prints, for as long as it lives: one
  whose output nobody reads would wait for a reader once 64 KiB of it are in the pipe. When it
  fails, its last lines are part of the error.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, Self

from kvbench.errors import InputError, KvbenchError, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

GRACE_SECONDS = 10.0
"""How long a child may take to end after it was asked to."""

_LAST_WORDS_S = 2.0  # for what it has printed to be read; a child of its own may hold the pipe
_READY = b"ready "


def kvbench_command(*arguments: str) -> list[str]:
    """Return the command line of a kvbench verb, run by this same Python."""
    return [sys.executable, "-m", "kvbench.cli.main", *arguments]


class Child:
    """A running child process.

    Args:
        name: What people call it: "pod 2", "router".
        command: Its command line.
        log: File that gets its standard error, and its output but for the ready line.
        env: Added to this process's environment.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.url: str | None = None
        self._sent: set[signal.Signals] = set()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self._said: SimpleQueue[bytes] = SimpleQueue()  # the first line, b"" if there is none
        self._reader = threading.Thread(
            target=self._read, args=(log.open("ab", buffering=0),), name=name, daemon=True
        )
        self._reader.start()

    def _read(self, log: BinaryIO) -> None:
        """Hand on the first line; keep all others, and that one if it is not `ready`."""
        assert self._process.stdout is not None
        with self._process.stdout as output, log:
            first = output.readline()
            self._said.put(first)
            for line in output if first.startswith(_READY) else chain([first], output):
                with suppress(OSError):  # a full disk costs the log, not the child
                    log.write(line)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or None if it still runs after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def wait_ready(self, timeout: float) -> str:
        """Wait for the line `ready URL` and return the URL.

        Raises:
            InputError: It found fault with what it was given (exit code 2).
            TargetError: It ended otherwise, or said nothing in time; with the end of its log.
        """
        try:
            line = self._said.get(timeout=timeout)
        except Empty:
            line = b""
        if not line.startswith(_READY):
            code = self.wait(0.5 if line == b"" else 0)
            what = f"was not ready after {timeout:g} s" if code is None else f"ended with {code}"
            blame = InputError if code == InputError.exit_code else TargetError
            raise blame(f"{self.name} {what}{self.tail()}", hint=f"its log: {self.log}")
        self.url = line.removeprefix(_READY).strip().decode()
        return self.url

    def tail(self, lines: int = 5) -> str:
        """Return the last lines of its log, each on an indented line of its own."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "".join(f"\n    {line}" for line in text.strip().splitlines()[-lines:])

    def ask_to_stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, once, if it still runs: a second one would hurry it."""
        if self.poll() is None and how not in self._sent:
            self._sent.add(how)
            self._process.send_signal(how)

    def stop(self, grace: float = GRACE_SECONDS) -> int:
        """End it: politely, and after `grace` seconds for certain. Return its exit code."""
        self.ask_to_stop()
        if self.wait(grace) is None:
            self._process.kill()
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(_LAST_WORDS_S)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def check(children: Iterable[Child]) -> None:
    """Raise TargetError, with the end of its log, if one of them has ended by itself."""
    for child in children:
        code = child.poll()
        if code is not None:
            raise TargetError(
                f"{child.name} ended with {code}{child.tail()}", hint=f"its log: {child.log}"
            )


@contextmanager
def logs_folder(what: str) -> Iterator[Path]:
    """Give a new folder for the logs of `what`; it stays only where something failed.

    The error of a part that failed names its log.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"kvbench-{what}-"))
    try:
        yield folder
    except KvbenchError:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
