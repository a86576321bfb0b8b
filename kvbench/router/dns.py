"""Pods behind a DNS name: one at each of its addresses, as a headless service has them.

    --pod dns://vllm.models.svc:8000
    --pod dns://vllm.models.svc:8000,events=tcp://vllm.models.svc:5557

Rules: where a pod's KV events are, the name stands for its address there too. The name is resolved
again every few seconds. When it cannot be resolved, the pods that it last had stay; their probes
will tell whether they are there. Pods are spoken to in plain HTTP: no certificate names an address.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvbench.errors import InputError
from kvbench.http.host import Host
from kvbench.zmqfeed.sources import parse_pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

SCHEME = "dns://"
_TIMEOUT_S = 5.0
_MOST = 1024  # addresses


class DnsName:
    """A name whose addresses are pods.

    Attributes:
        url: As given, without what stands behind it.
        trouble: Why it could not be resolved the last time, None if it could.
    """

    def __init__(self, url: str, resolve: Callable[[str, int], Awaitable[list[str]]]) -> None:
        """Take a name.

        Raises:
            InputError: It is not of the form dns://NAME:PORT, or its events are elsewhere.
        """
        url, self._source = parse_pod(url)
        trouble = InputError(
            f"--pod: expected dns://NAME:PORT, got {url!r}", hint="dns://vllm.models.svc:8000"
        )
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise trouble from None
        if not host or not port or parts.username or parts.path.strip("/") or parts.query:
            raise trouble
        for endpoint in (self._source.events, self._source.replay) if self._source else ():
            if endpoint is not None and urlsplit(endpoint).hostname != host:
                raise InputError(
                    f"--pod {url}: expected tcp://{host}:PORT, got {endpoint}",
                    hint="the name stands for the address of each pod there too",
                )
        self.url = url
        self.trouble: str | None = None
        self._port = port
        self._host = Host(host, port, resolve)
        self._said: str | None = None

    async def pods(self) -> list[str] | None:
        """Return the URLs of the pods that it has now, None if that cannot be told."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                addresses = await self._host.addresses()
        except TimeoutError:
            self.trouble = "could not be resolved in time"
        except (OSError, UnicodeError) as error:
            self.trouble = f"could not be resolved: {getattr(error, 'strerror', None) or error}"
        else:
            self.trouble = None
            global_ = {a for a in addresses if "%" not in a}  # a link has no pods
            hosts = sorted(f"[{a}]" if ":" in a else a for a in global_)[:_MOST]
            self._tell()
            return [self._pod(host) for host in hosts]
        self._tell()
        return None

    def _pod(self, host: str) -> str:
        """Return the pod at an address, as `--pod` takes it."""
        url, source = f"http://{host}:{self._port}", self._source
        if source is None:
            return url
        events, replay = (
            endpoint and f"tcp://{host}:{urlsplit(endpoint).port}"
            for endpoint in (source.events, source.replay)
        )
        return replace(source, events=events or "", replay=replay).beside(url)

    def _tell(self) -> None:
        """Log what has changed."""
        if self.trouble != self._said:
            self._said = self.trouble
            if self.trouble:
                logger.warning("%s %s", self.url, self.trouble)
            else:
                logger.info("%s is resolved again", self.url)
