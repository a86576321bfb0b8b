"""Rows on disk: one JSON line per turn, each handed to the kernel in one write.

- `append` returns when the kernel has the whole line, so a process killed at any moment loses at
  most the row that it was writing. (A machine that loses power may lose more: no fsync per row.)
- The file is opened for appending: several processes may write to one file without mixing lines.
- A line that was cut by a crash or a full disk is closed with a line break before the next row
  goes out, so that it costs one row and never two.
- A disk that takes no more rows is the operator's, not the target's: `InputError`, exit code 2.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

import msgspec

from kvbench.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from kvbench.records.schema import TurnRecord

_ENCODER = msgspec.json.Encoder()


class RowWriter:
    """Appends rows to one file; not shared between threads.

    Args:
        path: The file, such as `RunFolder.rows_path(worker)`; created if it is not there.

    Raises:
        InputError: The file cannot be opened for appending.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._torn = _ends_inside_a_line(self._fd)
        except OSError as error:
            raise self._failure(error) from error

    def append(self, record: TurnRecord) -> None:
        """Write one row.

        Raises:
            InputError: The disk is full or broken. Rows written before are safe, and a later
                `append` may be tried again.
        """
        line = _ENCODER.encode(record) + b"\n"
        rest = memoryview(b"\n" + line if self._torn else line)
        try:
            while rest:
                self._torn = True  # until the last byte of the line is out
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise self._failure(error) from error
        self._torn = False
        self._rows += 1

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _failure(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write rows: {error.strerror or error}",
            where=str(self._path),
            hint=f"{self._rows} rows of this writer are safe in the file; free space there, or "
            "run again with a run folder on another disk",
        )


def _ends_inside_a_line(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
