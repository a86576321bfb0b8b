"""Rows of a worker on another machine, brought to the master's run folder.

A worker writes its rows beside it in any case: they are safe there whatever becomes of the network.
Where its folder is not the master's (the master's mark is not in it), what was written is read back
and sent as parcels; the master puts each where the one before it ended. So the two files are equal,
or the run says that they are not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from kvbench.errors import InputError, InvalidMeasurementError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbench.records.run import RunFolder

MOST_BYTES = 1024 * 1024
"""Bytes of a parcel: Locust sends it as one message."""

MARK = ".master"
"""File in the master's folder by which a worker knows whether it sees the same one."""

_NAMES = re.compile(r"rows-\d{1,6}\.jsonl|load-\d{1,6}\.json", re.ASCII)


class Parcel(msgspec.Struct, frozen=True):
    """A piece of a file.

    Attributes:
        name: The file, inside the run folder.
        offset: Where in it the piece begins.
        data: The piece.
    """

    name: str
    offset: int
    data: bytes

    def encode(self) -> bytes:
        """Return it as bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Parcel:
        """Return what `encode` made bytes of."""
        return msgspec.msgpack.decode(data, type=cls)


class Shipper:
    """Reads what a worker writes.

    Args:
        folder: The worker's own.
        worker: Its number.
    """

    def __init__(self, folder: RunFolder, worker: int) -> None:
        self._rows = folder.rows_path(worker)
        self._testimony = folder.testimony_path(worker)
        self._offset = 0

    def rows(self) -> Iterator[Parcel]:
        """Yield the rows that were written since the last call."""
        while data := _read(self._rows, self._offset):
            yield Parcel(self._rows.name, self._offset, data)
            self._offset += len(data)

    def rest(self) -> Iterator[Parcel]:
        """Yield what is left once the worker has ended: rows, and its testimony."""
        yield from self.rows()
        if data := _read(self._testimony, 0):
            yield Parcel(self._testimony.name, 0, data)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        return b""


def receive(folder: RunFolder, parcel: Parcel) -> None:
    """Put a parcel into the master's folder.

    Raises:
        InvalidMeasurementError: One before it is missing, or it is none of ours.
        InputError: The disk does not take it.
    """
    if not _NAMES.fullmatch(parcel.name):
        raise InvalidMeasurementError(f"a load worker sent a file that is no rows: {parcel.name}")
    path = folder.path / parcel.name
    try:
        with path.open("ab") as file:
            if file.tell() != parcel.offset:
                raise InvalidMeasurementError(
                    f"rows of a load worker were lost on their way: {path.name} has {file.tell()} "
                    f"bytes where {parcel.offset} were expected"
                )
            file.write(parcel.data)
    except OSError as error:
        raise InputError(
            f"cannot write rows: {error.strerror or error}",
            where=str(path),
            hint="the load workers have them too; free space here, or choose another folder",
        ) from error
