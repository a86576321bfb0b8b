"""The bytes of a request: head and body, made before the turn is due.

Values that come from files (session names, run names) are percent-encoded before they enter a
header, so none of them can end a line. The key is part of the bytes and of nothing else: this
object has no repr that shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from kvbench.load.target import Target
    from kvbench.workload.plan import Api

_SAFE = "-._~:/ "


class RequestForm:
    """What all requests of a run have in common.

    Args:
        target: Where they go.
        api: Which endpoint they are posted to.
        key: Sent as `Authorization: Bearer …`, if any.
    """

    def __init__(self, target: Target, api: Api, key: str | None = None) -> None:
        self._host = f"Host: {target.authority}\r\n"
        self._key = "" if key is None else f"Authorization: Bearer {key}\r\n"
        self._head = (
            f"POST {target.endpoint(api)} HTTP/1.1\r\n{self._host}"
            "Accept: text/event-stream\r\nAccept-Encoding: identity\r\n"
            f"Content-Type: application/json\r\nUser-Agent: kvbench\r\n{self._key}"
        )
        self._models = f"GET {target.prefix}/models HTTP/1.1\r\n{self._host}{self._key}\r\n"

    def post(self, request_id: str, session: str, body: bytes) -> bytes:
        """Return the request that carries `body`; routers see the session in `x-session-id`."""
        own = (
            f"x-request-id: {quote(request_id, _SAFE)}\r\nx-session-id: {quote(session, _SAFE)}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return (self._head + own).encode("ascii") + body

    def models(self) -> bytes:
        """Return the request for the list of models."""
        return self._models.encode("ascii")
