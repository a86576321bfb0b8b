"""The language of `tests/cases/kvcache/*.cache`: what a prefix cache must do, written for reading.

    pool 4 blocks of 16        a new cache of four usable blocks
    ask r1: A B c → hit 0      request r1 arrives, finds no block, and holds three from now on
    ask r2: A B C D E → waits  it does not fit, and nothing changes
    free r1                    r1 ends
    clear                      the cache is reset; `clear refused` where it must not be
    events: stored A B, removed C, cleared      all that happened since the last such line

A capital letter is a full block of its own content, a small one the first half of that block; the
same letter means the same tokens, and `A B` and `B` hold different blocks B, because what stands
before a block is part of it. `#` begins a comment. Any backend can be asked to play a file.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Protocol

CASES = sorted((Path(__file__).parent / "cases" / "kvcache").glob("*.cache"))


class Backend(Protocol):
    """A prefix cache that can be played to."""

    def pool(self, blocks, size):
        """Begin anew with `blocks` usable blocks of `size` tokens."""

    def ask(self, request, tokens):
        """Let a request hold blocks; return how many it hit, None if it does not fit."""

    def free(self, request):
        """End a request."""

    def clear(self):
        """Reset the cache; return whether it was done."""

    def events(self):
        """Return events since the last call: ("stored", tokens up to the block's end) and so on."""


def verbs_of(path):
    """Return how often each verb begins a line of a file."""
    verbs = r"^(pool|ask|free|clear|events)\b"
    return Counter(re.findall(verbs, path.read_text(encoding="utf-8"), re.MULTILINE))


class Case:
    """One file, played line by line; what does not hold is an AssertionError with its place.

    `played` counts what was played, by verb.
    """

    def __init__(self, path, backend):
        self.path = path
        self.backend = backend
        self.size = 0
        self.played = Counter()
        self.verbs = [
            (r"pool (\d+) blocks of (\d+)", self.pool),
            (r"ask (\w+): ([A-Za-z ]+) → (?:hit (\d+)|waits)", self.ask),
            (r"free (\w+)", self.free),
            (r"clear( refused)?", self.clear),
            (r"events:(.*)", self.events),
        ]

    def play(self):
        """Play the whole file."""
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            sentence = line.partition("#")[0].strip()
            if sentence:
                found, expected = self.do(sentence, number)
                place = f"{self.path.name}:{number}: {sentence}"
                assert found == expected, f"{place}\n  expected {expected}\n  got      {found}"

    def do(self, sentence, number):
        """Play one sentence; return what was found and what was expected."""
        for pattern, verb in self.verbs:
            if match := re.fullmatch(pattern, sentence):
                self.played[verb.__name__] += 1
                return verb(*match.groups())
        raise AssertionError(f"{self.path.name}:{number}: no such sentence: {sentence}")

    def tokens(self, letters):
        """Return the tokens of "A B c"."""
        return [
            ord(letter.upper())
            for letter in letters.split()
            for _ in range(self.size if letter.isupper() else self.size // 2)
        ]

    def pool(self, blocks, size):
        """Begin anew."""
        self.size = int(size)
        return self.backend.pool(int(blocks), self.size), None

    def ask(self, request, letters, hit):
        """Compare the blocks hit, or that the request waits."""
        return self.backend.ask(request, self.tokens(letters)), None if hit is None else int(hit)

    def free(self, request):
        """End a request."""
        return self.backend.free(request), None

    def clear(self, refused):
        """Compare whether the cache was reset."""
        return self.backend.clear(), refused is None

    def events(self, listed):
        """Compare what happened, block for block, each by its last letter."""
        found = [
            " ".join([kind, *(chr(t[-1]) for t in rest)]) for kind, *rest in self.backend.events()
        ]
        expected = []
        for group in filter(None, map(str.strip, listed.split(","))):
            kind, *letters = group.split()
            expected += [f"{kind} {letter}" for letter in letters] or [kind]
        return found, expected
