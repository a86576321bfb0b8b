"""Text of exactly N tokens, with exactly the prefix that is to be shared.

A *segment* has a key and a length. Its words are drawn from the tokenizer's plain words by a
stream of bytes that SHAKE-256 derives from the seed and the key. Hence

- equal keys give equal words, in every process and on every machine;
- a shorter segment is the beginning of a longer one with the same key;
- different keys differ within their first few words: with W plain words, two keys agree on a
  whole block of 16 tokens with probability W^-16, at most 2^-64.

Segments follow one another with a single space between them, and every word is one token. The
first word of a whole text has no space before it, so its token may be another form of the word
(`opening_ids`); everywhere else `ids` holds. Not for use by several threads at once.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvbench.text.tokenizer import Tokenizer

T = TypeVar("T")

_DRAWN = 65536  # numbers of two bytes
_MOST_OPENINGS = 100_000  # segments whose first token is remembered


class SegmentCache(Generic[T]):
    """Something per segment; of those used longest ago it forgets what exceeds `most_tokens`."""

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self._tokens = 0
        self._entries: OrderedDict[tuple[str, int], T] = OrderedDict()

    def get(self, key: str, tokens: int, make: Callable[[str, int], T]) -> T:
        """Return what belongs to the segment, made by `make(key, tokens)` if it is not there."""
        entry = (key, tokens)
        if entry in self._entries:
            self._entries.move_to_end(entry)
            return self._entries[entry]
        made = self._entries[entry] = make(key, tokens)
        self._tokens += tokens
        while self._tokens > self._most and len(self._entries) > 1:
            (_, dropped), _ = self._entries.popitem(last=False)
            self._tokens -= dropped
        return made


class Composer:
    """Makes the tokens and the text of segments.

    Args:
        tokenizer: Whose plain words are used.
        seed: The root seed: another seed gives other words for every key.
        most_tokens: Tokens to remember; about 16 bytes each.

    Raises:
        InputError: The tokenizer has too few plain words.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, *, most_tokens: int = 2_000_000) -> None:
        plain = tokenizer.plain_words
        self._seed = seed
        openings = list(zip(plain.spaced_ids, plain.bare_ids, plain.glued_ids, strict=True))
        # By drawn number: picked from quickly, and without a copy of any word.
        which = [drawn * len(plain.words) >> 16 for drawn in range(_DRAWN)]
        self._word = [plain.words[i] for i in which]
        self._id = [plain.spaced_ids[i] for i in which]
        self._opens = [openings[i] for i in which]
        self._ids: SegmentCache[tuple[int, ...]] = SegmentCache(most_tokens)
        self._texts: SegmentCache[str] = SegmentCache(most_tokens)
        self._opening: SegmentCache[tuple[int, int, int]] = SegmentCache(_MOST_OPENINGS)

    def ids(self, key: str, n: int) -> Sequence[int]:
        """Return the `n` token ids of the segment where something stands before it."""
        return self._ids.get(key, n, self._make_ids)

    def opening_ids(self, key: str) -> tuple[int, int, int]:
        """Return the segment's first token after a space, after nothing, and after a line break."""
        return self._opening.get(key, 1, self._make_opening)

    def text(self, key: str, n: int) -> str:
        """Return the `n` words of the segment, single spaces between them and none around them."""
        return self._texts.get(key, n, self._make_text)

    def pieces(self, key: str, n: int) -> tuple[list[int], list[str]]:
        """Return the `n` ids and the `n` words of the segment; they are not remembered."""
        drawn = self._drawn(key, n)
        return list(map(self._id.__getitem__, drawn)), list(map(self._word.__getitem__, drawn))

    def join(self, segments: Iterable[tuple[str, int]]) -> str:
        """Return the text of several segments (key, tokens), one after the other."""
        return " ".join(self.text(key, n) for key, n in segments)

    def join_ids(self, segments: Iterable[tuple[str, int]]) -> list[int]:
        """Return the tokens of several segments where something stands before them."""
        return list(chain.from_iterable(self.ids(key, n) for key, n in segments))

    def _make_opening(self, key: str, n: int) -> tuple[int, int, int]:
        """Return the forms of a first token that is not remembered."""
        return self._opens[self._drawn(key, n)[0]]

    def _make_ids(self, key: str, n: int) -> tuple[int, ...]:
        """Return the ids of a segment that is not remembered."""
        return tuple(map(self._id.__getitem__, self._drawn(key, n)))

    def _make_text(self, key: str, n: int) -> str:
        """Return the text of a segment that is not remembered."""
        return " ".join(map(self._word.__getitem__, self._drawn(key, n)))

    def _drawn(self, key: str, n: int) -> array[int]:
        """Return `n` numbers below 65,536, two bytes of the stream each, the lower one first."""
        drawn = array("H")
        drawn.frombytes(hashlib.shake_256(f"{self._seed}\x1f{key}".encode()).digest(2 * n))
        if sys.byteorder == "big":
            drawn.byteswap()
        return drawn
