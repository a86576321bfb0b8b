"""Which pod made which response: who continues one, or asks for it, must be sent there.

A server that keeps responses (`POST /v1/responses`, `previous_response_id`) keeps its own. Their
ids are read off answers as they begin: whole ones as streams name it in the first piece. The last
ten thousand are kept. Who is not known here is sent anywhere, and told there that it is not found.

A stream of a response begins before its first token: vLLM says that it has taken the request, and
what it was, as soon as it has. `Preamble` tells that from an answer, and an answer from an error:
where an engine fails after its server has begun a stream with 200, that is all there is in it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from http import HTTPStatus
from typing import Final

RESPONSES: Final = "/v1/responses"

_BEFORE: Final = (b"response.created", b"response.in_progress", b"response.queued")
_FAILED: Final = (b"event: error", b"event: response.failed")
_KIND: Final = 64  # bytes that tell what a line is
_ERROR: Final = re.compile(rb'data: ?\{\s*"error"\s*:\s*\{(?:.*"code"\s*:\s*([45]\d\d)\b)?')

_MOST: Final = 10_000
_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[0-9A-Za-z_-]{1,128})"')


class Responses:
    """The makers of the last responses.

    Args:
        most: How many are remembered.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._makers: OrderedDict[str, str] = OrderedDict()

    def read(self, piece: bytes, pod: str) -> None:
        """Take note of the response that an answer of `pod` begins with, if it names one."""
        found = _ID.search(piece)
        if found is not None:
            self._makers[found[1].decode("ascii")] = pod
            if len(self._makers) > self._most:
                self._makers.popitem(last=False)

    def maker(self, response: str) -> str | None:
        """Return the pod that made a response, None if that is not known."""
        return self._makers.get(response)


class Preamble:
    """What a stream says before its first token: comments, and that a response has begun.

    Args:
        stream: Whether the answer is a stream; else there is no such thing.

    Attributes:
        error: The status of the error that it has instead of a token; 0 if it has none.
    """

    __slots__ = ("_line", "_skips", "_stream", "error")

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._line = b""
        self._skips = False
        self.error = 0

    def over(self, pieces: tuple[bytes, ...]) -> bool:
        """Take the next pieces of the answer; return whether there is more in them than that."""
        if not self._stream:
            return True
        *lines, rest = (self._line + b"".join(pieces)).split(b"\n")
        self._line = rest[:_KIND]
        for line in lines:
            if line.startswith(b"event:"):
                self._skips = line[6:].strip() in _BEFORE
            if not self._skips and line.strip() and not line.startswith(b":"):
                self.error = self.error or _error(line)
                return True
        return False


def _error(line: bytes) -> int:
    """Return the status of the error that the first line of a stream tells; 0 if it tells none."""
    if line.startswith(_FAILED):
        return HTTPStatus.INTERNAL_SERVER_ERROR.value
    found = _ERROR.match(line)
    return 0 if found is None else int(found[1] or HTTPStatus.INTERNAL_SERVER_ERROR.value)


def asked_for(path: str) -> str:
    """Return the id of the response that a path is about, "" if it is about none."""
    first, _, rest = path.partition(RESPONSES + "/")
    return "" if first else rest.partition("/")[0]
