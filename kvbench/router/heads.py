"""The two heads that a proxy rewrites: the request's on its way in, the answer's on its way out.

Heads repeat, but for lengths and dates; so what is made of a head is kept, and lengths stand apart.

Rules (RFC 9110 §7.6): headers that belong to one connection are not passed on, nor are those that
`connection` names. The request gets the pod's host, a `via` that tells whose hands it has been in,
so that one that comes back is known, and a length, for its body has been read in full. The answer's
status line and remaining headers stay as the pod wrote them, its framing too, for its body is
passed on as it is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import httptools
import msgspec

from kvbench.http.heads import LENGTH

if TYPE_CHECKING:
    from kvbench.http.address import Address
    from kvbench.http.heads import Head as RequestHead

_HOP_BY_HOP: Final = frozenset({
    b"te",  # codespell:ignore te
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"trailer",
    b"proxy-authorization", b"transfer-encoding", b"upgrade",
})  # fmt: skip
_REPLACED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_OURS: Final = b"x-kvbench-"
_ROUTER: Final = b"kvbench-"  # how the names of routers begin
_MOST_ROUTERS: Final = 3  # before this one
_WORDS: Final = re.compile(rb"[^,\s]+")
_BODILESS: Final = frozenset({204, 304})


class Head(msgspec.Struct, frozen=True, gc=False):
    """An answer's head, as the pod wrote it.

    Attributes:
        status: HTTP status.
        start: Its status line, as HTTP/1.1, and its header lines as written, each ended, but those
            of one connection, that which announces chunks, and a plain length.
        keep_alive: Whether the pod's connection can serve another request, if the end is certain.
        framed: Whether the end of the body can be told without the connection's end.
        chunked: Whether the body comes in chunks.
        has_body: Whether a body follows.
    """

    status: int
    start: bytes
    keep_alive: bool
    framed: bool
    chunked: bool
    has_body: bool


def request_head(head: RequestHead, address: Address, router: bytes) -> tuple[bytes, bytes]:
    """Return the head that `router` is to send to the pod at `address`, in two parts.

    Between the two belongs the line of the body's length, "content-length: 5", if it has one.
    """
    dropped = _REPLACED
    for name, value in head.headers:
        if name == b"connection":
            dropped |= _listed(value)
    lines = [
        b"\r\n%b: %b" % (name, value)
        for name, value in head.headers
        if name not in dropped and not name.startswith(_OURS)
    ]
    target = head.target
    if not target.startswith(b"/"):  # the form that a forward proxy is sent
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    first = b"%b %b%b HTTP/1.1\r\nhost: %b" % (
        head.method.encode("latin-1"),
        address.base.encode(),
        target,
        address.name.encode(),
    )
    via = b"\r\nvia: %b %b" % (b"1.0" if head.http_1_0 else b"1.1", router)
    return first, b"".join([*lines, via, b"\r\n\r\n"])


def goes_round(head: RequestHead, router: bytes) -> bool:
    """Return whether a request has been here, or in so many routers' hands that it must go round.

    Of many routers that have each other as pods, each would ask all others in every order.
    """
    words = [w for name, value in head.headers if name == b"via" for w in _WORDS.findall(value)]
    return router in words or sum(w.startswith(_ROUTER) for w in words) >= _MOST_ROUTERS


def length_line(method: str, size: int) -> bytes:
    """Return the line, begun and not ended, that says how long a request's body is."""
    return b"\r\ncontent-length: %d" % size if size or method in _WITH_BODY else b""


def split_length(head: bytes) -> tuple[bytes, int]:
    """Return an answer's head without its length, and the length; -1 if it has none."""
    found = LENGTH.search(head)
    if found is None:
        return head, -1
    first, last = found.span()
    return head[:first] + head[last - 2 :], int(found[1])


@lru_cache(256)
def parse_head(head: bytes, method: str, *, counted: bool) -> Head:
    """Return the parts of an answer's head.

    Args:
        head: With the empty line that ends it, without the length that was split off.
        method: Of the request that it answers.
        counted: Whether a length was split off.

    Raises:
        ValueError: It is not HTTP.
    """
    keep_alive = _accept(head[:-2] + b"content-length: 1\r\n\r\n" if counted else head)
    line, *rest = head[:-4].split(b"\r\n")
    status = int(line[9:12])
    if status < 200:  # interim answers have been passed over
        raise ValueError("no status")
    has_body = method != "HEAD" and status not in _BODILESS
    chunked, framed, dropped = False, counted or not has_body, _HOP_BY_HOP
    kept: list[tuple[bytes, bytes]] = []
    for raw in rest:
        name = raw[: raw.find(b":")].lower()
        if name == b"content-length":  # a second one, or one that is no number
            raise ValueError("a length that is not plain")
        if name == b"transfer-encoding":
            chunked = b"chunked" in raw.lower()
            framed = framed or chunked
        elif name == b"connection":
            dropped |= _listed(raw.partition(b":")[2])
        kept.append((name, raw))
    lines = [raw for name, raw in kept if name not in dropped and not name.startswith(_OURS)]
    return Head(
        status=status,
        start=b"\r\n".join([b"HTTP/1.1 " + line[9:], *lines, b""]),
        keep_alive=keep_alive and framed,
        framed=framed,
        chunked=chunked,
        has_body=has_body,
    )


def response_head(
    head: Head, length: int, ours: bytes, *, keep_alive: bool, dechunk: bool
) -> bytes:
    """Return the head to send to the client.

    Args:
        head: The pod's.
        length: What it said of the body's length; -1 if nothing.
        ours: Further header lines, each ended.
        keep_alive: Whether the client's connection may serve another request.
        dechunk: Whether the body is passed on without its chunks, to an HTTP/1.0 client.
    """
    framing = b""
    if length >= 0:
        framing = b"content-length: %d\r\n" % length
    elif head.chunked and not dechunk:
        framing = b"transfer-encoding: chunked\r\n"
    end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
    return b"%b%b%b%b" % (head.start, framing, ours, end)


def stay(head: Head, address: Address) -> Head:
    """Return the head of a redirection, so that it leads back here and not to the pod at `address`.

    A pod knows no address but its own: a path with a slash too many would send the client there,
    past keys and limits, if it can be reached at all.
    """
    place = re.escape(f"{address.name}{address.base}".encode())
    away = rb"(?im)^(location:[ \t]*)https?://" + place + rb"(?=/)"
    return msgspec.structs.replace(head, start=re.sub(away, rb"\1", head.start))


class _Verdict:
    """What the parser says of a head."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.keep_alive = False

    def on_headers_complete(self) -> None:
        """Ask the parser while it knows."""
        self.keep_alive = self.parser.should_keep_alive()


def _accept(head: bytes) -> bool:
    """Return whether the connection may serve another request.

    Raises:
        ValueError: The parser does not take it for HTTP.
    """
    verdict = _Verdict()
    try:
        verdict.parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise ValueError(error) from None
    return verdict.keep_alive


def _listed(value: bytes) -> frozenset[bytes]:
    """Return the header names that a `connection` header lists, in lower case."""
    return frozenset(name.strip().lower() for name in value.split(b","))
