"""What the router itself answers: errors in OpenAI's form, as vLLM writes them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from kvbench.router.bodies import CODINGS

if TYPE_CHECKING:
    from kvbench.http.server import Exchange, Header

_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.UNAUTHORIZED: "AuthenticationError",
    HTTPStatus.FORBIDDEN: "PermissionDeniedError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedError",
    HTTPStatus.REQUEST_TIMEOUT: "RequestTimeoutError",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestEntityTooLargeError",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UnsupportedMediaTypeError",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "RequestHeaderFieldsTooLargeError",
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalServerError",
    HTTPStatus.BAD_GATEWAY: "BadGatewayError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
    HTTPStatus.GATEWAY_TIMEOUT: "GatewayTimeoutError",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "HttpVersionNotSupportedError",
    HTTPStatus.LOOP_DETECTED: "LoopDetectedError",
}
ENDING = "The router is ending; ask again, and another will answer."
"""To whom it will not answer any more."""

_FOR_NOW = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def error_body(status: HTTPStatus, message: str, param: str | None = None) -> bytes:
    """Return the JSON of an error; `param` is the field of the request that is to blame."""
    error = {"message": message, "type": _TYPES[status], "param": param, "code": status.value}
    return msgspec.json.encode({"error": error})


def worded(status: int, message: str) -> tuple[bytes, str]:
    """Return body and content type of an error for what is refused before it is a request."""
    return error_body(HTTPStatus(status), message), "application/json"


def refuse(
    exchange: Exchange,
    status: HTTPStatus,
    message: str,
    param: str | None = None,
    retry_after_s: int = 1,
) -> None:
    """Answer with an error; a refusal for now says when to ask again."""
    headers: list[Header] = []
    if status in _FOR_NOW:
        headers.append((b"retry-after", b"%d" % retry_after_s))
    elif status is HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    elif status is HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        headers.append((b"accept-encoding", CODINGS))
    exchange.respond(status, error_body(status, message, param), headers=headers)


def answer_json(exchange: Exchange, document: object, status: int = 200) -> None:
    """Answer with a JSON document."""
    exchange.respond(status, msgspec.json.encode(document))
