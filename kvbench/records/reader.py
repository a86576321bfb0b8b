"""Rows from disk, and what was wrong with them.

Whatever a crash has left is readable: a line that is not a whole row is skipped, of two rows with
the same index the first is kept, and both are *reported*, by count and first place, in a `Damage`
that travels with the rows. Rows come ordered by index, so it makes no difference how many workers
wrote them.

Why a prediction failed is known to the router alone, and only after the turn. So it is joined here,
by the request's id, from the decisions beside the rows: whoever reads rows finds it in them. Rows
without a decision, or all of them where there are none or they cannot be read, come without it.

Once a run has ended its rows may also be kept as Parquet, which reads ten times as fast; it is used
only while it is as complete as the files beside it. One that an older kvbench wrote lacks columns:
it is made anew from the row files, or, where they are gone, read with these columns unknown.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import InputError
from kvbench.records.decisions import read_causes
from kvbench.records.schema import TurnRecord
from kvbench.records.table import SCHEMA, join_tables, table_to_frame, to_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from kvbench.records.run import RunFolder

_DECODER = msgspec.json.Decoder(TurnRecord)
_FORM, _SIZE, _DAMAGE = b"kvbench.schema", b"kvbench.rows_bytes", b"kvbench.damage"
_DECIDED = b"kvbench.decisions_bytes"
_BATCH = 20_000  # rows decoded at a time: bounds the memory that objects take beside the columns


@dataclass(frozen=True, slots=True)
class Damage:
    """What was wrong with the rows of a run.

    Attributes:
        broken: Lines that are no whole row.
        first_broken: Where the first of them is, and what is wrong: "rows-0.jsonl:17: …".
        duplicates: Rows whose index had been seen before.
        first_duplicate: The smallest such index.
    """

    broken: int = 0
    first_broken: str | None = None
    duplicates: int = 0
    first_duplicate: int | None = None

    def sentences(self) -> list[str]:
        """Return the damage in words; empty where there is none."""
        said = []
        if self.broken:
            lines = "line was" if self.broken == 1 else "lines were"
            said.append(f"{self.broken} broken {lines} skipped, the first at {self.first_broken}")
        if self.duplicates:
            rows = "row was" if self.duplicates == 1 else "rows were"
            first = f"the first with index {self.first_duplicate}"
            said.append(f"{self.duplicates} duplicate {rows} skipped, {first}")
        return said


@dataclass(slots=True)
class _Lines:
    """The rows of all files, in order of file and line; counts what it has to skip.

    Each has the cause that the router found, if it found one.
    """

    folder: RunFolder
    broken: int = 0
    first_broken: str | None = None

    def __iter__(self) -> Iterator[TurnRecord]:
        causes = read_causes(self.folder.decisions_path)
        for row in self._rows():
            cause = causes.get(row.request_id)
            yield row if cause is None else msgspec.structs.replace(row, prediction_cause=cause)

    def _rows(self) -> Iterator[TurnRecord]:
        for path in self.folder.rows_paths():
            try:
                with path.open("rb") as file:
                    for number, line in enumerate(file, start=1):
                        try:
                            yield _DECODER.decode(line.rstrip())
                        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                            self.broken += 1
                            self.first_broken = (
                                self.first_broken or f"{path.name}:{number}: {error}"
                            )
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def read_rows(folder: RunFolder) -> tuple[list[TurnRecord], Damage]:
    """Return the rows of a run as records, ordered by index, and what was wrong with them.

    About 2 kB of memory a row: for large runs use `read_frame`.

    Raises:
        InputError: A row file cannot be read at all.
    """
    lines = _Lines(folder)
    rows = sorted(lines, key=lambda row: row.index)
    kept = [next(same) for _, same in itertools.groupby(rows, key=lambda row: row.index)]
    doubled = [late.index for early, late in itertools.pairwise(rows) if early.index == late.index]
    damage = Damage(lines.broken, lines.first_broken, len(doubled), doubled[0] if doubled else None)
    return kept, damage


def read_table(folder: RunFolder) -> tuple[pa.Table, Damage]:
    """Return the rows of a run as an Arrow table, ordered by index, and what was wrong with them.

    Raises:
        InputError: A row file cannot be read at all.
    """
    lines = _Lines(folder)
    rows = iter(lines)
    batches = iter(lambda: list(itertools.islice(rows, _BATCH)), [])
    table = join_tables(to_table(batch) for batch in batches)
    index = table["index"].to_numpy()
    repeated = np.diff(index, prepend=index[:1] - 1) == 0
    first = int(index[repeated][0]) if repeated.any() else None
    damage = Damage(lines.broken, lines.first_broken, int(repeated.sum()), first)
    return (table.filter(pa.array(~repeated)) if damage.duplicates else table), damage


def read_frame(folder: RunFolder) -> tuple[pd.DataFrame, Damage]:
    """Return the rows of a run as a frame, ordered by index, and what was wrong with them.

    From Parquet where it is there and complete, else from the row files.

    Raises:
        InputError: The rows cannot be read at all.
    """
    kept = _read_parquet(folder)
    table, damage = kept or read_table(folder)
    return table_to_frame(table), damage


def write_parquet(folder: RunFolder) -> Damage:
    """Write the rows of an ended run as Parquet beside the row files; return what was wrong.

    Raises:
        InputError: The rows cannot be read, or the disk does not take the file.
    """
    sizes = _sizes(folder)  # before reading: rows that come later make the file stale
    table, damage = read_table(folder)
    extra = {_DAMAGE: msgspec.json.encode(damage), **sizes}
    table = table.replace_schema_metadata({**table.schema.metadata, **extra})
    beside = folder.parquet_path.with_suffix(".tmp")
    try:
        pq.write_table(table, beside, compression="zstd")
        beside.replace(folder.parquet_path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            where=str(folder.parquet_path),
            hint="free space there; the row files are complete without it",
        ) from error
    return damage


def _read_parquet(folder: RunFolder) -> tuple[pa.Table, Damage] | None:
    """Return the Parquet file's rows; None where it is missing, or the row files know better."""
    if not folder.parquet_path.is_file():
        return None
    try:
        schema = pq.read_schema(folder.parquet_path)
        known = schema.metadata or {}
        fresh = {_FORM: SCHEMA.metadata[_FORM], **_sizes(folder)}.items() <= known.items()
        if folder.rows_paths() and not (fresh and schema.equals(SCHEMA)):
            return None
        table = _completed(pq.read_table(folder.parquet_path))
        return table, msgspec.json.decode(known[_DAMAGE], type=Damage)
    except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError):
        if folder.rows_paths():
            return None  # the row files are the truth
        raise InputError(
            "cannot be read, and there are no row files beside it", where=str(folder.parquet_path)
        ) from None


def _completed(table: pa.Table) -> pa.Table:
    """Return a table with the columns that it lacks because they came later, their values unknown.

    Raises:
        KeyError: It lacks a column that rows have always had.
        ArrowException: A column holds what it should not, or its form is another one.
    """
    if table.schema.equals(SCHEMA):
        return table
    if table.schema.metadata.get(_FORM) != SCHEMA.metadata[_FORM]:
        raise pa.ArrowInvalid("another form of rows")
    columns = [
        pa.nulls(len(table), field.type)
        if field.nullable and field.name not in table.column_names
        else table[field.name].cast(field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _sizes(folder: RunFolder) -> dict[bytes, bytes]:
    """Return the sizes of what rows are made from, as they are noted in the Parquet file."""
    sizes = {_SIZE: sum(path.stat().st_size for path in folder.rows_paths())}
    if folder.decisions_path.is_file():
        sizes[_DECIDED] = folder.decisions_path.stat().st_size
    return {key: str(size).encode() for key, size in sizes.items()}
