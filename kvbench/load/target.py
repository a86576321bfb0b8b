"""Where requests go: a base URL, taken apart once.

Accepted: `http://host:port`, `https://…`, IPv6 in brackets, a path before `/v1`, with or without
`/v1` at the end. Refused: anything without a host, other schemes, user names and passwords (a
secret in a URL ends up in logs; keys go into a file or the environment).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from kvbench.errors import InputError

if TYPE_CHECKING:
    from kvbench.workload.plan import Api

_HINT = "pass the base URL of a pod or a router, such as --host http://127.0.0.1:8000"
_ENDPOINTS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed base URL.

    Attributes:
        tls: Whether it is https.
        host: Name or address, without brackets.
        port: TCP port.
        prefix: Path up to and including `/v1`.
    """

    tls: bool
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Take a base URL apart.

        Raises:
            InputError: It is none that requests can be sent to.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InputError(f"--host: expected a URL, got {url!r}", hint=_HINT) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InputError(f"--host: expected an http(s) URL, got {url!r}", hint=_HINT)
        if not parts.hostname.isascii():
            raise InputError(f"--host: expected an ASCII host name, got {parts.hostname!r}")
        if parts.username or parts.password:
            raise InputError(
                "--host: expected a URL without user name and password",
                hint="put the key into OPENAI_API_KEY or a file for --api-key-file",
            )
        tls = parts.scheme == "https"
        base = quote(parts.path, safe="/%").rstrip("/").removesuffix("/v1")
        return cls(tls, parts.hostname, port or (443 if tls else 80), f"{base}/v1")

    @property
    def authority(self) -> str:
        """The target as `host:port`, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def endpoint(self, api: Api) -> str:
        """Return the path that turns of `api` are posted to."""
        return self.prefix + _ENDPOINTS[api]
