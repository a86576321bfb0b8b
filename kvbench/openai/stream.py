"""A streamed answer, folded: bytes with their arrival times in, what we report out.

Definitions:

- A *token* has arrived when a chunk brings text, reasoning, a refusal or a part of a tool call that
  is not empty. A first chunk that only names the role is none, nor is a chunk with empty content
  (half of a character), nor the chunk with the finish reason, nor the one with the usage.
- The *first answer* is the first token that is not reasoning.
- How many tokens there were is said by `usage`, not by counting chunks: a chunk may bring several.
- A stream is *done* when it says `[DONE]`. One that ends without has been cut, whatever it said
  before. An error object inside a stream is an error, although the status was 200.

Nothing raises: what cannot be read is told in `malformed`, and the rest is still read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.openai.sse import EventReader, EventTooLargeError
from kvbench.openai.wire import DecodeError, parse

if TYPE_CHECKING:
    from kvbench.openai.sse import Event
    from kvbench.openai.wire import Choice, Chunk, Usage


class StreamFold:
    """Feed it what arrives; read it when the stream has ended, or in between.

    Attributes:
        first_token: When the first token of any kind had arrived, on the clock of the stamps.
        first_answer: When the first token that is not reasoning had arrived.
        last_token: When the last token had arrived.
        chunk_stamps: Arrival of each chunk that brought tokens.
        first_read_chunks: Chunks with tokens that arrived in the same read as the first; None
            before there is one.
        usage: The last usage that the server sent.
        finish_reason: Of the first choice.
        error: The server's sentence, where it sent an error in the stream.
        malformed: What was wrong with the first event that could not be read.
        done: Whether the stream said that it is done.
    """

    __slots__ = (
        "_answer", "_reader", "_reasoning", "chunk_stamps", "done", "error", "finish_reason",
        "first_answer", "first_read_chunks", "first_token", "last_token", "malformed", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first_token: float | None = None
        self.first_answer: float | None = None
        self.last_token: float | None = None
        self.chunk_stamps: list[float] = []
        self.first_read_chunks: int | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.malformed: str | None = None
        self.done = False
        self._reader: EventReader | None = EventReader()
        self._answer: list[str] = []
        self._reasoning: list[str] = []

    @property
    def text(self) -> str:
        """The first choice's answer so far, without its reasoning."""
        return "".join(self._answer)

    @property
    def reasoning(self) -> str:
        """The first choice's reasoning so far."""
        return "".join(self._reasoning)

    def feed(self, stamp: float, data: bytes) -> None:
        """Take what one read brought, or a part of it.

        Args:
            stamp: When it arrived, seconds; equal for parts of the same read.
            data: Bytes of the body, without HTTP's own framing.
        """
        if self._reader is None:
            return
        try:
            events = self._reader.feed(data)
        except EventTooLargeError as error:
            self._reader = None
            self.malformed = self.malformed or str(error)
            return
        for event in events:
            if not self.done:
                self._event(stamp, event)

    def _event(self, stamp: float, event: Event) -> None:
        """Take one event."""
        payload = event.data.strip()
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            chunk = parse(payload)
        except (DecodeError, UnicodeDecodeError) as error:
            if event.name == b"error":
                self.error = self.error or payload.decode(errors="replace")
            else:
                self.malformed = self.malformed or f"event {payload[:80]!r}: {error}"
            return
        message = chunk.error_message
        if message is None and event.name == b"error":
            message = payload.decode(errors="replace")
        if message is not None:
            self.error = self.error or message
            return
        self._chunk(stamp, chunk)

    def _chunk(self, stamp: float, chunk: Chunk) -> None:
        """Take one chunk."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        has_token = has_answer = False
        for choice in chunk.choices or ():
            answers, thinks = self._choice(choice)
            has_answer |= answers
            has_token |= answers or thinks
        if not has_token:
            return
        if self.first_token is None:
            self.first_token = stamp
            self.first_read_chunks = 0
        if has_answer and self.first_answer is None:
            self.first_answer = stamp
        if stamp == self.first_token and self.first_read_chunks is not None:
            self.first_read_chunks += 1
        self.last_token = stamp
        self.chunk_stamps.append(stamp)

    def _choice(self, choice: Choice) -> tuple[bool, bool]:
        """Take one choice; return whether it brought a part of an answer, and of reasoning."""
        piece = choice.piece
        thought = piece.thought
        if choice.index == 0:
            if piece.content:
                self._answer.append(piece.content)
            if thought:
                self._reasoning.append(thought)
            self.finish_reason = choice.finish_reason or self.finish_reason
        return piece.answers, bool(thought)
