"""Where a pod is: its URL, taken apart once."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from kvbench.errors import InputError

_LONGEST_HOST = 253  # characters: RFC 1035 §2.3.4, without the length and the root


@dataclass(frozen=True, slots=True)
class Address:
    """A pod's address.

    Attributes:
        url: As given, without a trailing slash.
        host: Host name or IP address.
        port: TCP port.
        tls: Whether it is https.
        base: Path that stands before every target, "" if none.
        name: "host:port", what the pod is called everywhere.
    """

    url: str
    host: str
    port: int
    tls: bool
    base: str

    @property
    def name(self) -> str:
        """The pod's name; an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Return the address that a URL stands for.

    Raises:
        InputError: It is not a URL of a pod; the message shows the form.
    """
    trouble = InputError(
        f"--pod: expected a URL such as http://127.0.0.1:8000, got {url!r}",
        hint="scheme (http or https), host and port, and a path if the pod is behind one",
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise trouble from None
    wrong = parts.scheme not in {"http", "https"} or not parts.hostname
    wrong = wrong or bool(parts.query or parts.fragment or parts.username)
    if wrong or not url.isascii() or not url.isprintable() or " " in url or port == 0:
        raise trouble
    if len(parts.hostname or "") > _LONGEST_HOST:
        raise InputError(
            f"--pod: expected a host name of at most {_LONGEST_HOST} characters, "
            f"got {len(parts.hostname or '')}"
        )
    tls = parts.scheme == "https"
    base = parts.path.rstrip("/")
    if base.endswith("/v1"):
        raise InputError(
            f"--pod: expected a URL without /v1, which requests bring along, got {url!r}",
            hint=url.rstrip("/").removesuffix("/v1"),
        )
    return Address(
        url=url.rstrip("/"),
        host=parts.hostname or "",
        port=port or (443 if tls else 80),
        tls=tls,
        base=base,
    )
