"""What came back for one request, and when.

A reply is filled while it streams and judged when it has ended. While it streams, nothing is
parsed but HTTP: parsing takes time, and time taken here makes other turns late. So the body lies
as it came, pieces with their arrival times, until somebody who has time folds it (`relieve`), or it
has ended (`settle`). A body that grows beyond `KEEP_BYTES` is folded as it comes: memory per stream
is bounded, whatever the server sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.openai.stream import StreamFold
    from kvbench.records.schema import ErrorKind

KEEP_BYTES = 256 * 1024
"""Bytes of a stream that are kept unparsed: about a thousand chunks as vLLM writes them."""

RELIEF_PIECES = 8
"""Pieces from which on folding them is worth the call."""

KEEP_BODY_BYTES = 64 * 1024
"""Bytes of a body that is no stream that are kept: error messages, lists of models."""


@dataclass(slots=True)
class Reply:
    """One answer, or what became of it. Times are the clock's, in seconds.

    Attributes:
        fold: Takes the body of an answer with status 200.
        sent: When the first byte of the request was handed to the kernel.
        headers_at: When the head of the response was complete.
        end: When it was over, one way or the other.
        status: HTTP status.
        headers: Of the response, names in lower case; the last of several wins.
        failure: Kind and sentence, where HTTP itself went wrong.
        keep_body: Whether the body is no stream whatever its status is.
        body: Beginning of a body that is no stream: of any answer whose status is not 200.
        begun: Whether a byte of the body has come. A pod may send the head long before it.
    """

    fold: StreamFold
    sent: float | None = None
    headers_at: float | None = None
    end: float | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    failure: tuple[ErrorKind, str] | None = None
    keep_body: bool = False
    body: bytes = b""
    begun: bool = False
    _pieces: list[tuple[float, bytes]] = field(default_factory=list)
    _size: int = 0

    def add(self, stamp: float, data: bytes) -> None:
        """Take a piece of the body, as one read brought it."""
        self.begun = True
        if self.status != 200 or self.keep_body:
            self.body = (self.body + data)[:KEEP_BODY_BYTES]
            return
        self._pieces.append((stamp, data))
        self._size += len(data)
        if self._size > KEEP_BYTES:
            self.settle()

    def relieve(self) -> bool:
        """Fold what has come so far, if that is worth it; return whether it was."""
        if len(self._pieces) < RELIEF_PIECES:
            return False
        self.settle()
        return True

    def settle(self) -> None:
        """Fold what has come so far, and let go of it."""
        for stamp, data in self._pieces:
            self.fold.feed(stamp, data)
        self._pieces.clear()
        self._size = 0
