"""A file that is read again whenever it has changed.

Rules: a version that cannot be used is said so once, in the log and to who asks, and the one before
it holds. What tells a change is the file's identity, size and time, so a file that is replaced by
another, or by a link to another, has changed. A file that is gone is one that cannot be used.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

Content = TypeVar("Content")


class WatchedFile(Generic[Content]):
    """A file and what its content is used for.

    Args:
        path: Where it is.
        read: Returns its content or raises `InputError`; called in a thread.
        use: Called with each new content; it may raise `InputError` too.

    Attributes:
        trouble: What is wrong with the newest version, None if nothing is.
    """

    def __init__(
        self, path: Path, read: Callable[[Path], Content], use: Callable[[Content], None]
    ) -> None:
        self.path = path
        self._read = read
        self._use = use
        self._mark: tuple[int, ...] | None = ()
        self.trouble: str | None = None

    def load(self) -> None:
        """Read and use it for the first time.

        Raises:
            InputError: It cannot be used.
        """
        self._mark = self._look()
        self._use(self._read(self.path))

    async def refresh(self) -> None:
        """Use it if it has changed."""
        mark = await asyncio.to_thread(self._look)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._use(await asyncio.to_thread(self._read_again))
        except InputError as error:
            self.trouble = str(error)
            logger.warning("%s; what it said before holds", error)
        else:
            self.trouble = None
            logger.info("%s has changed and is in use", self.path)

    def _read_again(self) -> Content:
        """Return the content; of what is no file, such as a pipe, there might be no end."""
        if self.path.exists() and not self.path.is_file():
            raise InputError("expected a file", where=str(self.path))
        return self._read(self.path)

    def _look(self) -> tuple[int, ...] | None:
        """Return what tells this version from others, None if there is no such file."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
