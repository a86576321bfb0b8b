"""From a file to a script: a workload, a trace or a request log, told apart by what is in it.

A file whose name ends in .yaml or .yml is a workload. A request log begins with a JSON object that
has `prompt_token_ids` or an `event`. Anything else is a trace if `kvbench.workload.trace` knows it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from kvbench.errors import InputError
from kvbench.oracle.script import from_log, from_plan
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.load import load_plan
from kvbench.workload.render import Renderer
from kvbench.workload.requestlog import read_log
from kvbench.workload.trace import guess_format
from kvbench.workload.trace_lines import lines

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.oracle.script import Script

Kind = Literal["workload", "trace", "log"]

_HINT = (
    "expected a workload (its name ends in .yaml), a trace, or a request log: "
    '{"prompt_token_ids": [1, 2], "max_tokens": 8} per line'
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read.

    Attributes:
        block_size: Tokens per block, for the ceiling.
        seed: Root seed; None is the workload's own.
        limit: Keep only so many requests, the first ones.
        speed: Play so many times faster.
        tokenizer: Whose chat template is laid around the messages; None is kvbench's own.
        prefill_only: Whether every answer is cut to one token, which fills no block.
    """

    block_size: int
    seed: int | None = None
    limit: int | None = None
    speed: float = 1.0
    tokenizer: Path | None = None
    prefill_only: bool = False


def load_script(path: Path, reading: Reading) -> Script:
    """Read a file.

    Raises:
        InputError: It is none of the three, or something in it is wrong.
    """
    kind = kind_of(path)
    if kind == "log":
        log = read_log(path, limit=reading.limit)
        return from_log(
            log, reading.block_size, speed=reading.speed, prefill_only=reading.prefill_only
        )
    workload, trace = (path, None) if kind == "workload" else (None, path)
    plan = load_plan(workload, trace, seed=reading.seed, limit=reading.limit, speed=reading.speed)
    renderer = Renderer(plan, Tokenizer.load(reading.tokenizer)) if plan.api == "chat" else None

    def where(position: int) -> str:
        if plan.ids_block_size is None:
            return f"{path}: turn {position}"
        number, _ = next(itertools.islice(lines(path, _HINT), position, None))  # a row a request
        return f"{path}:{number}"

    return from_plan(
        plan, renderer, reading.block_size, where=where, prefill_only=reading.prefill_only
    )


def kind_of(path: Path) -> Kind:
    """Return what a file is.

    Raises:
        InputError: It cannot be read, or is none of what is known.
    """
    if path.suffix.lower() in {".yaml", ".yml"}:
        return "workload"
    if not path.is_dir() and _begins_a_log(path):
        return "log"
    try:
        guess_format(path)
    except InputError as error:
        raise InputError(error.message, hint=_HINT) from None
    return "trace"


def _begins_a_log(path: Path) -> bool:
    """Return whether the first line is a row of a request log."""
    _, line = next(lines(path, _HINT), (1, b""))
    try:
        row: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(row, dict) and bool({"prompt_token_ids", "event"} & row.keys())
