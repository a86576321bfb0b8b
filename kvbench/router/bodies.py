"""Bodies that are not plain JSON: compressed ones, those in wider characters, and forms.

Some clients compress what is long (Claude Code by gzip, Codex by zstd), and no vLLM reads that. So
the router, which must read a prompt anyway, unpacks it and sends it on plain. What it would become
is bounded as what comes plain is, however small it is compressed. JSON in UTF-16 or UTF-32, which
vLLM reads, is sent on in UTF-8, and so is what has a byte-order mark. Uploads of sound name their
model in a form; its file is passed over, not read.

Refuses: codings applied twice, and any but `gzip`, `deflate` and `zstd`.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from codecs import BOM_UTF8
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from kvbench.http.heads import Head

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

CODINGS = b"gzip, deflate, zstd"

_PLAIN = frozenset({b"", b"identity"})
_BOUNDARY = re.compile(
    rb'(?i)^multipart/form-data\s*;.*\bboundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))'
)
_FIELD = re.compile(rb'(?i)content-disposition:\s*form-data\s*;[^\r\n]*?\bname="?([^";\r\n]*)')
_MOST_PART_HEAD = 4096
_MOST_VALUE = 1024


def as_utf8(body: bytes) -> bytes:
    """Return JSON in UTF-8, without a byte-order mark; what cannot be understood comes back as is.

    In UTF-16 and UTF-32 one of the first bytes is 0, or they are a mark; in UTF-8 none may be.
    """
    if body.startswith((b'{"', b"{\n", b"{ ")):  # nearly all
        return body
    coding = json.detect_encoding(body)
    if coding in {"utf-8", "utf-8-sig"}:
        return body.removeprefix(BOM_UTF8)
    try:
        return body.decode(coding).encode()
    except UnicodeError:
        return body


class CodingError(ValueError):
    """A compressed body cannot be had.

    Attributes:
        status: What to answer: 400, 413, or 415.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Member(Protocol):
    """What unpacks one member of a body."""

    @property
    def eof(self) -> bool:
        """Whether it has come to its end."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What stands behind it."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return so many bytes at most."""
        ...


def coding(head: Head) -> bytes:
    """Return how a request's body is compressed, in lower case; b"" if it is not."""
    named = head.named.get(b"content-encoding", b"").strip().lower()
    return b"" if named in _PLAIN else named


def uncoded(head: Head) -> Head:
    """Return the head of the same request with a plain body."""
    headers = [header for header in head.headers if header[0] != b"content-encoding"]
    return Head(
        head.method, head.target, headers, keep_alive=head.keep_alive, http_1_0=head.http_1_0
    )


def unpack(body: bytes, how: bytes, most: int) -> bytes:
    """Return a body unpacked. May take long: do it in a thread.

    Args:
        body: As it came.
        how: Its coding, in lower case.
        most: Bytes that it may become.

    Raises:
        CodingError: It is of another coding, damaged, or becomes larger.
    """
    way = _WAYS.get(how)
    if way is None:
        raise CodingError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content-encoding: expected {CODINGS.decode()} or none, "
            f"got {how[:40].decode('latin-1')}.",
        )
    try:
        plain = way(body, most + 1)
    except (zlib.error, zstd.ZstdError, EOFError) as error:
        sentence = f"The request body is not what content-encoding says: {error}."
        raise CodingError(HTTPStatus.BAD_REQUEST, sentence) from None
    if len(plain) > most:
        raise CodingError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Request body too large.")
    return plain


def form_field(kind: bytes, body: bytes, name: bytes) -> str:
    """Return the value of a field of a form; "" if it has none, or is none.

    Args:
        kind: The `content-type`.
        body: The form.
        name: The field's name.
    """
    found = _BOUNDARY.match(kind)
    if found is None:
        return ""
    mark = b"--" + (found[1] or found[2])
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    while at >= 2 or body.startswith(mark, at):
        end = body.find(b"\r\n\r\n", at, at + _MOST_PART_HEAD)
        after = body.find(b"\r\n" + mark, at + len(mark) if end < 0 else end)
        field = _FIELD.search(body, at, max(end, at)) if after >= 0 else None
        if field is not None and field[1] == name:
            return body[end + 4 : min(after, end + 4 + _MOST_VALUE)].decode(errors="replace")
        at = after + 2
    return ""


def _inflate(body: bytes, most: int, make: Callable[[], _Member]) -> bytes:
    """Return what a body becomes, up to `most` bytes; members follow each other."""
    plain, first = b"", True
    while body and len(plain) < most:
        member = make()
        try:
            plain += member.decompress(body, most - len(plain))
            cut = len(plain) < most and not member.eof
        except (zlib.error, zstd.ZstdError):
            if first:
                raise
            cut = True
        if cut and not first:
            raise EOFError(f"{len(body)} bytes behind its end are no whole body")
        if cut:
            raise EOFError("it ends too early")
        body, first = member.unused_data, False
    return plain


def _deflate(body: bytes, most: int) -> bytes:
    """Return what a body becomes; some clients leave out the frame that the coding has."""
    try:
        return _inflate(body, most, zlib.decompressobj)
    except zlib.error:
        return _inflate(body, most, lambda: zlib.decompressobj(-zlib.MAX_WBITS))


def _gzip(body: bytes, most: int) -> bytes:
    """Return what a body becomes."""
    return _inflate(body, most, lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))


def _zstd(body: bytes, most: int) -> bytes:
    """Return what a body becomes."""
    return _inflate(body, most, lambda: zstd.ZstdDecompressor(options=_ZSTD))


_ZSTD = {int(zstd.DecompressionParameter.window_log_max): 26}  # 64 MiB, of which there may be a few
_WAYS = {b"gzip": _gzip, b"x-gzip": _gzip, b"deflate": _deflate, b"zstd": _zstd}
