"""Numbers out of a file: lengths that were measured, time stamps that were logged.

A file has one number a line, or is a CSV with a header of which one column is taken. A time stamp
such as `2023-11-16 18:15:46.6805900` counts as its seconds since 1970. Blank lines are passed over.
"""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_NUMBERS = 1_000_000
_MOST_LINE = 1_000_000


def read_numbers(path: Path, column: str | None = None) -> tuple[float, ...]:
    """Return the numbers of a file, in its order.

    Args:
        path: The file.
        column: Name of the CSV's column; None: there is one number a line.

    Raises:
        InputError: The file cannot be read, has no such column, or something in it is no number.
    """
    numbers: list[float] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for line, text in _cells(file, path, column):
                number = parse_number(text)
                if number is None:
                    raise InputError(
                        f"expected a number or a time stamp, got {text[:40]!r}",
                        where=f"{path}:{line}",
                    )
                numbers.append(number)
                if len(numbers) > MOST_NUMBERS:
                    raise InputError(
                        f"expected at most {MOST_NUMBERS:,} numbers, got more", where=str(path)
                    )
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check the path"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a text file of numbers: {error}", where=str(path)) from error
    if not numbers:
        raise InputError("expected at least one number, got none", where=str(path))
    return tuple(numbers)


def parse_number(text: str) -> float | None:
    """Return a finite number, or the seconds since 1970 of a time stamp; None if it is neither.

    A time stamp without a zone is taken as UTC; digits beyond the microsecond are cut.
    """
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            return None
        number = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return number if math.isfinite(number) else None


def _cells(lines: Iterator[str], path: Path, column: str | None) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each cell."""
    if column is None:
        yield from ((n, line) for n, line in enumerate(lines, 1) if line.strip())
        return
    reader = csv.DictReader(lines)
    names = reader.fieldnames or []
    if column not in names:
        raise InputError(
            f"expected a column {column!r}, got {', '.join(names)[:200] or 'none'}",
            where=f"{path}:1",
        )
    for row in reader:
        yield reader.line_num, row[column] or ""
