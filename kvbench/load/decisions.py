"""What the target's router decides, collected while a run goes on: for runs that Locust began.

`kvbench run` does that in the parent of Locust. Where Locust was started by hand, or a run from its
web UI, the master does it: a greenlet beside the conductor's asks twice a second. A target that is
no router of kvbench is asked once.
"""

from __future__ import annotations

import http.client
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import gevent

from kvbench.load.target import Target
from kvbench.records.decisions import DecisionLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.load.settings import Settings
    from kvbench.records.run import RunFolder

_TIMEOUT_SECONDS = 5.0
_MOST_BYTES = 16 * 1024 * 1024


@contextmanager
def decisions_collected(settings: Settings, folder: RunFolder) -> Iterator[None]:
    """Collect the decisions on a run's requests while the body goes on, and once more behind it.

    Raises:
        InputError: The target's URL is none, or its key cannot be read.
    """
    base, key = _base(settings.host), settings.key()

    def get(path: str) -> bytes | None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        request = urllib.request.Request(base + path, headers=headers)  # noqa: S310 - parsed
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
                body: bytes = answer.read(_MOST_BYTES)
                return body
        except (OSError, http.client.HTTPException):  # a refusal is an OSError, too
            return None

    log = DecisionLog(folder.decisions_path, folder.id, get)
    log.begin()
    greenlet = gevent.spawn(_watch, log)
    try:
        yield
    finally:
        greenlet.kill()
        log.collect()


def _watch(log: DecisionLog) -> None:
    while not log.over:
        gevent.sleep(log.wait_s)
        log.collect()


def _base(host: str) -> str:
    target = Target.parse(host)
    scheme = "https" if target.tls else "http"
    return f"{scheme}://{target.authority}{target.prefix.removesuffix('/v1')}"
