"""Which pod made which response: who continues one, or asks for it, must be sent there.

A server that keeps responses (`POST /v1/responses`, `previous_response_id`) keeps its own. Their
ids are read off answers as they begin: whole ones as streams name it in the first piece. The last
ten thousand are kept. Who is not known here is sent anywhere, and told there that it is not found.

A stream of a response begins before its first token: vLLM says that it has taken the request, and
what it was, as soon as it has. `Preamble` tells that from an answer.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

RESPONSES: Final = "/v1/responses"

_BEFORE: Final = (b"response.created", b"response.in_progress", b"response.queued")
_KIND: Final = 64  # bytes that tell what a line is

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
    """

    __slots__ = ("_line", "_skips", "_stream")

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._line = b""
        self._skips = False

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
                return True
        return False


def asked_for(path: str) -> str:
    """Return the id of the response that a path is about, "" if it is about none."""
    first, _, rest = path.partition(RESPONSES + "/")
    return "" if first else rest.partition("/")[0]
