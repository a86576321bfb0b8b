"""Reader of Mooncake traces: one request a line, with the ids of its blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}

`timestamp` is in milliseconds; a block has 512 tokens and the last one may be partial; ids are
global, and equal ids stand for equal tokens *and* equal tokens before them. A row holds its whole
prompt, so each row becomes a session of one turn. The prompts are made of segments `id/<n>`: what
two rows share in ids they share in tokens, and nothing else.

The first row that breaks a rule ends the reading, with its line.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from kvbench.errors import InputError
from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BLOCK = 512
"""Tokens per id."""

_MOST_LINE = 10_000_000  # bytes; the longest line of the public trace has 2 kB
_HINT = "expected a Mooncake trace: timestamp, input_length, output_length, hash_ids per line"


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace; further keys are passed over.

    Attributes:
        timestamp: Milliseconds.
        input_length: Tokens of the prompt.
        output_length: Tokens of the answer.
        hash_ids: One id for each block of 512 tokens, the last of which may be partial.
    """

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    output_length: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]


def read_rows(path: Path, *, limit: int | None = None) -> Iterator[TraceRow]:
    """Yield the rows of a trace, at most `limit`, checked.

    Raises:
        InputError: The file cannot be read, has no rows, or a row breaks a rule of the format.
    """
    decoder = msgspec.json.Decoder(TraceRow)
    before = 0.0
    count = 0
    for number, line in _lines(path):
        if count == limit:
            return
        try:
            row = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(_said(str(error)), where=f"{path}:{number}", hint=_HINT) from None
        if (problem := _problem(row, before)) is not None:
            raise InputError(problem, where=f"{path}:{number}", hint=_HINT)
        before = row.timestamp
        count += 1
        yield row
    if not count:
        raise InputError("expected at least one row, got none", where=str(path), hint=_HINT)


def read_plan(path: Path, *, seed: int = 0, limit: int | None = None) -> Plan:
    """Return the plan of a trace: each row due at its time after the first.

    Raises:
        InputError: As `read_rows`.
    """
    full: dict[int, Segment] = {}  # most blocks occur many times: one object for each
    turns = []
    first = 0.0
    for index, row in enumerate(read_rows(path, limit=limit)):
        first = row.timestamp if index == 0 else first
        segments = [
            full.get(i) or full.setdefault(i, Segment(f"id/{i}", BLOCK)) for i in row.hash_ids
        ]
        if part := row.input_length % BLOCK:
            segments[-1] = Segment(f"id/{row.hash_ids[-1]}", part)
        turns.append(
            PlannedTurn(
                index=index,
                session=f"r{index}",
                turn=1,
                group=f"id-{row.hash_ids[0]}",
                at=(row.timestamp - first) / 1000,
                think=0.0,
                messages=(Message("user", tuple(segments)),),
                max_tokens=row.output_length,
                answer_key=f"answer/{index}",
            )
        )
    return Plan(path.stem, seed, "completions", "planned", tuple(turns), ids_block_size=BLOCK)


@dataclass(slots=True)
class _Node:
    """A block in the tree of all prompts so far."""

    children: dict[int, _Node]


def ideal_hit_rate(rows: Iterable[TraceRow]) -> float:
    """Return the share of prompt tokens that an endless cache would hold, from the ids alone.

    A row hits the longest run of full blocks, from its beginning, that an earlier row began with
    too. Only full blocks count, and of n tokens at most floor((n - 1) / 512) blocks, since the
    last token is always computed. Weighted by tokens; 0 where there are no rows.
    """
    root = _Node({})
    hit = total = 0
    for row in rows:
        total += row.input_length
        usable = (row.input_length - 1) // BLOCK
        node, known = root, True
        for i, block in enumerate(itertools.islice(row.hash_ids, row.input_length // BLOCK)):
            child = node.children.get(block)
            known = known and child is not None
            if child is None:
                child = node.children[block] = _Node({})
            hit += BLOCK if known and i < usable else 0
            node = child
    return hit / total if total else 0.0


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the lines that are not blank."""
    try:
        with path.open("rb") as file:
            for number in itertools.count(1):
                line = file.readline(_MOST_LINE + 1)
                if not line:
                    return
                if len(line) > _MOST_LINE:
                    raise InputError(
                        f"expected at most {_MOST_LINE:,} bytes in a line, got more",
                        where=f"{path}:{number}",
                        hint=_HINT,
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check the path"
        ) from error


def _problem(row: TraceRow, before: float) -> str | None:
    """Return what is wrong with a row, or None."""
    expected = -(-row.input_length // BLOCK)
    if len(row.hash_ids) != expected:
        return (
            f"hash_ids: expected {expected} ids for {row.input_length} tokens in blocks of "
            f"{BLOCK}, got {len(row.hash_ids)}"
        )
    if row.timestamp < before:
        return (
            f"timestamp: expected at least {before:g} as in the row before, got {row.timestamp:g}"
        )
    return None


def _said(message: str) -> str:
    """Return the decoder's message with the key in front: it says "… - at `$.key`"."""
    text, at, key = message.partition(" - at `$.")
    text = text[0].lower() + text[1:]
    return f"{key.rstrip('`')}: {text}" if at else text
