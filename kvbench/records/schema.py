"""The row: everything that is known about one turn.

A `TurnRecord` holds when a turn should have been sent and when it was; what the server said was
cached and what the plan allowed. Everything else (reports, tables, gates) is a fold over rows.

Rules:

- Times are seconds from the run's start (the manifest has the calendar time). None: did not happen.
- Unknown is None, never 0. A server that does not report `cached_tokens` leaves it None.
- A turn that failed is a row like any other, with `error` set; it stays in every denominator, and
  in percentiles it counts as infinitely slow.
- Token counts come from the server's `usage`, not from counting chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, TypeAlias

import msgspec

from kvbench.text.degeneration import LEAST_WORDS, Degeneration

SCHEMA_VERSION = 1

ErrorKind = Literal[
    "connect",  # no connection could be made
    "timeout",  # no answer, or no further token, in time
    "http",  # an answer with a status of 4xx or 5xx; `status` has it
    "cut",  # the stream ended without its end
    "protocol",  # what came was not what the protocol says
    "server",  # an error object inside a stream that had begun with 200
    "not_sent",  # the run ended before its turn came
    "lost",  # the load worker that was to send it, or had sent it, is gone
]
"""Why a turn failed."""

OWN_FAULTS: frozenset[ErrorKind] = frozenset({"not_sent", "lost"})
"""Kinds that say nothing of the target: what there is to say is the generator's."""


Context: TypeAlias = Literal["0-25", "25-50", "50-75", "75-90", "90-100", "over", "unknown"]
CONTEXTS: tuple[Context, ...] = ("0-25", "25-50", "50-75", "75-90", "90-100", "over", "unknown")
"""Percent of the window that prompt and answer took; "over" was refused for its length."""

CONTEXT_BOUNDS = (0.25, 0.5, 0.75, 0.9)
"""Where one ends and the next begins, as shares; a bound belongs to what is below."""


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # it holds no cycles
    """One turn, as sent and as answered.

    Attributes:
        index: Position in the plan; unique in a run.
        session: Conversation.
        turn: Which turn of the conversation, from 1.
        group: Prefix group.
        worker: Which load worker sent it.
        intended_s: When it should have been sent.
        sent_s: When its first byte was handed to the kernel; None if it never was.
        headers_s: When the response head had arrived.
        first_token_s: When the first token of any kind had arrived.
        first_answer_s: When the first token that is not reasoning had arrived.
        last_token_s: When the last token had arrived.
        end_s: When the stream had ended, or failed.
        chunk_gaps_s: Seconds between the arrivals of successive content chunks.
        first_read_chunks: Content chunks in the read that brought the first token. More than
            one means that the client was late and `first_token_s` is an upper bound.
        status: HTTP status, None if there was none.
        error: None if answered in full; else why not.
        error_message: A sentence for people, None if answered.
        finish_reason: As the server gave it.
        degeneration: What is wrong with the answer, by `kvbench.text.degeneration`; None is nothing
            that was found.
        context_ratio: Prompt and answer over the server's window; None is unknown.
        planned_prompt_tokens: Prompt tokens by the plan and our tokenizer; None if it has none.
        dropped_tokens: Of the conversation, what the client left out to make the prompt fit; None
            is unknown.
        prompt_tokens: By `usage`.
        cached_tokens: By `usage.prompt_tokens_details`; None is unknown.
        completion_tokens: By `usage`.
        ceiling_tokens: What a pod with an endless cache would have had cached.
        max_tokens: Tokens asked for.
        pod: Which pod answered: the router's word for it, or the target itself.
        policy: Which policy chose the pod.
        predicted_tokens: Cached tokens that the router expected there.
        prediction_cause: Why that is not what was cached, in the words of
            `kvbench.policies.prediction`; "none" if it is, None where the router has not said.
            It is known only when a request has ended, so readers take it from the router's
            decisions (`kvbench.records.decisions`): row files of load workers do not have it.
        request_id: As sent in `x-request-id`.
    """

    index: int
    session: str
    turn: int
    group: str
    worker: int = 0
    intended_s: float
    sent_s: float | None = None
    headers_s: float | None = None
    first_token_s: float | None = None
    first_answer_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    chunk_gaps_s: list[float] = []
    first_read_chunks: int | None = None
    status: int | None = None
    error: ErrorKind | None = None
    error_message: str | None = None
    finish_reason: str | None = None
    degeneration: Degeneration | None = None
    context_ratio: float | None = None
    planned_prompt_tokens: int | None = None
    dropped_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ceiling_tokens: int | None = None
    max_tokens: int
    pod: str | None = None
    policy: str | None = None
    predicted_tokens: int | None = None
    prediction_cause: str | None = None
    request_id: str

    @property
    def ok(self) -> bool:
        """Whether the turn was answered in full."""
        return self.error is None

    @property
    def judged(self) -> bool:
        """Whether the answer was long enough to be judged, or is known to be no answer."""
        return self.degeneration is not None or (
            self.ok and (self.completion_tokens or 0) >= LEAST_WORDS
        )

    @property
    def context(self) -> Context:
        """How much of the window prompt and answer took."""
        if not self.ok and self.degeneration == "overflow":
            return "over"
        if self.context_ratio is None:
            return "unknown"
        return CONTEXTS[bisect_left(CONTEXT_BOUNDS, self.context_ratio)]

    @property
    def lateness_s(self) -> float | None:
        """Seconds between when it should have been sent and when it was."""
        return None if self.sent_s is None else self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from the actual send."""
        if self.first_token_s is None or self.sent_s is None:
            return None
        return self.first_token_s - self.sent_s

    @property
    def ttft_intended_s(self) -> float | None:
        """Time to first token, from when it should have been sent (no coordinated omission)."""
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for answers of fewer than two tokens."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        if self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.completion_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """From the actual send to the last token."""
        if self.last_token_s is None or self.sent_s is None:
            return None
        return self.last_token_s - self.sent_s
