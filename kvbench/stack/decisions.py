"""Collects what the router decides while a run goes on, in the run's folder.

A thread of its own asks the router twice a second which requests have ended since, and appends
their decisions, those of the run alone; a hundred at a time, for the router makes them while
requests wait. A router that does not tell its decisions is asked once. What comes too fast is lost,
oldest first: the router keeps a thousand.
"""

from __future__ import annotations

import threading
import urllib.error
from typing import TYPE_CHECKING, Self

import msgspec

from kvbench.errors import TargetError
from kvbench.records.decisions import Entry  # noqa: TC001 - a struct's annotation
from kvbench.stack.target import fetch

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

EVERY_SECONDS = 0.5
_MOST_AT_ONCE = 100
_TIMEOUT_SECONDS = 5.0


class _Page(msgspec.Struct):
    decisions: list[Entry]
    ended: int


class DecisionWatch:
    """Collects from when it is entered until it is left.

    Args:
        url: The router's URL; None where there is none.
        path: The file that gets the lines.
        prefix: With what the ids of the run's requests begin.
        every_s: Seconds between two questions.
    """

    def __init__(
        self, url: str | None, path: Path, prefix: str, every_s: float = EVERY_SECONDS
    ) -> None:
        self._url = url
        self._path = path
        self._prefix = prefix
        self._every_s = every_s
        self._seen = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decision watch", daemon=True)

    def __enter__(self) -> Self:
        page = self._ask(0, most=1)
        if page is None:
            self._over.set()
        else:
            self._seen = page.ended
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asking = not self._over.is_set()
        self._over.set()
        self._thread.join()
        if asking:
            self._collect_all()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._collect_all()

    def _collect_all(self) -> None:
        """Append all that is new."""
        while self._collect() == _MOST_AT_ONCE:
            pass

    def _collect(self) -> int:
        """Append what is new; return how much that was."""
        page = self._ask(self._seen, _MOST_AT_ONCE)
        if page is None:
            return 0
        self._seen = max((entry.number for entry in page.decisions), default=page.ended)
        ours = [entry for entry in page.decisions if entry.id.startswith(self._prefix)]
        lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in ours)
        try:
            with self._path.open("ab") as file:
                file.write(lines)
        except OSError:  # a disk that is full ends the collecting, not the run
            self._over.set()
            return 0
        return len(page.decisions)

    def _ask(self, since: int, most: int) -> _Page | None:
        """Return what the router tells, None if nothing."""
        if self._url is None:
            return None
        url = f"{self._url}/decisions?since={since}&limit={most}"
        try:
            return msgspec.json.decode(fetch(url, timeout=_TIMEOUT_SECONDS), type=_Page)
        except urllib.error.HTTPError as error:
            error.close()
        except (TargetError, msgspec.MsgspecError, UnicodeDecodeError):
            pass
        return None
