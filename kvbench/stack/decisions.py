"""Collects what the router decides while a run goes on, in the run's folder.

A thread of its own asks the router twice a second, or more often, which requests have ended since.
A router that does not tell its decisions is asked once. What comes too fast even so is lost, oldest
first: the router keeps a thousand.
"""

from __future__ import annotations

import threading
import urllib.error
from typing import TYPE_CHECKING, Self

from kvbench.errors import TargetError
from kvbench.records.decisions import EVERY_SECONDS, DecisionLog
from kvbench.stack.target import fetch

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_TIMEOUT_SECONDS = 5.0


class DecisionWatch:
    """Collects from when it is entered until it is left.

    Args:
        url: The router's URL; None where there is none.
        path: The file that gets the lines.
        prefix: With what the ids of the run's requests begin.
        every_s: Seconds between two questions, at most.
    """

    def __init__(
        self, url: str | None, path: Path, prefix: str, every_s: float = EVERY_SECONDS
    ) -> None:
        self._url = url
        self._log = DecisionLog(path, prefix, self._get)
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decision watch", daemon=True)

    def __enter__(self) -> Self:
        self._log.begin()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._log.collect()

    def notes(self) -> list[str]:
        """Return what there is to say of what was collected."""
        lost = self._log.lost
        return [f"{lost} decisions came faster than they could be collected"] if lost else []

    def _run(self) -> None:
        while not self._log.over and not self._over.wait(min(self._every_s, self._log.wait_s)):
            self._log.collect()

    def _get(self, path: str) -> bytes | None:
        """Return what the router answers, None if nothing."""
        if self._url is None:
            return None
        try:
            return fetch(self._url + path, timeout=_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
        except TargetError:
            pass
        return None
