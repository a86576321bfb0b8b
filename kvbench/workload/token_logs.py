"""Logs of token counts: Azure's and BurstGPT's CSV files.

    TIMESTAMP,ContextTokens,GeneratedTokens
    Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type

They say how long prompts were, and nothing of what they shared: every row becomes a session of one
turn with a prompt of its own, and the ceiling is 0. Where BurstGPT has a `Session ID`, the rows of
a session can be taken to continue each other, if asked to: `cumulative` (a prompt that is at least
as long as all before repeats it) or `delta` (every row adds to it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.workload.drafts import Draft
from kvbench.workload.number_file import parse_number
from kvbench.workload.plan import Message, Segment
from kvbench.workload.trace_lines import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.workload.reading import Reading

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST_GPT = ("Timestamp", "Request tokens", "Response tokens")


def draft_token_log(reading: Reading, columns: tuple[str, str, str]) -> Iterator[Draft]:
    """Yield the turns of a log with these columns: time in seconds, prompt, answer.

    Raises:
        InputError: It cannot be read, a column is missing, or a value is no number.
    """
    hint = f"expected the columns {', '.join(columns)}"
    semantics = reading.options.semantics
    reading.note("the log does not say what prompts share: every prompt is one of its own")
    said: dict[str, tuple[Segment, ...]] = {}
    first: float | None = None
    count = 0
    for line, row in table(reading.path, columns, hint):
        if not reading.up_to_limit(count):
            return
        where = f"{reading.path}:{line}"
        time, prompt, answer = (_number(row, name, where, hint) for name in columns)
        if prompt < 1 or answer < 1:  # a failed request, as BurstGPT logs it
            reading.note("rows without a prompt or an answer are left out")
            continue
        first = time if first is None else first
        name = row.get("Session ID", "")
        session = f"s{name}" if name and semantics else f"r{count}"
        new = Segment(f"user/{count}", round(prompt))
        key = f"answer/{count}"
        before = said.get(session, ())
        known = sum(segment.tokens for segment in before)
        if semantics == "delta":
            segments = (*before, new)
        elif known < round(prompt):
            new = Segment(new.key, round(prompt) - known)
            segments = (*before, new)
        else:
            segments = (new,)
        if name and semantics:
            said[session] = (*segments, Segment(key, round(answer)))
        yield Draft(
            session=session,
            messages=(Message("user", segments),),
            max_tokens=round(answer),
            answer_key=key,
            group=session if name and semantics else "all",
            at=max(time - first, 0.0),
        )
        count += 1


def _number(row: dict[str, str], name: str, where: str, hint: str) -> float:
    """Return a number of a row."""
    number = parse_number(row[name])
    if number is None or number < 0:
        raise InputError(
            f"{name}: expected a number or a time stamp, got {row[name][:40]!r}",
            where=where,
            hint=hint,
        )
    return number
