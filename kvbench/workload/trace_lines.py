"""Records of a trace file, one at a time: a file of any size needs the memory of one record.

Lines of JSON, or one JSON array whose items are the records (however they are broken into lines),
plain or compressed with gzip. Each record comes with the line on which it begins and is checked
against a type; the first that does not fit ends the reading with that line.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")

MOST_RECORD = 50_000_000
"""Bytes of one record; a prompt of a million tokens as text has about 5 MB."""

_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if need be.

    Raises:
        InputError: It cannot be read, or is broken.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as file:
                    yield io.BufferedReader(file)
            else:
                yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"cannot be decompressed: {error}", where=str(path), hint="is the download whole?"
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check the path"
        ) from error


def lines(path: Path, hint: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the lines that are not blank.

    Raises:
        InputError: As `opened`; or a line has more than `MOST_RECORD` bytes.
    """
    with opened(path) as file:
        for number in itertools.count(1):
            line = file.readline(MOST_RECORD + 1)
            if not line:
                return
            if len(line) > MOST_RECORD:
                raise InputError(
                    f"expected at most {MOST_RECORD:,} bytes in a line, got more",
                    where=f"{path}:{number}",
                    hint=hint,
                )
            if line.strip():
                yield number, line


def records(path: Path, kind: type[T], hint: str) -> Iterator[tuple[int, T]]:
    """Yield line and value of each record of a file.

    Args:
        path: Lines of JSON, or an array.
        kind: What a record is.
        hint: What the format is, for errors.

    Raises:
        InputError: The file cannot be read, has no records, or one does not fit.
    """
    array = first_byte(path) == b"["
    found = False
    for number, record in _items(path, kind, hint) if array else _rows(path, kind, hint):
        found = True
        yield number, record
    if not found:
        raise InputError("expected at least one row, got none", where=str(path), hint=hint)


def first_byte(path: Path) -> bytes:
    """Return the first byte of a file that is no space; empty for an empty file."""
    with opened(path) as file:
        while chunk := file.read(4096):
            if stripped := chunk.lstrip(b"\xef\xbb\xbf \t\r\n"):
                return stripped[:1]
    return b""


def table(path: Path, columns: tuple[str, ...], hint: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line and cells of each row of a CSV that has at least these columns.

    Raises:
        InputError: The file cannot be read, a column is missing, or there are no rows.
    """
    with opened(path) as file:
        try:
            reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
            missing = [name for name in columns if name not in (reader.fieldnames or [])]
            if missing:
                raise InputError(
                    f"expected a column {missing[0]!r}, got "
                    + (", ".join(reader.fieldnames or [])[:200] or "none"),
                    where=f"{path}:1",
                    hint=hint,
                )
            found = False
            for row in reader:
                found = True
                yield reader.line_num, {k: v or "" for k, v in row.items() if isinstance(k, str)}
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"not a CSV: {error}", where=str(path), hint=hint) from error
    if not found:
        raise InputError("expected at least one row, got none", where=str(path), hint=hint)


def said(message: str, record: object = None) -> str:
    """Return the decoder's message with the key in front: it says "… - at `$.key`".

    What a number must be it says without the number: that is looked up in the `record`, where the
    key leads to one.
    """
    text, at, key = message.partition(" - at `$")
    text = text if text.startswith("JSON") else text[0].lower() + text[1:]
    name = key.rstrip("`").removeprefix("[...]").removeprefix(".")
    if ", got" not in text:
        for part in name.split("."):
            record = record.get(part) if isinstance(record, dict) else None
        text += f", got {record}" if isinstance(record, int | float) else ""
    return f"{name}: {text}" if at and name else text


def _rows(path: Path, kind: type[T], hint: str) -> Iterator[tuple[int, T]]:
    """Yield the records of a file of JSON lines."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in lines(path, hint):
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            record = None
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                record = msgspec.json.decode(line)
            raise InputError(
                said(str(error), record), where=f"{path}:{number}", hint=hint
            ) from None


def _items(path: Path, kind: type[T], hint: str) -> Iterator[tuple[int, T]]:
    """Yield the items of one JSON array, read piece by piece."""
    for number, item in _parsed(path, hint):
        try:
            yield number, msgspec.convert(item, kind)
        except msgspec.MsgspecError as error:
            raise InputError(said(str(error), item), where=f"{path}:{number}", hint=hint) from None


def _parsed(path: Path, hint: str) -> Iterator[tuple[int, object]]:
    """Yield line and value of the items of one JSON array."""
    decoder = json.JSONDecoder()
    with opened(path) as file:
        text = io.TextIOWrapper(file, "utf-8-sig")
        try:
            buffer, place, number, step = text.read(_CHUNK), 0, 1, _CHUNK
            opened_array = False
            while True:
                start = _skip(buffer, place, "[" if not opened_array else ",")
                number += buffer.count("\n", place, start)
                opened_array = opened_array or "[" in buffer[place:start]
                place = start
                if buffer[place : place + 1] == "]":
                    return
                try:
                    item, end = decoder.raw_decode(buffer, place)
                except (json.JSONDecodeError, RecursionError) as error:
                    more = text.read(step)
                    if not more or len(buffer) - place > MOST_RECORD:
                        raise InputError(
                            f"not JSON: {error.args[0]}", where=f"{path}:{number}", hint=hint
                        ) from None
                    buffer, place, step = buffer[place:] + more, 0, 2 * step
                    continue
                yield number, item
                number += buffer.count("\n", place, end)
                place, step = end, _CHUNK
        except UnicodeDecodeError as error:
            raise InputError(f"expected UTF-8: {error}", where=str(path), hint=hint) from error


def _skip(buffer: str, place: int, mark: str) -> int:
    """Return the place behind spaces and at most one `mark`."""
    marks = 1
    while place < len(buffer) and (buffer[place].isspace() or (buffer[place] == mark and marks)):
        marks -= buffer[place] == mark
        place += 1
    return place
