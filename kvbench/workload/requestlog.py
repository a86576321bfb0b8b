"""Reader of token-level request logs: a request a line, as token ids, in the order of sending.

    {"i": 0, "prompt_token_ids": [457, 447, …], "max_tokens": 12, "output_token_ids": [9, 31, …]}
    {"event": "reset_prefix_cache"}

What a log says of a request: `prompt_token_ids`; `max_tokens`, which may be left out where there is
an answer; optionally the answer, `output_token_ids`; `i`, its number (else its position); `at`,
seconds after the start; `session` and `group`. Further keys (what a server answered) are passed
over. A row with `event` is something that happened between the requests around it; the one event
that is known is a reset of the prefix cache. A file may be compressed with gzip.

The first row that breaks a rule ends the reading, with its line. Token ids go up to 2³¹ - 1:
beyond that stand the tokens of answers that the log does not know.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from kvbench.errors import InputError
from kvbench.workload.trace_lines import lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_TOKEN_ID = 2**31 - 1

_HINT = (
    'expected a request log: {"prompt_token_ids": [1, 2, …], "max_tokens": 8} or '
    '{"event": "reset_prefix_cache"} per line'
)

_TokenIds = list[Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKEN_ID)]]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class _Row(msgspec.Struct, kw_only=True):
    """One line as it stands there."""

    i: Annotated[int, msgspec.Meta(ge=0)] | None = None
    event: Literal["reset_prefix_cache"] | None = None
    prompt_token_ids: Annotated[_TokenIds, msgspec.Meta(min_length=1)] | None = None
    max_tokens: _Count | None = None
    output_token_ids: _TokenIds | None = None
    at: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    session: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log.

    Attributes:
        index: Its number: what the log says, else its position among the requests.
        line: Where it stands in the file, from 1.
        prompt: Token ids, at least one.
        max_tokens: Tokens that were generated, or, where no answer is known, asked for.
        output: Token ids of the answer, exactly `max_tokens`; None if the log has none.
        at: Seconds after the start; None if the log has no times.
        session: Conversation.
        group: Prefix group.
        reset_before: Whether the prefix cache was reset between the request before and this one.
    """

    index: int
    line: int
    prompt: array[int]
    max_tokens: int
    output: array[int] | None
    at: float | None
    session: str
    group: str
    reset_before: bool


@dataclass(frozen=True, slots=True)
class RequestLog:
    """A whole log: all requests have times, or none has."""

    name: str
    path: Path
    requests: tuple[LoggedRequest, ...]

    @property
    def timed(self) -> bool:
        """Whether it says when requests were sent."""
        return self.requests[0].at is not None


def read_log(path: Path, *, limit: int | None = None) -> RequestLog:
    """Read a request log, or its first `limit` requests.

    Raises:
        InputError: The file cannot be read, has no requests, or a row breaks a rule.
    """
    requests: list[LoggedRequest] = []
    seen: set[int] = set()
    reset = False
    for number, row in _rows(path):
        if row.event is not None:
            reset = True
            continue
        before = requests[-1] if requests else None
        request = _request(row, number, before, reset, f"{path}:{number}")
        if request.index in seen:
            raise _wrong(path, number, f"i: expected a number of its own, got {row.i} again")
        seen.add(request.index)
        requests.append(request)
        reset = False
        if len(requests) == limit:
            break
    if not requests:
        raise InputError("expected at least one request, got none", where=str(path), hint=_HINT)
    return RequestLog(path.name.split(".")[0], path, tuple(requests))


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """Yield the rows with their lines; each is an event or has a prompt."""
    decoder = msgspec.json.Decoder(_Row)
    for number, line in lines(path, _HINT):
        try:
            row = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _wrong(path, number, _said(str(error), line)) from None
        if row.event is None and row.prompt_token_ids is None:
            raise _wrong(path, number, "prompt_token_ids: missing")
        yield number, row


def _request(
    row: _Row, line: int, before: LoggedRequest | None, reset: bool, where: str
) -> LoggedRequest:
    """Return the request of a row.

    Raises:
        InputError: Its parts do not go together, or do not follow the request before it.
    """
    position = 0 if before is None else before.index + 1
    problem = _problem(row, before)
    if problem is not None:
        raise InputError(problem, where=where, hint=_HINT)
    output = row.output_token_ids
    index = position if row.i is None else row.i
    return LoggedRequest(
        index=index,
        line=line,
        prompt=array("I", row.prompt_token_ids or ()),
        max_tokens=(row.max_tokens or 0) if output is None else len(output),
        output=None if output is None else array("I", output),
        at=row.at,
        session=row.session or f"r{index}",
        group=row.group or "all",
        reset_before=reset,
    )


def _problem(row: _Row, before: LoggedRequest | None) -> str | None:
    """Return what is wrong with a request, or None."""
    output = row.output_token_ids
    if output is None and row.max_tokens is None:
        return "max_tokens: missing"
    if output is not None and not 1 <= len(output) <= (row.max_tokens or len(output)):
        most = row.max_tokens or "more"
        return f"output_token_ids: expected 1 to {most} tokens, got {len(output)}"
    if before is None:
        return None
    if (row.at is None) != (before.at is None):
        return "at: expected in every row or in none"
    if row.at is not None and before.at is not None and row.at < before.at:
        return f"at: expected at least {before.at:g} as in the row before, got {row.at:g}"
    return None


def _wrong(path: Path, line: int, problem: str) -> InputError:
    """Return the error of a line."""
    return InputError(problem, where=f"{path}:{line}", hint=_HINT)


def _said(message: str, line: bytes) -> str:
    """Return the decoder's message as "key: expected …, got …".

    The decoder says "Expected … - at `$.key[3]`", and for a number out of bounds not which.
    """
    text, at, key = message.replace("JSON", "the line").partition(" - at `$.")
    text = text[0].lower() + text[1:].replace("`", "")
    if not at:
        return text
    key = key.rstrip("`")
    if ", got " not in text:
        name, _, item = key.rstrip("]").partition("[")
        value = msgspec.json.decode(line)[name]
        text += f", got {value[int(item)] if item else value}"
    return f"{key}: {text}"
