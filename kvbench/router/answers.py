"""What the router itself answers: errors in OpenAI's form, as vLLM writes them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kvbench.http.server import Exchange

_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedError",
    HTTPStatus.BAD_GATEWAY: "BadGatewayError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
    HTTPStatus.GATEWAY_TIMEOUT: "GatewayTimeoutError",
}


def error_body(status: HTTPStatus, message: str) -> bytes:
    """Return the JSON of an error."""
    error = {"message": message, "type": _TYPES[status], "param": None, "code": status.value}
    return msgspec.json.encode({"error": error})


def refuse(exchange: Exchange, status: HTTPStatus, message: str) -> None:
    """Answer with an error."""
    retry = ((b"retry-after", b"1"),) if status is HTTPStatus.SERVICE_UNAVAILABLE else ()
    exchange.respond(status, error_body(status, message), headers=retry)


def answer_json(exchange: Exchange, document: object, status: int = 200) -> None:
    """Answer with a JSON document."""
    exchange.respond(status, msgspec.json.encode(document))
