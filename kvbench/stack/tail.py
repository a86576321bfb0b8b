"""Rows as they are written: what a progress display shows while a run is on.

The run's own rows are its progress; no second channel could disagree with them.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from kvbench.records.schema import TurnRecord

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.records.run import RunFolder

RECENT = 50
"""Turns that the median TTFT of the display is taken over."""


class Tail:
    """Follows the row files of a run.

    Attributes:
        rows: Rows seen so far.
        failed: Of those, turns that were not answered in full.
        prompt_tokens: Prompt tokens of turns with known `cached_tokens`.
        cached_tokens: Of those, tokens that came from a cache.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._recent: list[float] = []
        self._decoder = msgspec.json.Decoder(TurnRecord)
        self.rows = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that came from a cache, so far."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def recent_ttft_s(self) -> float | None:
        """Median TTFT of the last turns."""
        return median(self._recent) if self._recent else None

    def read(self) -> None:
        """Take in what was written since the last call."""
        for path in self._folder.rows_paths():
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                block = file.read()
            whole = block[: block.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = self._decoder.decode(line)
        except msgspec.MsgspecError:
            return  # the reader will report it
        self.rows += 1
        self.failed += not row.ok
        if row.cached_tokens is not None and row.prompt_tokens is not None:
            self.cached_tokens += row.cached_tokens
            self.prompt_tokens += row.prompt_tokens
        if row.ttft_s is not None:
            self._recent = [*self._recent[-RECENT + 1 :], row.ttft_s]
