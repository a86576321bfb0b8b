r"""Token ids of short texts, word by word: words that came before are not encoded again.

Theory. A byte-level tokenizer (GPT-2, Llama 3, Qwen, …) cuts a text at its added tokens, and what
lies between them by a regular expression into words; each word is encoded for itself. So the ids of
a text are those of its words in a row, whatever stands around them. The library takes a microsecond
and more for each token of a short text, nearly all of it for cutting and for keeping account of
where everything stood; a dictionary takes a twentieth.

- In ASCII the expression is the same for Python, once `\p{L}` and its like are spelt out.
- Other text is cut only where every one of the `CUTS` cuts for certain: before a space with an
  ASCII letter behind it, if that space is the first. For none of them has one in the middle of what
  is no space. What lies between and is not ASCII is one word.
- A word of ASCII, its bytes spelt as the vocabulary spells them, is for the model alone; another
  is for the whole library, which cuts it as it would in its text.
- A text with an added token in it that is no seam (`kvbench.text.prefix_store`) is left to the
  library, and so is one with many new words.

Refuses (by leaving everything to the library): expressions other than the `CUTS`, normalizers other
than NFC, which leaves ASCII as it is and does not join what is cut here, and models other than BPE.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from typing import TYPE_CHECKING, Final

from tokenizers.models import BPE

from kvbench.text.prefix_store import find_seams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbench.text.tokenizer import Tokenizer

_BEHIND: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS: Final = f"{_SHORT}?"
_FIRST: Final = r"[^\r\n\p{L}\p{N}]?"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = f"{_FIRST}{_UPPER}*{_LOWER}+{_ENDS}|{_FIRST}{_UPPER}+{_LOWER}*{_ENDS}"

CUTS: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_SHORT}|{_FIRST}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BEHIND}",
    rf"{_SHORT}|{_FIRST}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BEHIND}",
    rf"{_CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BEHIND}",
    rf"{_CASED.replace(_ENDS, '')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BEHIND}",
)
"""The expressions that are known: of GPT-2, Llama 3, Qwen, gpt-oss, and Mistral's Tekken."""

_IN_ASCII: Final = {
    r"\p{L}": "A-Za-z", r"\p{N}": "0-9", r"\p{Lu}": "A-Z", r"\p{Ll}": "a-z",
    r"\p{Lt}": "", r"\p{Lm}": "", r"\p{Lo}": "", r"\p{M}": "",
}  # fmt: skip
_PROPERTY: Final = re.compile(r"(\[[^\]]*\])|(\\p\{\w+\})")
_LETTERS: Final = " ?[A-Za-z]+|"  # tried first, these say the same, and most words are such
_CERTAIN: Final = re.compile(r"(?<=\S)(?= [A-Za-z])")
_TRIAL: Final = "It's  A\tcamelCase's 12345 (x): don't\r\n\n  He said:\n\t{\"a\": [1.5]}/\n é ☃ \n"
_SPELT: Final = {byte: 0x100 + byte for byte in range(33)} | {127: 0x121}
_MOST_WORDS: Final = 32_768  # in a generation: two of them take 12 MB
_MOST_NEW: Final = 24  # words of a text: the library takes as long for them as for all of it
_LONGEST: Final = 64  # characters of a word that is kept


class KnownWords:
    """The words of one tokenizer that came before.

    Args:
        tokenizer: Whose ids they are.
        most: Most words in a generation; those not used in the younger are dropped.
        seams: Its seams, which take long to find; None: they are not known.

    Attributes:
        cuts: Whether the tokenizer is one whose words are known.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        most: int = _MOST_WORDS,
        seams: Mapping[str, int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._most = most
        found = find_seams(tokenizer) if seams is None else seams
        self._seams = {text: _packed([id_]) for text, id_ in found.items()}
        others = [token.text for token in tokenizer.added_tokens() if token.text not in self._seams]
        self._others = re.compile("|".join(map(re.escape, others))) if others else None
        self._at_seams = re.compile(f"({'|'.join(map(re.escape, self._seams)) or '(?!)'})")
        self._younger: dict[str, bytes] = dict(self._seams)
        self._older: dict[str, bytes] = {}
        self._model = tokenizer.parts()[2]
        pattern = _pattern(tokenizer) if all(map(str.isascii, others)) and all(others) else None
        self._words = re.compile(pattern or "(?!)", re.ASCII)
        self.cuts = pattern is not None and all(
            list(self._encode(_TRIAL)) == tokenizer.encode(_TRIAL) for _ in range(9)
        )

    def encode_batch(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Return the token ids of each of `texts`, each encoded for itself.

        Special tokens in a text are recognised, and none are added.

        Raises:
            UnicodeEncodeError: A text has halves of characters.
        """
        if not self.cuts:
            return list(self._tokenizer.encode_batch(texts))
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Sequence[int]:
        """Return the token ids of a text."""
        words = self._cut(text)
        if words is None:
            return self._tokenizer.encode(text)
        known = self._younger
        found = list(map(known.get, words))
        if None in found:
            new = [word for word, ids in zip(words, found, strict=True) if ids is None]
            learned = self._learn(list(dict.fromkeys(new)))
            found = [known[word] for word in words] if learned else []
            self._shrink(new)
            if not learned:
                return self._tokenizer.encode(text)
        ids = array("I")
        ids.frombytes(b"".join(found))  # type: ignore[arg-type]  # none of them is None
        return ids

    def _cut(self, text: str) -> list[str] | None:
        """Return the words of a text, and its seams; None: they are not known."""
        words, seam, find = list[str](), False, self._words.findall
        for part in self._at_seams.split(text):
            if seam:
                words.append(part)
            elif self._has_others(part):
                return None
            elif part.isascii():
                words += find(part)
            else:
                for some in _CERTAIN.split(part):
                    words += find(some) if some.isascii() else [some]
            seam = not seam
        return words if sum(map(len, words)) == len(text) else None

    def _has_others(self, part: str) -> bool:
        """Return whether added tokens that are no seams are in a part of a text, or may become."""
        others = self._others
        if others is None:
            return False
        return bool(others.search(part) or others.search(unicodedata.normalize("NFC", part)))

    def _learn(self, new: Sequence[str]) -> bool:
        """Learn words; return whether all are known now, of which there must not be too many."""
        known = self._younger
        if self._older:
            known.update((word, self._older[word]) for word in new if word in self._older)
            new = [word for word in new if word not in known]
        some = new[:_MOST_NEW]
        for word in some:
            if word.isascii():
                tokens = self._model.tokenize(word.translate(_SPELT))
                known[word] = _packed([token.id for token in tokens])
            else:
                known[word] = _packed(self._tokenizer.encode(word))
        return len(some) == len(new)

    def _shrink(self, new: Sequence[str]) -> None:
        """Forget those of the words just learned that are long; and the rest, if they are many."""
        known = self._younger
        for word in new:
            if len(word) > _LONGEST:
                known.pop(word, None)
        if len(known) > self._most:
            self._older, self._younger = known, dict(self._seams)


def _packed(ids: Sequence[int]) -> bytes:
    """Return ids as bytes, which garbage collections do not walk through."""
    return array("I", ids).tobytes()


def _pattern(tokenizer: Tokenizer) -> str | None:
    """Return the expression that cuts ASCII into words; None: it is not known, or more is done."""
    normalizer, cutter, model = tokenizer.parts()
    if not isinstance(model, BPE) or model.dropout is not None:
        return None
    if not isinstance(cutter, dict) or normalizer not in (None, {"type": "NFC"}):
        return None
    steps = cutter.get("pretokenizers", [cutter])
    match steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            expression = CUTS[0]
        case [
            {
                "type": "Split",
                "pattern": {"Regex": expression},
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if expression in CUTS:
            pass
        case _:
            return None
    plain = _LETTERS if _UPPER not in expression else ""
    return plain + _PROPERTY.sub(_spell_out, expression)


def _spell_out(found: re.Match[str]) -> str:
    """Return a class of characters with its properties spelt out in ASCII, or one that is one."""
    text = found[1] or f"[{found[2]}]"
    for name, letters in _IN_ASCII.items():
        text = text.replace(name, letters)
    return text
