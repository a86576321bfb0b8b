"""From a reply to a row: what became of a turn, in the words of the schema.

The order of blame, first match wins:

1. no answer at all: as the client says (`connect`, `timeout`, `cut`, `protocol`, `not_sent`);
2. a status of 400 or more: `http`; any other than 200: `protocol`;
3. no event stream by its content type: `protocol`; an error object in the stream: `server`;
4. events that are not what they should be: `protocol`;
5. the stream said that it is done: answered, whatever happened to the connection afterwards;
6. HTTP broke, or a limit was hit, in mid-stream: as the client says;
7. HTTP ended well and the stream did not: `cut`.

A turn that was on its way when the run was stopped is `cut`: it had been sent, and its answer has
no end. Everything that had not been sent is `not_sent`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from kvbench.text.degeneration import degeneration, refused_for_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.load.reply import Reply
    from kvbench.openai.stream import StreamFold
    from kvbench.openai.wire import Usage
    from kvbench.records.schema import ErrorKind, TurnRecord
    from kvbench.text.degeneration import Degeneration

STOPPED = "the run was stopped before the answer was complete"
"""The sentence in the row of a turn that was on its way when the run was stopped."""

_LEAST_ECHO = 64  # characters of an answer that is compared with its prompt

MAX_WAIT = 40
"""Characters of a `Retry-After` that are kept: a date has 29."""

MAX_MESSAGE = 300
"""Characters of a server's own words that are kept."""


def judge(reply: Reply, fold: StreamFold) -> tuple[ErrorKind, str] | None:
    """Return kind and sentence of what went wrong with a settled reply, or None."""
    if reply.status == 200:
        return _judge_stream(reply, fold)
    if reply.status is None:
        return reply.failure or ("cut", "no response")
    if reply.status >= 400:
        return "http", f"{reply.status}: {server_message(reply.body)}{_wait(reply)}"
    return "protocol", f"expected status 200, got {reply.status}"


def _wait(reply: Reply) -> str:
    """Return what a refusal says about when to come again; a turn is not sent twice all the same.

    A second try would hide that the first was refused, and come when the plan has other turns.
    """
    wait = reply.headers.get("retry-after", "")[:MAX_WAIT]
    return f" (retry after {wait}{' s' if wait.isdecimal() else ''})" if wait else ""


def _judge_stream(reply: Reply, fold: StreamFold) -> tuple[ErrorKind, str] | None:
    """Judge an answer with status 200."""
    kind = reply.headers.get("content-type", "text/event-stream")
    if not kind.lower().startswith("text/event-stream"):
        return "protocol", f"expected an event stream, got {kind[:80]}"
    if fold.error is not None:
        return "server", fold.error[:MAX_MESSAGE]
    if fold.malformed is not None:
        return "protocol", fold.malformed[:MAX_MESSAGE]
    if fold.done:
        return None
    return reply.failure or ("cut", "the stream ended without [DONE]")


def server_message(body: bytes) -> str:
    """Return the sentence in an error body of OpenAI's form, or else the body's beginning."""
    try:
        form = msgspec.json.decode(body)
    except msgspec.DecodeError:
        form = None
    if isinstance(form, dict):
        error = form.get("error", form)
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str):
            return message[:MAX_MESSAGE]
    return body.decode(errors="replace").strip()[:MAX_MESSAGE] or "(empty body)"


def sent(
    row: TurnRecord,
    reply: Reply,
    fold: StreamFold,
    *,
    start: float,
    pod: str,
    prompt: Callable[[], str] = str,
    window: int | None = None,
) -> TurnRecord:
    """Return the row of a turn that was handed to the client.

    Args:
        row: The row as it would be had the turn not been sent.
        reply: What came back, settled.
        fold: What it was folded into.
        start: Second 0 of the run, on the clock of the reply.
        pod: Who answered, unless the response names another.
        prompt: Returns the text of the prompt; asked for answers that may say it back.
        window: Tokens of the server's longest request, None if unknown.
    """

    def since_start(moment: float | None) -> float | None:
        return None if moment is None else round(moment - start, 7)

    error = judge(reply, fold)
    usage = fold.usage
    return msgspec.structs.replace(
        row,
        sent_s=since_start(reply.sent),
        headers_s=since_start(reply.headers_at),
        first_token_s=since_start(fold.first_token),
        first_answer_s=since_start(fold.first_answer),
        last_token_s=since_start(fold.last_token),
        end_s=since_start(reply.end),
        chunk_gaps_s=[round(after - before, 7) for before, after in pairwise(fold.chunk_stamps)],
        first_read_chunks=fold.first_read_chunks,
        status=reply.status,
        error=None if error is None else error[0],
        error_message=None if error is None else error[1],
        finish_reason=fold.finish_reason,
        degeneration=_degeneration(row, reply, fold, error, prompt),
        context_ratio=_context_ratio(usage, window),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        pod=reply.headers.get("x-kvbench-pod", pod if reply.status is not None else None),
        policy=reply.headers.get("x-kvbench-policy"),
        predicted_tokens=_integer(reply.headers.get("x-kvbench-predicted-tokens")),
    )


def _degeneration(
    row: TurnRecord,
    reply: Reply,
    fold: StreamFold,
    error: tuple[ErrorKind, str] | None,
    prompt: Callable[[], str],
) -> Degeneration | None:
    """Return what is wrong with an answer, as far as its text and its end show it."""
    if error is not None:
        return "overflow" if refused_for_length(reply.status, error[1]) else None
    text = fold.text or fold.reasoning
    if not text and fold.first_token is not None:
        return None  # a call of a tool
    return degeneration(
        text,
        prompt() if len(text) >= _LEAST_ECHO else "",
        finish_reason=fold.finish_reason,
        generated=None if fold.usage is None else fold.usage.completion_tokens,
        asked=row.max_tokens,
    )


def _context_ratio(usage: Usage | None, window: int | None) -> float | None:
    """Return the share of the window that prompt and answer took."""
    if usage is None or usage.prompt_tokens is None or not window:
        return None
    return round((usage.prompt_tokens + (usage.completion_tokens or 0)) / window, 5)


def _integer(text: str | None) -> int | None:
    """Return a header's number, or None where it is none."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
