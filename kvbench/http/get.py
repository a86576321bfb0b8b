"""One GET, over a connection of its own: for looking at servers that may do anything.

Whatever is at the other end, it takes at most `timeout_s` in all and `most` bytes: a server that
never answers, that answers a byte a second, or for ever, is a failure with a kind, and nobody else
waits for it.

Refuses redirects: whoever is asked answers.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import httptools

from kvbench.http.host import Host

FailureKind: TypeAlias = Literal["refused", "timeout", "http", "too_long", "nonsense"]
"""Nobody there; not in time; another status than 200; too many bytes; not HTTP/1.1."""

MOST_BYTES = 4 * 2**20
_READ = 2**16


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer.

    Attributes:
        kind: For counting.
        sentence: For people.
    """

    kind: FailureKind
    sentence: str


async def get(
    url: str, *, timeout_s: float, most: int = MOST_BYTES, key: str | None = None
) -> bytes | Failure:
    """Return the body of what is at an http(s) URL, or why there is none.

    Args:
        url: Where; no user name in it.
        timeout_s: Seconds for all of it.
        most: Bytes of head and body.
        key: Of an API, sent as OpenAI's is.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(url, timeout_s, most, key)
    except TimeoutError:
        return Failure("timeout", f"no answer in {timeout_s:g} s")
    except ConnectionRefusedError:
        return Failure("refused", "connection refused")
    except (OSError, ValueError) as error:  # UnicodeError, which strange host names raise, is one
        return Failure("refused", getattr(error, "strerror", None) or str(error))


async def _get(url: str, timeout_s: float, most: int, key: str | None) -> bytes | Failure:
    """Connect, ask, and read to the end."""
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    secret = f"authorization: Bearer {key}\r\n" if key else ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""

    async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = host if tls else None
        return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)

    reader, writer = await Host(host, port).reach(connect, timeout_s)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nhost: {parts.netloc}\r\naccept: text/plain, */*;q=0.5\r\n"
            f"{secret}connection: close\r\n\r\n".encode()
        )
        answer = _Answer()
        size = 0
        while not answer.complete and (data := await reader.read(_READ)):
            size += len(data)
            if size > most:
                return Failure("too_long", f"more than {most} bytes")
            answer.feed(data)
        return answer.result()
    finally:
        writer.close()


class _Answer:
    """Takes a response apart; httptools calls its `on_` methods."""

    def __init__(self) -> None:
        self.complete = False
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._broken = False
        self._framed = False
        self._status = 0

    def feed(self, data: bytes) -> None:
        """Take what one read brought."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._broken = self.complete = True

    def result(self) -> bytes | Failure:
        """Return what came, once nothing more will."""
        if self._broken or not self._status:
            return Failure("nonsense", "the answer is not HTTP/1.1")
        if self._status != 200:
            return Failure("http", f"answered {self._status}")
        if self._framed and not self.complete:
            return Failure("nonsense", "the answer broke off")
        return b"".join(self._pieces)

    def on_header(self, name: bytes, _value: bytes) -> None:
        """Note whether the body's end is marked; else it ends with the connection."""
        self._framed |= name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        """Keep the status."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Keep a piece."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Note the end."""
        self.complete = self._status >= 200
