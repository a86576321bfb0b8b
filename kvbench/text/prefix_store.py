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
digest names the whole beginning, and is handed out as its *mark*. Least recently used beginnings go
when there are too many tokens; a beginning never goes before what follows it.

The store itself is small talk with a dict. Encoding, which takes long, is left to the caller
(`Lookup.todo`), who may do it in a thread; or `encode` does it all at once.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbench.text.tokenizer import Tokenizer

Mark = int

_MOST_TOKENS = 8_000_000  # 32 MB of ids


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's ids.

    Attributes:
        ids: Token ids, 32 bits each.
        marks: For beginnings that end with a seam: what names them, and their length in tokens.
        encoded: How many of the ids had to be made.
    """

    ids: array[int]
    marks: Sequence[tuple[Mark, int]]
    encoded: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is known of a text, and what must be encoded.

    Attributes:
        text: The text.
        known: The pieces whose ids are known, by mark.
        marks: Of the pieces that are not, but for the last, which no seam ends.
        seams: The ids of the seams that stand before and behind each piece of `todo`; None: none.
        todo: What to encode, each for itself, without special tokens of its own.
    """

    text: str
    known: Sequence[tuple[Mark, array[int]]]
    marks: Sequence[Mark]
    seams: Sequence[tuple[int | None, int | None]]
    todo: list[str]

    @property
    def characters(self) -> int:
        """How much there is to encode."""
        return sum(map(len, self.todo))


class PrefixStore:
    """Beginnings of texts and their ids, for one tokenizer.

    Args:
        tokenizer: Whose ids they are.
        capacity: Most tokens that are kept.

    Attributes:
        unfit: Texts whose pieces did not fit together and which were encoded as a whole.
    """

    def __init__(self, tokenizer: Tokenizer, capacity: int = _MOST_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._seams = find_seams(tokenizer)
        pattern = "|".join(map(re.escape, self._seams))
        # Splits into text, the seam that ends it, further seams that begin the next piece, text, …
        self._cut = re.compile(f"({pattern})((?:{pattern})*)") if pattern else None
        self._pieces: OrderedDict[Mark, array[int]] = OrderedDict()
        self._tokens = 0
        self.unfit = 0

    def __len__(self) -> int:
        """How many tokens are kept."""
        return self._tokens

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
        cut = self._cut
        parts = [text] if cut is None else cut.split(text)
        mark, known, place = 0, [], 0
        pieces = self._pieces
        for place in range(0, len(parts) - 1, 3):
            below = mark
            mark = _mark(below, "".join(parts[max(place - 1, 0) : place + 2]))
            ids = pieces.get(mark)
            if ids is None:
                mark = below
                break
            known.append((mark, ids))
        else:
            place = len(parts) - 1
        return self._rest(text, parts, place, mark, known)

    def _rest(
        self,
        text: str,
        parts: list[str],
        first: int,
        mark: Mark,
        known: list[tuple[Mark, array[int]]],
    ) -> Lookup:
        """Return the lookup whose parts from `first` on are not known."""
        marks: list[Mark] = []
        seams: list[tuple[int | None, int | None]] = []
        todo: list[str] = []
        for place in range(first, len(parts), 3):
            before = parts[place - 2] if place else ""
            piece = "".join(parts[max(place - 1, 0) : place + 2])
            behind = parts[place + 1] if place + 1 < len(parts) else ""
            if behind:
                mark = _mark(mark, piece)
                marks.append(mark)
            else:
                piece.encode()  # refuses halves of characters, as `_mark` does
            if piece:
                todo.append(before + piece)
                seams.append((self._seams.get(before), self._seams.get(behind)))
        return Lookup(text, known, marks, seams, todo)

    def complete(self, lookup: Lookup, encoded: Sequence[Sequence[int]]) -> Tokens:
        """Return the ids of a text, given those of `lookup.todo`, and remember them."""
        fresh: list[array[int]] = []
        for (before, behind), found in zip(lookup.seams, encoded, strict=True):
            if (before is not None and list(found[:1]) != [before]) or (
                behind is not None and list(found[-1:]) != [behind]
            ):
                self.unfit += 1
                ids = array("I", self._tokenizer.encode(lookup.text))
                return Tokens(ids, (), len(ids))
            fresh.append(array("I", found if before is None else found[1:]))
        ids = array("I")
        marks: list[tuple[Mark, int]] = []
        for mark, piece in lookup.known:
            ids += piece
            marks.append((mark, len(ids)))
        old = len(ids)
        for number, piece in enumerate(fresh):
            ids += piece
            if number < len(lookup.marks):
                marks.append((lookup.marks[number], len(ids)))
        self._keep(lookup, fresh)
        return Tokens(ids, marks, len(ids) - old)

    def _keep(self, lookup: Lookup, fresh: Sequence[array[int]]) -> None:
        """Remember the pieces of a text, the first of them as the most recently used."""
        pieces = self._pieces
        for mark, piece in zip(lookup.marks, fresh, strict=False):
            self._tokens += len(piece) - len(pieces.get(mark, ()))
            pieces[mark] = piece
        for mark in reversed([*(mark for mark, _ in lookup.known), *lookup.marks]):
            if mark in pieces:
                pieces.move_to_end(mark)
        while self._tokens > self._capacity and pieces:
            _, gone = pieces.popitem(last=False)
            self._tokens -= len(gone)


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
    if other != seam and other.startswith(seam):
        return True
    return any(
        seam.startswith(other[start:]) or other.startswith(seam, start)
        for start in range(1, len(other))
    )


def _mark(below: Mark, piece: str) -> Mark:
    """Return the mark of a beginning: that of the one before it, and the piece."""
    mark: Mark = xxhash.xxh3_128_intdigest(piece.encode(), seed=below & 0xFFFF_FFFF_FFFF_FFFF)
    return mark
