"""Token ids of texts that begin as earlier ones did, without encoding the beginning again.

Theory. A tokenizer first cuts a text at its special tokens, and encodes what lies between them
piece by piece: normalizer, pre-tokenizer and merges never see across. So wherever a special token
stands, for certain, the text may be cut, and the ids of the whole are the ids of the pieces in a
row. A *seam* is a special token that stands for certain wherever its letters do:

- the tokenizer looks for it in the raw text, not in the normalized one;
- it does not depend on its neighbours: no `single_word`, `lstrip`, `rstrip`;
- no other such token, and not itself, can begin before it and reach into it, or begin with it and
  be longer.

A piece is what stands between two seams, with the seam that ends it; where seams stand in a row,
the first ends a piece, and the others begin the next. A piece is encoded behind the seam that it
follows, whose id is then taken away, because tokenizers treat the very beginning of a text
differently. That this id comes first, and the ending seam's last, is checked every time: if not,
the text is encoded as a whole, and counted in `unfit`. So the result equals full tokenization for
every text and every tokenizer; a text without seams is merely not helped.

Chat templates end every message with such a token, so of a conversation's next turn only the last
messages are encoded. Known pieces are found by a chain of digests over the pieces before them; a
digest names the whole beginning, and is handed out as its *mark*. So that the pieces of a long
conversation need not be cut and looked up one by one, there is a second chain of digests, over
*strides* of 8192 characters wherever they end: the end of one stands for the last mark before it.
Beginnings go as `kvbench.text.beginnings` says when there are too many tokens.

The store itself is small talk with a dict. Encoding, which takes long, is left to the caller
(`Lookup.todo`), who may do it in a thread; or `encode` does it all at once.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kvbench.text.beginnings import Beginnings
from kvbench.text.digest import SECRET, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvbench.text.beginnings import Place
    from kvbench.text.tokenizer import Tokenizer

Mark = int

_MOST_TOKENS = 8_000_000  # 32 MB of ids
_STRIDE = 8192  # characters
_MOST_STRIDES = 16_384
_LAST_PARTS = (16, 128, 1024)  # of a text, among which the next turn may leave it
_LAST_ENDS = 64


class _End(NamedTuple):
    """Where a beginning ends: its mark, its length in characters, and the seam that ends it."""

    mark: Mark
    at: int
    seam: str


_START = _End(SECRET, 0, "")
_at = attrgetter("at")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's ids.

    Attributes:
        count: How many there are.
        since: Returns the ids from so many on, 32 bits each.
        marks: For beginnings that end with a seam: what names them, and their length in tokens.
        encoded: How many of the ids had to be made.
    """

    count: int
    since: Callable[[int], array[int]]
    marks: Sequence[tuple[Mark, int]]
    encoded: int

    @classmethod
    def of(cls, ids: array[int], marks: Sequence[tuple[Mark, int]], encoded: int) -> Tokens:
        """Return these ids."""
        return cls(len(ids), lambda start: ids[start:], marks, encoded)

    @property
    def ids(self) -> array[int]:
        """All of them."""
        return self.since(0)


class Rendered:
    """The last text that was laid out of what begins alike, in parts that may come again.

    Most parts of a conversation's next turn are the very objects of this one: that they are is seen
    without a look at what is in them.

    Attributes:
        parts: The text.
        length: Its characters.
        ends: Where beginnings of it end, the last of them; ascending.
    """

    __slots__ = ("ends", "length", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0
        self.ends: list[_End] = []

    def shared(self, parts: Sequence[str]) -> tuple[int, int]:
        """Return how many parts another text has in common with this, and their characters."""
        old = self.parts
        most = min(len(old), len(parts))
        for last in _LAST_PARTS:
            same = max(most - last, 0)
            if old[:same] == parts[:same]:
                break
        else:
            return 0, 0
        while same < most and old[same] == parts[same]:
            same += 1
        return same, self.length - sum(map(len, old[same:]))

    def tail(self, same: int, length: int) -> str:
        """Return the last characters, so many, of the first parts, so many."""
        first, left = same, length
        while left > 0:
            first -= 1
            left -= len(self.parts[first])
        return "".join(self.parts[first:same])[-left if left else None :]

    def keep(self, same: int, parts: Sequence[str], length: int, ends: Sequence[_End]) -> None:
        """Take another text for the last one.

        Args:
            same: How many parts they have in common.
            parts: The text.
            length: Its characters.
            ends: Where beginnings of it end, from one on that they have in common.
        """
        old = self.ends[-_LAST_ENDS:] if same else []
        self.ends = [*(end for end in old if end.at < ends[0].at), *ends]
        self.parts[same:] = parts[same:]
        self.length = length


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is known of a text, and what must be encoded.

    Attributes:
        parts: The text.
        known: Its longest beginning whose ids are known; None: none is.
        marks: Of the pieces that are not, but for the last, which no seam ends.
        seams: The ids of the seams that stand before and behind each piece of `todo`; None: none.
        todo: What to encode, each for itself, without special tokens of its own.
        strides: Ends of strides that were not known, and what stands for them.
    """

    parts: Sequence[str]
    known: Place[Mark, array[int]] | None
    marks: Sequence[Mark]
    seams: Sequence[tuple[int | None, int | None]]
    todo: list[str]
    strides: Sequence[tuple[int, _End]] = ()

    @property
    def text(self) -> str:
        """The text."""
        return "".join(self.parts)

    @property
    def characters(self) -> int:
        """How much there is to encode."""
        return sum(map(len, self.todo))


class PrefixStore:
    """Beginnings of texts and their ids, for one tokenizer.

    Args:
        tokenizer: Whose ids they are.
        capacity: Most tokens that are kept.
        stride: Characters that are looked up at once.

    Attributes:
        unfit: Texts whose pieces did not fit together and which were encoded as a whole.
    """

    def __init__(
        self, tokenizer: Tokenizer, capacity: int = _MOST_TOKENS, stride: int = _STRIDE
    ) -> None:
        self._tokenizer = tokenizer
        self._seams = find_seams(tokenizer)
        pattern = "|".join(map(re.escape, self._seams)) or "(?!)"
        self._row = re.compile(f"(?:{pattern})*")
        # Splits into text, the seam that ends it, further seams that begin the next piece, text, …
        self._cut = re.compile(f"({pattern})((?:{pattern})*)")
        self._kept: Beginnings[Mark, array[int]] = Beginnings(array("I"), capacity)
        self._stride = stride
        self._strides: OrderedDict[int, _End] = OrderedDict()
        self.unfit = 0

    def __len__(self) -> int:
        """How many tokens are kept."""
        return len(self._kept)

    @property
    def seams(self) -> Mapping[str, int]:
        """The special tokens at which a text may be cut, with their ids, longest first."""
        return self._seams

    def encode(self, text: str) -> Tokens:
        """Return the ids of a text, without special tokens of the tokenizer's own.

        Raises:
            UnicodeEncodeError: The text has halves of characters.
        """
        lookup = self.lookup(text)
        return self.complete(lookup, self._tokenizer.encode_batch(lookup.todo))

    def lookup(self, text: str) -> Lookup:
        """Return what is known of a text, and what must be encoded.

        Raises:
            UnicodeEncodeError: The text has halves of characters.
        """
        return self._find(text, [text])[0]

    def lookup_parts(self, parts: Sequence[str], before: Rendered) -> Lookup:
        """Return the same for a text in parts, which may begin as the one `before` did.

        It is the one before from now on.

        Raises:
            UnicodeEncodeError: The text has halves of characters.
        """
        same, length = before.shared(parts)
        ends = before.ends
        for number in range(bisect_right(ends, length, key=_at) - 1, -1, -1):
            last = ends[number]
            known = self._kept.find(last.mark)
            if known is not None:
                rest = before.tail(same, length - last.at) + "".join(parts[same:])
                found, fresh = self._follow(rest, parts, last, known)
                before.keep(same, parts, last.at + len(rest), fresh)
                return found
        text = "".join(parts)
        found, fresh = self._find(text, parts)
        before.keep(0, parts, len(text), fresh)
        return found

    def _find(self, text: str, parts: Sequence[str]) -> tuple[Lookup, list[_End]]:
        """Return what is known of a text, and where beginnings of it end that were not passed."""
        strides = _strides(text, self._stride)
        passed, last = self._recognise(strides)
        known = self._kept.find(last.mark)
        if known is None:
            passed, last = 0, _START
        found, ends = self._follow(text[last.at :], parts, last, known)
        fresh = [
            (stride, ends[bisect_right(ends, number * self._stride, key=_at) - 1])
            for number, stride in enumerate(strides[passed:], passed + 1)
        ]
        return replace(found, strides=fresh), ends

    def _follow(
        self, rest: str, parts: Sequence[str], last: _End, known: Place[Mark, array[int]] | None
    ) -> tuple[Lookup, list[_End]]:
        """Return what is known of a text, and where beginnings of it end from the `last` on.

        Args:
            rest: What stands behind the last beginning that is `known`.
            parts: The text.
            last: Where that ends.
            known: That beginning; None: nothing is known.
        """
        ends, marks = [last], list[Mark]()
        seams: list[tuple[int | None, int | None]] = []
        todo: list[str] = []
        for before, piece, end in self._pieces(rest, last):
            place = None if todo else self._kept.find(end.mark)
            if place is not None:
                known = place
            else:
                todo.append(before + piece)
                seams.append((self._seams.get(before), self._seams.get(end.seam)))
                marks.append(end.mark)
            ends.append(end)
        if not ends[-1].seam and len(ends) > 1:  # a piece that no seam ends is no beginning
            del ends[-1], marks[-1]
        return Lookup(parts, known, marks, seams, todo), ends

    def _recognise(self, strides: Sequence[int]) -> tuple[int, _End]:
        """Return how many strides are known, and what stands for the last of them."""
        passed, last = 0, _START
        for stride in strides:
            end = self._strides.get(stride)
            if end is None:
                break
            passed, last = passed + 1, end
        return passed, last

    def _pieces(self, rest: str, last: _End) -> Iterator[tuple[str, str, _End]]:
        """Yield the pieces behind a beginning, each with the seam before it and where it ends."""
        mark, at, before = last
        row = self._row.match(rest)
        start = 0 if row is None else row.end()
        lead, parts = rest[:start], self._cut.split(rest[start:])
        for place in range(0, len(parts) - 1, 3):
            seam = parts[place + 1]
            piece = lead + parts[place] + seam
            mark, at = digest(piece.encode(), mark), at + len(piece)
            yield before, piece, _End(mark, at, seam)
            before, lead = seam, parts[place + 2]
        piece = lead + parts[-1]
        if piece:
            yield before, piece, _End(digest(piece.encode(), mark), at + len(piece), "")

    def complete(self, lookup: Lookup, encoded: Sequence[Sequence[int]]) -> Tokens:
        """Return the ids of a text, given those of `lookup.todo`, and remember them."""
        old = 0 if lookup.known is None else lookup.known[1]
        fresh, names = array("I"), []
        for number, ((before, behind), found) in enumerate(zip(lookup.seams, encoded, strict=True)):
            if (before is not None and list(found[:1]) != [before]) or (
                behind is not None and list(found[-1:]) != [behind]
            ):
                self.unfit += 1
                ids = array("I", self._tokenizer.encode(lookup.text))
                return Tokens.of(ids, (), len(ids))
            fresh += array("I", found if before is None else found[1:])
            if number < len(lookup.marks):
                names.append((lookup.marks[number], old + len(fresh)))
        marks = self._kept.names(lookup.known) + names
        self._kept.keep(lookup.known, fresh, names)
        self._strides.update(lookup.strides)
        while len(self._strides) > _MOST_STRIDES:
            self._strides.popitem(last=False)

        def since(start: int) -> array[int]:
            return self._kept.numbers(lookup.known, start) + fresh[max(start - old, 0) :]

        return Tokens(old + len(fresh), since, marks, len(fresh))


def find_seams(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the special tokens at which a text may be cut, with their ids, longest first."""
    raw = [token for token in tokenizer.added_tokens() if not token.normalized]
    texts = [token.text for token in raw]
    seams: Mapping[str, int] = {
        token.text: token.id
        for token in raw
        if not token.conditional and not any(_covers(other, token.text) for other in texts)
    }
    return dict(sorted(seams.items(), key=lambda item: -len(item[0])))


def _covers(other: str, seam: str) -> bool:
    """Return whether `other` may take letters of `seam` where that begins."""
    if not seam or (other != seam and other.startswith(seam)):
        return True
    start = other.find(seam[0], 1)
    while start > 0:
        if seam.startswith(other[start:]) or other.startswith(seam, start):
            return True
        start = other.find(seam[0], start + 1)
    return False


def _strides(text: str, size: int) -> list[int]:
    """Return what names the beginnings of a text that have whole strides of so many characters."""
    names, name = [], SECRET
    for end in range(size, len(text) + 1, size):
        name = digest(text[end - size : end].encode(), name)
        names.append(name)
    return names
