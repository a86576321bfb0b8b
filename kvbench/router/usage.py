"""The token counts in an answer, found without parsing it.

An answer ends, streamed or not, with `"usage":{…}`, which has the two counts that matter here. In
JSON a quote inside a string is escaped, so the bytes `"usage":` occur as a key and nowhere else
(without the colon, the token may be one of those whose probabilities are told).
Each piece of the body is searched once for that key; the 1,024 bytes behind its last occurrence
are kept, and read when the answer has ended. A count that is not there is unknown (None), never 0.

| API | prompt tokens | of them cached |
|---|---|---|
| completions, OpenAI's | `prompt_tokens` | `cached_tokens` |
| responses, OpenAI's | `input_tokens` | `cached_tokens` |
| messages, Anthropic's | `input_tokens`, and `cache_…_input_tokens` | `cache_read_input_tokens` |
"""

from __future__ import annotations

import re
from typing import Final

KEY: Final = b'"usage":'
_KEPT: Final = len(KEY)
_WINDOW: Final = 1024
_BEHIND: Final = _WINDOW - _KEPT
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})\b')
_CACHED: Final = re.compile(rb'"(?:cached|cache_read_input)_tokens"\s*:\s*(\d{1,12})\b')
_BRIEF: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*[01]\b')
_BESIDE: Final = re.compile(rb'"cache_(?:read|creation)_input_tokens"\s*:\s*(\d{1,12})\b')


class UsageFinder:
    """Watches a body pass by."""

    __slots__ = ("_found", "_tail")

    def __init__(self) -> None:
        self._found = b""
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        """Look at the next piece of the body."""
        window = self._tail + piece if self._tail else piece
        _, key, rest = window.rpartition(KEY)
        if not key:
            self._tail = b"" if piece.endswith(b"\n") else window[-_KEPT:]  # a key is in one line
            return
        found = self._found = key + rest[:_BEHIND]
        self._tail = found if len(found) < _WINDOW else window[-_KEPT:]

    def brief(self) -> bool:
        """Return whether it said that one token was generated, or none."""
        return _BRIEF.search(self._found) is not None

    def tokens(self) -> tuple[int | None, int | None]:
        """Return the prompt's tokens, and how many of them were cached, as far as it said."""
        found = self._found
        if not found:
            return None, None
        prompt, cached = _PROMPT.search(found), _CACHED.search(found)
        tokens = int(prompt[1]) if prompt else None
        if tokens is not None and found.find(b"cache_") >= 0:  # not `in`, which is slow
            tokens += sum(map(int, _BESIDE.findall(found)))
        return tokens, int(cached[1]) if cached else None
