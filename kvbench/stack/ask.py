"""One question to a server, timed: a streamed completion over a connection of its own.

The connection stands before the clock starts, so what is timed is from the request's last byte to
the arrival of each part of the answer. Prompts are token ids: nothing is tokenised, at either end.

This is for measuring one pod with few requests at a time. Load is `kvbench.load`'s business, in a
process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httptools

from kvbench.errors import TargetError
from kvbench.openai.stream import StreamFold
from kvbench.openai.wire import DecodeError, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.clock import Clock

_READ = 65536
_MOST_BODY = 64 * 2**20
TIMEOUT_SECONDS = 300.0


@dataclass(slots=True)
class Answer:
    """What came back.

    Attributes:
        sent: When the request had been written, seconds on the clock given.
        status: HTTP status.
        body_at: When the first byte of the body came; None before.
        body: The body where the status is not 200, at most a part of it.
        fold: The stream.
        complete: Whether the response has ended as it should.
    """

    sent: float
    status: int = 0
    body_at: float | None = None
    body: bytes = b""
    fold: StreamFold = field(default_factory=StreamFold)
    complete: bool = False

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token.

        A token that has no text yet (half a character) shows in no chunk's text, but its chunk is
        the first of the body: a completion's stream begins with its first token.
        """
        first = self.fold.first_token if self.fold.first_token is not None else self.body_at
        return None if first is None else first - self.sent

    @property
    def trouble(self) -> str | None:
        """What is wrong with it, None if nothing is."""
        if self.status != 200:
            try:
                said = parse(self.body).error_message
            except (DecodeError, UnicodeDecodeError):
                said = None
            return f"answered {self.status}: {said or self.body[:200].decode(errors='replace')}"
        if self.fold.error or self.fold.malformed:
            return f"answered with an error: {self.fold.error or self.fold.malformed}"
        return None if self.complete and self.fold.done else "cut its answer off"


class Asker:
    """Asks one server for completions.

    Args:
        url: Its base URL.
        model: The model to ask for.
        salt: Requests with the same salt share the server's cache, others do not.
        clock: What answers are timed with.
    """

    def __init__(self, url: str, model: str, salt: str, clock: Clock) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._url = url
        self._path = f"{parts.path.rstrip('/')}/v1/completions"
        self._authority = parts.netloc.rpartition("@")[2]
        self._model = model
        self._salt = salt
        self._clock = clock

    async def ask(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """Send a prompt of token ids; return its answer of exactly `max_tokens`.

        Raises:
            TargetError: There is no connection, no complete answer, or an error.
        """
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await self._exchange(self._request(prompt, max_tokens))
        except TimeoutError:
            raise TargetError(f"{self._url} did not answer in {TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise TargetError(
                f"{self._url} does not answer: {error.strerror or error}",
                hint="is it still running?",
            ) from None
        if answer.trouble is not None:
            raise TargetError(f"{self._url}{self._path} {answer.trouble}")
        return answer

    def _request(self, prompt: Sequence[int], max_tokens: int) -> bytes:
        """Return the bytes of a request."""
        body = json.dumps(
            {
                "model": self._model,
                "prompt": list(prompt),
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "cache_salt": self._salt,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        key = os.environ.get("OPENAI_API_KEY")
        secret = f"authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {self._authority}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{secret}connection: close\r\n\r\n"
        )
        return head.encode() + body

    async def _exchange(self, request: bytes) -> Answer:
        """Connect, send, and read to the end."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            writer.write(request)
            await writer.drain()
            receiver = _Receiver(Answer(sent=self._clock.now()))
            while not receiver.answer.complete and (data := await reader.read(_READ)):
                receiver.feed(self._clock.now(), data)
            return receiver.answer
        finally:
            writer.close()


class _Receiver:
    """Takes a response apart; httptools calls its `on_` methods."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._stamp = 0.0
        self._size = 0

    def feed(self, stamp: float, data: bytes) -> None:
        """Take what one read brought."""
        self._stamp = stamp
        self._size += len(data)
        if self._size > _MOST_BODY:
            raise TargetError(f"the server's answer is longer than {_MOST_BODY} bytes")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise TargetError(f"the server does not speak HTTP/1.1: {error}") from None

    def on_headers_complete(self) -> None:
        """Keep the status."""
        self.answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Fold a stream, keep anything else."""
        answer = self.answer
        if answer.body_at is None:
            answer.body_at = self._stamp
        if answer.status == 200:
            answer.fold.feed(self._stamp, data)
        else:
            answer.body = (answer.body + data)[:4096]

    def on_message_complete(self) -> None:
        """Note the end."""
        self.answer.complete = self.answer.status >= 200
