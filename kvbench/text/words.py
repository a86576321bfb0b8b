"""Plain words: words that are one token each, wherever they stand.

A prompt of exactly N tokens is N such words joined by single spaces. For a word to count as one,
two things must hold in the tokenizer at hand, whatever its kind (byte-level BPE, Unigram with
metaspaces, WordPiece):

- alone, it is one token (its *bare* form: at the beginning of a message);
- after a word and a space it is one token that does not melt into its neighbours (its *spaced*
  form). In some vocabularies both forms are the same token.

Both are found by trying: the vocabulary's own entries that look like words are encoded, those that
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
    """

    words: tuple[str, ...]
    bare_ids: tuple[int, ...]
    spaced_ids: tuple[int, ...]


def find_plain_words(tokenizer: Tokenizer) -> PlainWords:
    """Return the plain words of `tokenizer`, in the order of its vocabulary.

    Raises:
        InputError: It has too few of them.
    """
    spellings = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    found: list[tuple[str, int, int]] = []
    for shape in _SHAPES:
        looks = re.compile(shape, re.ASCII)
        candidates = dict.fromkeys(
            word
            for spelling in spellings
            if spelling is not None and looks.fullmatch(word := spelling.lstrip(_MARKS))
        )
        found = _stable(tokenizer, _single(tokenizer, list(candidates)[:_CANDIDATES]))[:MOST]
        if len(found) >= 4 * FEWEST:
            break
    if len(found) < FEWEST:
        raise InputError(
            f"expected at least {FEWEST} words that are one token wherever they stand, "
            f"found {len(found)}",
            where=str(tokenizer.path / "tokenizer.json"),
            hint="prompts of exact length cannot be made with it: choose another tokenizer",
        )
    words, bare, spaced = zip(*found, strict=True)
    return PlainWords(words, bare, spaced)


def _single(tokenizer: Tokenizer, candidates: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (word, bare id, spaced id) of the candidates that are one token in both forms."""
    alone = tokenizer.encode_batch(candidates)
    twice = tokenizer.encode_batch([f"{word} {word}" for word in candidates])
    found = []
    for word, one, two in zip(candidates, alone, twice, strict=True):
        if len(one) == 1 and len(two) == 2 and two[0] == one[0]:
            spelling = tokenizer.token(two[1])
            if spelling is not None and spelling.lstrip(_MARKS) == word:  # not "unknown"
                found.append((word, one[0], two[1]))
    return found


def _stable(
    tokenizer: Tokenizer, found: Sequence[tuple[str, int, int]]
) -> list[tuple[str, int, int]]:
    """Return those that stay single tokens among each other.

    Tried on random orders of all words: where they are few, on enough of them to meet every pair.
    """
    chance = random.Random(0)  # noqa: S311 - any fixed order will do
    kept = list(found)
    while kept:
        rounds = max(4, min(8 * len(kept), 32768 // len(kept)))
        mixed = [word for _ in range(rounds) for word in chance.sample(kept, len(kept))]
        lines = [mixed[i : i + 32] for i in range(0, len(mixed), 32)]
        texts = tokenizer.encode_batch([" ".join(word for word, _, _ in line) for line in lines])
        broken = {
            word
            for line, ids in zip(lines, texts, strict=True)
            if ids != [line[0][1], *(spaced for _, _, spaced in line[1:])]
            for word in _broken_words(tokenizer, line)
        }
        if not broken:
            return kept
        kept = [entry for entry in kept if entry not in broken]
    return []


def _broken_words(
    tokenizer: Tokenizer, line: Sequence[tuple[str, int, int]]
) -> list[tuple[str, int, int]]:
    """Return the words of the pairs in `line` that do not tokenise to their two ids."""
    pairs = list(pairwise(line))
    texts = tokenizer.encode_batch([f"{left[0]} {right[0]}" for left, right in pairs])
    return [
        word
        for (left, right), ids in zip(pairs, texts, strict=True)
        if ids != [left[1], right[2]]
        for word in (left, right)
    ] or list(line)  # no pair is to blame: give the whole line up
