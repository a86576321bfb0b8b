"""What a pod says: words that mean nothing, the same for the same prompt, one token each.

An answer is drawn from the tokenizer's plain words (see `kvbench.text.words`) under a key that is
made from the prompt. So the same prompt gets the same answer from every pod with the same seed;
and the answer's text, sent back as part of the next turn's prompt, tokenises to the very ids that
were generated. A client that echoes real answers therefore hits the blocks that they filled, as it
does with a real model.

Answers have a natural length, drawn with the words: a model would end somewhere, too. It counts
unless the client says `ignore_eos`; the token that ends an answer is the tokenizer's end of text.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from enum import IntEnum
from typing import TYPE_CHECKING

from kvbench.seeds import rng

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.pod.faults import Illness
    from kvbench.text.compose import Composer

_STRIDE = 64  # words drawn at once
_FEW = 10  # words that a salad is made of

SHORTEST, LONGEST = 128, 511
"""Natural lengths of answers, in tokens, the end included; equally likely."""


class After(IntEnum):
    """What stands before an answer; the number is the place in `Composer.opening_ids`."""

    WORD = 0
    NOTHING = 1
    LINE_BREAK = 2


def answer_key(prompt: Sequence[int], salt: str | None, seed: int | None, index: int) -> str:
    """Return the key of answer number `index` to a prompt."""
    digest = hashlib.blake2b(array("I", prompt).tobytes(), digest_size=12).hexdigest()
    return f"answer\x1f{digest}\x1f{salt or ''}\x1f{seed or 0}\x1f{index}"


def natural_length(key: str) -> int:
    """Return how many tokens the answer has if nothing else ends it."""
    drawn = hashlib.blake2b(key.encode(), digest_size=8, person=b"length").digest()
    return SHORTEST + int.from_bytes(drawn, "big") % (LONGEST - SHORTEST + 1)


class Answer:
    """The tokens of one answer and their text, drawn as far as they are needed.

    Args:
        composer: Draws words.
        key: See `answer_key`.
        after: What its first word stands after; decides its token, and whether a space is said.
        end: How many tokens there are, with the last one ending it; None: as many as are asked for.
        end_id: The token that ends it.
        degenerate: In which way it is to be ill, None if it is not.
        echoed: For an echo: tokens of the prompt, and the text that each of them adds.
    """

    __slots__ = (
        "_after", "_composer", "_degenerate", "_echoed", "_end_id", "_ids", "_key", "_last",
        "_words",
    )  # fmt: skip

    def __init__(
        self,
        composer: Composer,
        key: str,
        *,
        after: After,
        end: int | None = None,
        end_id: int | None = None,
        degenerate: Illness | None = None,
        echoed: Sequence[tuple[int, str]] = (),
    ) -> None:
        self._composer = composer
        self._key = key
        self._after = after
        self._last = end - 1 if end is not None and end_id is not None else sys.maxsize
        self._end_id = end_id or 0
        self._degenerate = degenerate if echoed or degenerate != "echo" else "loop"
        self._echoed = echoed
        self._ids: list[int] = []
        self._words: list[str] = []

    def token(self, index: int) -> int:
        """Return token number `index`, from 0."""
        if index >= self._last:
            return self._end_id
        while index >= len(self._ids):
            self._draw()
        return self._ids[index]

    def text(self, index: int) -> str:
        """Return what token number `index` adds to the text."""
        word = self._words[index]
        if self._degenerate == "echo":
            return word
        return word if index == 0 and self._after != After.WORD else " " + word

    def _draw(self) -> None:
        """Draw the next words."""
        if self._degenerate == "echo":
            self._ids += [token for token, _ in self._echoed]
            self._words += [text for _, text in self._echoed]
            return
        key = f"{self._key}\x1f{0 if self._degenerate else len(self._ids) // _STRIDE}"
        ids, words = self._composer.pieces(key, _STRIDE)
        if self._degenerate is not None:
            few = 1 if self._degenerate == "loop" else _FEW
            chosen = rng(0, self._key, len(self._ids)).choices(range(few), k=_STRIDE)
            ids, words = [ids[n] for n in chosen], [words[n] for n in chosen]
        if not self._ids:
            ids[0] = self._composer.opening_ids(key)[self._after]
        self._ids += ids
        self._words += words


class StopText:
    """Watches an answer's text for strings that end it.

    As vLLM does it: as many characters are held back as could be the beginning of a stop string,
    whether they look like one or not; of several strings the one that is complete first counts.

    Args:
        stops: Strings that end the answer.
        include: Whether the string itself is said.

    Attributes:
        matched: The string that ended the answer.
    """

    __slots__ = ("_held", "_include", "_said", "_stops", "_text", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = 0 if include else max(map(len, stops)) - 1
        self._text = ""
        self._said = 0
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Take a piece of text; return what may be said by now."""
        before = len(self._text)
        self._text += piece
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            at = self._text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0 and (found is None or at + len(stop) < found[0]):
                found = (at + len(stop), at, stop)
        if found is not None:
            end, at, self.matched = found
            self._text = self._text[: end if self._include else at]
            return self.rest()
        return self._say(max(self._said, len(self._text) - self._held))

    def rest(self) -> str:
        """Return what is held back; the answer has ended."""
        return self._say(len(self._text))

    def _say(self, end: int) -> str:
        """Return the text up to `end` that was not said yet."""
        said, self._said = self._said, max(self._said, end)
        return self._text[said:end]
