"""One request for text on its way: sequences in the engine, pieces on the wire.

A request is one sequence for each answer to each of its prompts. Tokens come from the driver when
they are due and go out as vLLM sends them; when the client leaves, or something here fails, all
sequences end at once and their blocks are free.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvbench.pod.face import Finished, Usage
from kvbench.pod.metrics import RequestTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.engine.values import EngineRequest, TokenOutput
    from kvbench.http.exchange import Exchange
    from kvbench.pod.answer import Answer, StopText
    from kvbench.pod.driver import Driver
    from kvbench.pod.face import AnyFace
    from kvbench.pod.faults import Trouble
    from kvbench.pod.metrics import PodMetrics
    from kvbench.pod.request import Ask

VARY = (b"vary", b"Origin")
STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), VARY)


class Surroundings(Protocol):
    """What a generation needs of its pod."""

    driver: Driver
    metrics: PodMetrics
    tells_cached: bool

    def created_tokens(self, prompt: int, cached: int) -> int:
        """Return how many of a prompt's tokens were newly cached."""
        ...


@dataclass(slots=True)
class Strand:
    """One answer in the making: a sequence of the engine, and what was said of it.

    Attributes:
        index: Its place among the request's answers.
        group: Its prompt's place among the request's prompts.
        request: As it goes into the engine.
        answer: What it says.
        stops: Watches for stop strings, if there are any.
        echo: Text that stands before it.
        mute: Whether nothing but that is said.
        before: Bytes before the text of most of its chunks.
        after: Bytes behind it.
        tokens: Tokens so far.
        ids: These.
        said: Their text, as far as it may be said.
        reason: Why it ended; None while it goes on.
        stop: What ended it.
        cached: Prompt tokens found in the cache.
    """

    index: int
    group: int
    request: EngineRequest
    answer: Answer
    stops: StopText | None
    echo: str
    mute: bool = False
    before: bytes = b""
    after: bytes = b""
    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    reason: str | None = None
    stop: str | int | None = None
    cached: int = 0


class Generation:
    """Answers one exchange.

    Args:
        ask: What was asked for.
        sequences: One for each answer, in order of index.
        exchange: Who asked.
        face: Encodes the answers.
        pod: Where it happens.
        trouble: What goes wrong.
        on_end: Called once, when it is over.
    """

    def __init__(
        self,
        ask: Ask,
        sequences: Sequence[Strand],
        exchange: Exchange,
        *,
        face: AnyFace,
        pod: Surroundings,
        trouble: Trouble,
        on_end: Callable[[Generation], None],
    ) -> None:
        self._ask = ask
        self._sequences = sequences
        self._exchange = exchange
        self._face = face
        self._pod = pod
        self._trouble = trouble
        self._on_end = on_end
        self._open = len(sequences)
        self._groups: dict[int, tuple[int, int]] = {}  # ended, longest
        self._sent = 0  # tokens, of all sequences
        self._first_cached: int | None = None
        self._held: list[bytes] | None = None  # what waits while the stream stalls
        self._stalled = False
        self._ended = False
        self._plain = not (ask.stop or ask.continuous_usage or ask.return_token_ids or ask.echo)
        troubled = trouble.cut_after is not None or trouble.stall_after is not None
        self._quick = ask.stream and self._plain and not troubled

    def begin(self, now: float) -> None:
        """Queue all sequences; a stream's head goes out at once.

        Raises:
            InputError: The engine refuses one; none is queued then.
        """
        self._exchange.on_close = self._abandon
        try:
            for sequence in self._sequences:
                self._submit(sequence, now)
        except Exception:
            self._abandon()
            raise
        if self._ask.stream:
            if self._plain:
                for sequence in self._sequences:
                    sequence.before, sequence.after = self._face.piece(sequence.index)
            self._exchange.start(200, STREAM_HEADERS, None)
            if self._face.opening:
                self._exchange.write(self._face.opening)

    def cut(self) -> None:
        """End everything in mid-answer."""
        self._abandon()
        self._exchange.abort()

    def _submit(self, sequence: Strand, now: float) -> None:
        """Queue one sequence."""
        request = sequence.request
        self._pod.driver.submit(request, partial(self._receive, sequence))
        times = RequestTimes(now, len(request.prompt_token_ids), request.max_tokens, now)
        self._pod.metrics.arrived(request.id, times)

    def _receive(self, sequence: Strand, output: TokenOutput, due: float) -> None:
        """Take a token of one sequence."""
        self._pod.metrics.token(output.request_id, due, output.cached_tokens)
        index = sequence.tokens
        if self._quick and index and output.finish_reason is None:  # nearly all tokens
            sequence.tokens = index + 1
            text = sequence.answer.text(index).encode()
            self._exchange.write(sequence.before + text + sequence.after)
            return
        sequence.cached = output.cached_tokens
        piece = self._say(sequence, output)
        if self._ask.stream:
            if self._first_cached is None:
                self._first_cached = output.cached_tokens
                self._roles()
            self._send_piece(sequence, piece)
        if sequence.reason is not None:
            self._end_sequence(sequence)
        self._go_wrong()

    def _say(self, sequence: Strand, output: TokenOutput) -> str:
        """Return what a token adds to what may be said, and note how it ends the answer."""
        token = output.token_ids[-1]
        index = sequence.tokens
        sequence.tokens += 1
        self._sent += 1
        sequence.reason = output.finish_reason
        stopped = output.finish_reason == "stop"
        if stopped and token in self._ask.stop_token_ids:
            sequence.stop = token
        piece = "" if stopped or sequence.mute else sequence.answer.text(index)
        if sequence.stops is not None:
            piece = sequence.stops.push(piece)
            if sequence.stops.matched is not None:
                sequence.reason, sequence.stop = "stop", sequence.stops.matched
                self._pod.driver.cancel(sequence.request.id)
            elif sequence.reason is not None:
                piece += sequence.stops.rest()
        if index == 0:
            piece = sequence.echo + piece
        if not self._ask.stream:
            sequence.said.append(piece)
        if self._ask.return_token_ids:
            sequence.ids.append(token)
        return piece

    def _roles(self) -> None:
        """Begin the answers of a chat's stream."""
        if not self._ask.chat:
            return
        for sequence in self._sequences:
            prompt = sequence.request.prompt_token_ids
            ids = list(prompt) if self._ask.return_token_ids else None
            usage = Usage(len(prompt), 0) if self._ask.continuous_usage else None
            self._write(self._face.role(sequence.index, ids, usage))

    def _send_piece(self, sequence: Strand, piece: str) -> None:
        """Send the chunk of a token."""
        if self._plain and sequence.reason is None:
            self._write(sequence.before + piece.encode() + sequence.after)
            return
        ask = self._ask
        prompt = sequence.request.prompt_token_ids
        tells_prompt = not ask.chat and sequence.tokens == 1 and (ask.return_token_ids or ask.echo)
        self._write(
            self._face.chunk(
                sequence.index,
                piece,
                reason=sequence.reason,
                stop=sequence.stop,
                token_ids=sequence.ids[-1:] if ask.return_token_ids else None,
                prompt_ids=list(prompt) if tells_prompt else None,
                usage=Usage(len(prompt), sequence.tokens) if ask.continuous_usage else None,
                last=sequence.reason is not None and not ask.include_usage,
            )
        )

    def _end_sequence(self, sequence: Strand) -> None:
        """Note the end of one sequence, and of the request with the last."""
        self._pod.metrics.finished(sequence.request.id, sequence.reason or "stop")
        self._open -= 1
        ended, longest = self._groups.get(sequence.group, (0, 0))
        ended, longest = ended + 1, max(longest, sequence.tokens)
        self._groups[sequence.group] = ended, longest
        if ended == self._ask.n:
            self._pod.metrics.answered(self._ask.n, longest)
        if self._open == 0:
            self._finish()

    def _finish(self) -> None:
        """Send what stands behind the last token."""
        if self._ask.stream and self._ask.include_usage:
            self._write(self._face.usage(self._usage()))
        if self._ask.stream and self._trouble.pins:
            return
        self._end()
        if self._ask.stream:
            self._write(self._face.done)
            if self._held is None:
                self._exchange.end()
            return
        body = self._face.whole([self._whole(item) for item in self._sequences], self._usage())
        self._exchange.respond(200, body, headers=(VARY,))

    def _whole(self, sequence: Strand) -> Finished:
        """Return one answer, complete."""
        tells = self._ask.return_token_ids
        return Finished(
            text="".join(sequence.said),
            reason=sequence.reason or "stop",
            stop=sequence.stop,
            token_ids=sequence.ids if tells else None,
            prompt_ids=list(sequence.request.prompt_token_ids) if tells else None,
        )

    def _usage(self) -> Usage:
        """Return the request's usage; vLLM tells of one prompt only what was cached."""
        first_answers = self._sequences[:: self._ask.n]
        prompt = sum(len(item.request.prompt_token_ids) for item in first_answers)
        last = self._sequences[-1]
        cached = last.cached
        if self._ask.stream and not self._ask.chat and self._first_cached is not None:
            cached = self._first_cached
        return Usage(
            prompt=prompt,
            completion=sum(item.tokens for item in self._sequences),
            cached=cached if self._pod.tells_cached or self._face.tells else None,
            created=self._pod.created_tokens(len(last.request.prompt_token_ids), cached),
        )

    def _write(self, data: bytes) -> None:
        """Send bytes, or keep them while the stream stalls."""
        if self._held is None:
            self._exchange.write(data)
        else:
            self._held.append(data)

    def _go_wrong(self) -> None:
        """Let happen what was ordered to go wrong after so many tokens."""
        trouble = self._trouble
        if trouble.cut_after is not None and self._sent >= trouble.cut_after and not self._ended:
            self.cut()
            return
        stalls = trouble.stall_after is not None and self._sent >= trouble.stall_after
        if stalls and not self._stalled and not self._ended:
            self._stalled = True
            self._held = []
            asyncio.get_running_loop().call_later(trouble.stall_s, self._resume)

    def _resume(self) -> None:
        """Send what was kept."""
        held, self._held = self._held or [], None
        for data in held:
            self._exchange.write(data)
        if self._ended:
            self._exchange.end()

    def _abandon(self) -> None:
        """End all sequences; nobody waits for them any more."""
        for sequence in self._sequences:
            self._pod.driver.cancel(sequence.request.id)
            self._pod.metrics.abandoned(sequence.request.id)
        self._end()

    def _end(self) -> None:
        """Note that it is over, once."""
        if not self._ended:
            self._ended = True
            self._on_end(self)
