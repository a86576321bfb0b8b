"""Who is to blame, and the exit code that says so.

Every error that a person may see is one of these. It carries a sentence that names the place and
the value, and a hint that names the way out; the CLI prints both and exits with the class's code,
so that a pipeline can tell a broken target from a broken workload from a measurement that must not
be trusted.

| code | class | meaning |
|---|---|---|
| 0 | | passed |
| 1 | any other exception | a bug of kvbench |
| 2 | `InputError` | your input |
| 3 | `TargetError` | the target could not be reached, or broke |
| 4 | `InvalidMeasurementError` | the measurement is not valid |
| 5 | `GateFailedError` | a gate failed |
"""

from __future__ import annotations


class KvbenchError(Exception):
    """An error with an owner: a sentence, a hint, and an exit code."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(KvbenchError):
    """The caller's input is wrong: a file, a flag, a value.

    Args:
        message: What is wrong with it: "sessions.turns: expected at least 1, got 0".
        where: File, or file and line: "workloads/chat.yaml:14". Stands before the message.
        hint: What to do about it.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)


class TargetError(KvbenchError):
    """The target cannot be reached, or broke while it was measured."""

    exit_code = 3


class InvalidMeasurementError(KvbenchError):
    """What was measured may not be judged: late generator, lost rows, warm pods."""

    exit_code = 4


class GateFailedError(KvbenchError):
    """The measurement is valid and misses its objective."""

    exit_code = 5
