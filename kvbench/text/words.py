"""Plain words: words that are one token each, wherever they stand.

A prompt of exactly N tokens is N such words joined by single spaces. For a word to count as one,
two things must hold in the tokenizer at hand, whatever its kind (byte-level BPE, Unigram with
metaspaces, WordPiece):

- alone, it is one token (its *bare* form: at the beginning of a message);
- after a word and a space it is one token that does not melt into its neighbours (its *spaced*
  form).

Some vocabularies have one token for both, and need a third where a word follows other text without
a space, such as a line break of a chat template (its *glued* form). Words that have it are
preferred; where there are too few of them, the bare form stands in.

All is found by trying: the vocabulary's own entries that look like words are encoded, those that
pass are then mixed into long texts, and whatever word stands where such a text does not come out
as expected is dropped, until one does come out. Refuses a tokenizer with fewer than `FEWEST` such
words, for then unrelated prompts would share their first block too often.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.text.tokenizer import Tokenizer

FEWEST = 16
"""Sixteen words give 2^64 first blocks of 16 tokens."""

MOST = 4096
"""Enough to look like language; more only makes the search longer."""

_MANY = 4 * FEWEST  # words from which on no further shape or form is tried
_CANDIDATES = 16384
_MARKS = "Ġ▁ "  # how vocabularies spell the space before a word
_SHAPES = (r"[a-z]{3,12}", r"[A-Za-z]{2,16}", r"[A-Za-z0-9]+")  # from the loveliest to the last


@dataclass(frozen=True, slots=True)
class PlainWords:
    """Plain words and their ids, in parallel.

    Attributes:
        words: The words, without spaces: ASCII letters or digits, so safe in JSON as they are.
        bare_ids: Their ids at the beginning of a text.
        spaced_ids: Their ids after a word and a space.
        glued_ids: Their ids right after a line break.
    """

    words: tuple[str, ...]
    bare_ids: tuple[int, ...]
    spaced_ids: tuple[int, ...]
    glued_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """A candidate that passed so far; `glued` is None where it has no such form."""

    word: str
    bare: int
    spaced: int
    glued: int | None


def find_plain_words(tokenizer: Tokenizer) -> PlainWords:
    """Return the plain words of `tokenizer`, in the order of its vocabulary.

    Raises:
        InputError: It has too few of them.
    """
    spellings = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    found: list[_Found] = []
    for shape in _SHAPES:
        looks = re.compile(shape, re.ASCII)
        candidates = dict.fromkeys(
            word
            for spelling in spellings
            if spelling is not None and looks.fullmatch(word := spelling.lstrip(_MARKS))
        )
        found = _stable(tokenizer, _single(tokenizer, list(candidates)[:_CANDIDATES]))
        if len(found) >= _MANY:
            break
    if len(found) < FEWEST:
        raise InputError(
            f"expected at least {FEWEST} words that are one token wherever they stand, "
            f"found {len(found)}",
            where=str(tokenizer.path / "tokenizer.json"),
            hint="prompts of exact length cannot be made with it: choose another tokenizer",
        )
    with_glued = [entry for entry in found if entry.glued is not None]
    chosen = (with_glued if len(with_glued) >= FEWEST else found)[:MOST]
    return PlainWords(
        tuple(entry.word for entry in chosen),
        tuple(entry.bare for entry in chosen),
        tuple(entry.spaced for entry in chosen),
        tuple(entry.bare if entry.glued is None else entry.glued for entry in chosen),
    )


def _single(tokenizer: Tokenizer, candidates: Sequence[str]) -> list[_Found]:
    """Return the candidates that are one token bare and one token spaced."""
    alone = tokenizer.encode_batch(candidates)
    twice = tokenizer.encode_batch([f"{word} {word}" for word in candidates])
    after_break = tokenizer.encode_batch([f"\n{word} {word}" for word in candidates])
    found = []
    for word, one, two, glued in zip(candidates, alone, twice, after_break, strict=True):
        if len(one) == 1 and len(two) == 2 and two[0] == one[0]:
            spelt = [(tokenizer.token(i) or "").lstrip(_MARKS) for i in (two[1], *glued[-2:-1])]
            if spelt[0] == word:  # and not "unknown"
                whole = spelt[-1] == word and glued[-1] == two[1]
                found.append(_Found(word, one[0], two[1], glued[-2] if whole else None))
    return found


def _stable(tokenizer: Tokenizer, found: Sequence[_Found]) -> list[_Found]:
    """Return those that stay single tokens among each other.

    Tried on random orders of all words: where they are few, on enough of them to meet every pair.
    """
    chance = random.Random(0)  # noqa: S311 - any fixed order will do
    kept = list(found)
    while kept:
        rounds = max(4, min(8 * len(kept), 32768 // len(kept)))
        mixed = [entry for _ in range(rounds) for entry in chance.sample(kept, len(kept))]
        lines = [mixed[i : i + 32] for i in range(0, len(mixed), 32)]
        texts = tokenizer.encode_batch([" ".join(entry.word for entry in line) for line in lines])
        broken = {
            entry
            for line, ids in zip(lines, texts, strict=True)
            if ids != [line[0].bare, *(entry.spaced for entry in line[1:])]
            for entry in _broken_words(tokenizer, line)
        }
        if not broken:
            return kept
        kept = [entry for entry in kept if entry not in broken]
    return []


def _broken_words(tokenizer: Tokenizer, line: Sequence[_Found]) -> list[_Found]:
    """Return the words of the pairs in `line` that do not tokenise to their two ids."""
    pairs = list(pairwise(line))
    texts = tokenizer.encode_batch([f"{left.word} {right.word}" for left, right in pairs])
    return [
        entry
        for (left, right), ids in zip(pairs, texts, strict=True)
        if ids != [left.bare, right.spaced]
        for entry in (left, right)
    ] or list(line)  # no pair is to blame: give the whole line up
