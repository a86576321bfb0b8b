"""The two heads that a proxy rewrites: the request's on its way in, the answer's on its way out.

Rules (RFC 9110 §7.6): headers that belong to one connection are not passed on, nor are those that
`connection` names. The request gets the pod's host, and a length, for its body has been read in
full. The answer's status line and remaining headers stay as the pod wrote them, its framing too,
for its body is passed on as it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kvbench.http.server import Request
    from kvbench.router.address import Address

_HOP_BY_HOP = frozenset({
    b"te",  # codespell:ignore te
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"trailer",
    b"proxy-authorization", b"transfer-encoding", b"upgrade",
})  # fmt: skip
_REPLACED = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_OURS = b"x-kvbench-"
_BODILESS = frozenset({204, 304})


class Head(msgspec.Struct, frozen=True, gc=False):
    """An answer's head, as the pod wrote it.

    Attributes:
        status: HTTP status.
        line: Its status line, as HTTP/1.1.
        lines: The header lines as written, each ended, but those of one connection and that which
            announces chunks.
        framed: Whether the end of the body can be told without the connection's end.
        chunked: Whether the body comes in chunks.
        has_body: Whether a body follows.
    """

    status: int
    line: bytes
    lines: bytes
    framed: bool
    chunked: bool
    has_body: bool


def request_head(request: Request, address: Address) -> bytes:
    """Return the head to send to the pod at `address` for `request`."""
    dropped = _REPLACED
    for name, value in request.headers:
        if name == b"connection":
            dropped |= _listed(value)
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in request.headers
        if name not in dropped and not name.startswith(_OURS)
    ]
    target = request.target
    if not target.startswith(b"/"):  # the form that a forward proxy is sent
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    length = b""
    if request.body or request.method in _WITH_BODY:
        length = b"content-length: %d\r\n" % len(request.body)
    return b"%b %b%b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (
        request.method.encode("latin-1"),
        address.base.encode(),
        target,
        address.name.encode(),
        length,
        b"".join(lines),
    )


@lru_cache(256)  # streams that begin within the same second have the same head
def parse_head(head: bytes, method: str) -> Head:
    """Return the parts of an answer's head, given without the empty line that ends it.

    The caller's HTTP parser has accepted it already.
    """
    line, *rest = head.split(b"\r\n")
    status = int(line[9:12])
    has_body = method != "HEAD" and status not in _BODILESS
    chunked, framed, dropped = False, not has_body, _HOP_BY_HOP
    kept: list[tuple[bytes, bytes]] = []
    for raw in rest:
        name = raw[: raw.find(b":")].lower()
        if name == b"content-length":
            framed = True
        elif name == b"transfer-encoding":
            chunked = b"chunked" in raw.lower()
            framed = framed or chunked
        elif name == b"connection":
            dropped |= _listed(raw.partition(b":")[2])
        kept.append((name, raw))
    lines = [raw for name, raw in kept if name not in dropped and not name.startswith(_OURS)]
    return Head(
        status=status,
        line=b"HTTP/1.1 " + line[9:],
        lines=b"\r\n".join([*lines, b""]),
        framed=framed,
        chunked=chunked,
        has_body=has_body,
    )


def response_head(head: Head, ours: bytes, *, keep_alive: bool, dechunk: bool) -> bytes:
    """Return the head to send to the client.

    Args:
        head: The pod's.
        ours: Further header lines, each ended.
        keep_alive: Whether the client's connection may serve another request.
        dechunk: Whether the body is passed on without its chunks, to an HTTP/1.0 client.
    """
    return b"%b\r\n%b%b%b%b\r\n" % (
        head.line,
        head.lines,
        b"transfer-encoding: chunked\r\n" if head.chunked and not dechunk else b"",
        ours,
        b"" if keep_alive else b"connection: close\r\n",
    )


def _listed(value: bytes) -> frozenset[bytes]:
    """Return the header names that a `connection` header lists, in lower case."""
    return frozenset(name.strip().lower() for name in value.split(b","))
