"""A child process that cannot outlive its parent, and that says when it is ready.

Rules:

- A child gets a pipe as standard input and ends when it reads end-of-file from it, so even a parent
  that is killed without a chance to clean up leaves nothing running.
- A child that serves prints one line, `ready URL`, on its standard output: nobody polls a port, and
  a port is never chosen before it is bound.
- A child is in a session of its own: Ctrl-C in the terminal reaches the parent alone, which ends
  its children in the right order.
- What a child logs goes to a file; when it fails, its last lines are part of the error.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvbench.errors import InputError, KvbenchError, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

GRACE_SECONDS = 10.0
"""How long a child may take to end after it was asked to."""


def kvbench_command(*arguments: str) -> list[str]:
    """Return the command line of a kvbench verb, run by this same Python."""
    return [sys.executable, "-m", "kvbench.cli.main", *arguments]


class Child:
    """A running child process.

    Args:
        name: What people call it: "pod 2", "router".
        command: Its command line.
        log: File that gets its standard error (and its output, after the ready line).
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
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            line = stdout.readline().decode() if selector.select(timeout) else ""
        word, _, url = line.strip().partition(" ")
        if word != "ready":
            code = self.wait(0.5 if line == "" else 0)
            what = f"was not ready after {timeout:g} s" if code is None else f"ended with {code}"
            blame = InputError if code == InputError.exit_code else TargetError
            raise blame(f"{self.name} {what}{self.tail()}", hint=f"its log: {self.log}")
        self.url = url
        return url

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
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
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
