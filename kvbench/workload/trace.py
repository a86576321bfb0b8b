"""Traces of every format that is known, each turned into a plan by one function.

What the file is, is said or guessed from how it begins; every guess, and whatever a format leaves
open, is noted in the plan (`Plan.notes`). Readers stream: a file of any size needs the memory of
the turns that are taken from it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, get_args

from kvbench.errors import InputError
from kvbench.workload import tracelab
from kvbench.workload.aiperf_dag import draft_dag
from kvbench.workload.drafts import Draft, assemble
from kvbench.workload.formats import Format
from kvbench.workload.hash_rows import draft_hash_rows
from kvbench.workload.plan_file import read_plan_file
from kvbench.workload.reading import Reading, TraceOptions
from kvbench.workload.token_logs import AZURE, BURST_GPT, draft_token_log
from kvbench.workload.trace_lines import opened
from kvbench.workload.transcripts import draft_aiperf, draft_messages, draft_share_gpt
from kvbench.workload.weka import draft_weka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbench.workload.plan import Plan

FORMATS: tuple[str, ...] = get_args(Format)

_CHAT = {"sharegpt", "messages", "aiperf", "aiperf-dag"}
_BEGINNING = 65_536

_SIGNS: tuple[tuple[str, Format], ...] = (
    ('"kvbench"', "plan"),
    ('"parent_chat_id"', "bailian"),
    ('"hash_id_scope"', "weka"),
    ('"newly_append_tokens"', "tracelab-rounds"),
    ('"conversations"', "sharegpt"),
    ('"spawns"', "aiperf-dag"),
    ('"forks"', "aiperf-dag"),
    ('"turns"', "aiperf"),
    ('"hash_ids"', "mooncake"),
    ('"messages"', "messages"),
    ("round_idx,", "tracelab"),
    ("ContextTokens", "azure"),
    ("Request tokens", "burstgpt"),
    ("shared_prefix", "inference-perf"),
    ("--num-rounds", "production-stack"),
    ("--num-users", "production-stack"),
)
"""What a file contains near its beginning, and the format that it is then; the first that holds."""


def read_trace(
    path: Path,
    options: TraceOptions | None = None,
    *,
    seed: int | None = None,
    limit: int | None = None,
) -> Plan:
    """Return the plan of a trace.

    Args:
        path: The file, or a folder of files.
        options: What its format leaves open.
        seed: Root seed of words and arrivals; None: 0, or the plan file's.
        limit: Take only so many turns, the first ones of the file.

    Raises:
        InputError: It cannot be read, is of no known format, or breaks its format's rules.
    """
    options = options or TraceOptions()
    kind = options.format or guess_format(path)
    if kind == "plan":
        plan = read_plan_file(path, seed=seed, limit=limit)
    else:
        plan = _imported(path, options, kind, seed or 0, limit)
    if not plan.turns:
        raise InputError("expected at least one turn, got none", where=str(path))
    return plan


def _imported(
    path: Path, options: TraceOptions, kind: Format, seed: int, limit: int | None
) -> Plan:
    """Return the plan of a file that is no plan yet."""
    if kind in {"inference-perf", "production-stack"}:
        raise InputError(
            f"this is {kind}'s, which becomes a workload, not a plan",
            where=str(path),
            hint=f"kvbench import {path} -o workload.yaml, then use that",
        )
    reading = Reading(path, options, seed, limit)
    plan = assemble(
        islice(_drafts(reading, kind), limit),
        name=path.name.split(".")[0] or "trace",
        seed=seed,
        api="chat" if kind in _CHAT else "completions",
        history=options.history,
        ids_block_size=_ids_block_size(options, kind),
    )
    return replace(plan, notes=tuple(reading.notes))


def _drafts(reading: Reading, kind: Format) -> Iterator[Draft]:
    """Return the drafts of a trace, by its format."""
    if kind in {"mooncake", "bailian"}:
        return draft_hash_rows(reading, bailian=kind == "bailian")
    if kind in {"azure", "burstgpt"}:
        return draft_token_log(reading, AZURE if kind == "azure" else BURST_GPT)
    return {
        "weka": draft_weka,
        "tracelab": tracelab.draft_csv,
        "tracelab-rounds": tracelab.draft_rounds,
        "sharegpt": draft_share_gpt,
        "messages": draft_messages,
        "aiperf": draft_aiperf,
        "aiperf-dag": draft_dag,
    }[kind](reading)


def _ids_block_size(options: TraceOptions, kind: Format) -> int | None:
    """Return the tokens that a block id stands for, where all of a trace's ids are alike."""
    published = {"mooncake": 512, "bailian": 16}.get(kind)
    return published and (options.block_size or published)


def guess_format(path: Path) -> Format:
    """Return the format that a file seems to have.

    Raises:
        InputError: It has none that is known.
    """
    if path.is_dir():
        return "weka"
    with opened(path) as file:
        beginning = file.read(_BEGINNING).decode("utf-8", "replace")
    found = next((kind for sign, kind in _SIGNS if sign in beginning), None)
    if found is not None:
        return found
    if not beginning.strip():
        raise InputError("expected a trace, got an empty file", where=str(path))
    raise InputError(
        "expected a trace of a known format, got something else",
        where=str(path),
        hint=f"say which with `kvbench import FILE --format …`: {', '.join(FORMATS)}",
    )
