"""Whether an answer has degenerated: pure tests of one text, calibrated on normal ones.

- `loop`, the end repeats itself: it has an exact period of at most 128 words, with at least three
  copies and 32 words, the last word apart; or its last 400 characters zip to less than a quarter.
- `salad`, signs without sense: less than a tenth of the last 200 words are different, or six tenths
  of the characters are neither letters nor digits.
- `echo`, the prompt is said back: one verbatim run of it is more than six tenths of the answer.
- `empty`: no text, though tokens were generated or the answer ended by itself.
- `overflow`, the window ended it: cut for its length before all tokens that were asked for.

Rules:

- What has less than `LEAST_WORDS` words and 400 characters is not judged, but for the last two.
  Those are facts; the others are suspicions, to be read as rates beside those of a short context.
- One answer has one kind, the first that fits in the order above.
- Compression of a whole answer says nothing: it grows with length (zlib > 2.4, which speech
  recognition uses on half a minute, calls every JSON of 2,000 characters degenerate). So only the
  last 400 characters are zipped.
- Fluent nonsense is not found: its words, its lengths and its order are those of normal text.

Words are runs of letters, of digits, or of one sign, and single characters of scripts that do not
part their words. Runs of one sign, and of white space, are layout: they count as one. Thresholds
are those that keep normal English, Chinese, code, JSON and tables under 2 % and catch every loop,
measured on windows of real text; a test measures them anew.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Degeneration: TypeAlias = Literal["loop", "salad", "echo", "empty", "overflow"]
"""What may be wrong with an answer."""

KINDS: tuple[Degeneration, ...] = ("loop", "salad", "echo", "empty", "overflow")

LEAST_WORDS = 32
"""Words below which an answer is not judged."""

_UNPARTED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f"
_WORD = re.compile(rf"[{_UNPARTED}]|[^\W\d_{_UNPARTED}]+|\d+|[^\w\s]|_")
_SIGN = re.compile(r"[^\w\s]|_")
_LAYOUT = re.compile(r"(\s|[^\w\s])\1+")
_SQUEEZED = 0.1
_TAIL_CHARACTERS = 4_500  # enough for three copies of 128 words
_LONGEST_PERIOD = 128
_COPIES = 3
_TAIL_WORDS = 200
_DIFFERENT = 0.10
_ZIPPED_CHARACTERS = 400
_ZIPPED = 4.0
_NOT_ALPHANUMERIC = 0.6
_ECHOED = 0.6
_LEAST_ECHO = 64  # characters
_NEEDLE = 64  # characters that are looked for
_PLACES = 100  # of the prompt that are looked at closer


def degeneration(
    answer: str,
    prompt: str = "",
    *,
    finish_reason: str | None = None,
    generated: int | None = None,
    asked: int | None = None,
) -> Degeneration | None:
    """Return what is wrong with an answer, None if nothing is found.

    Args:
        answer: Its text.
        prompt: What was asked, as far as it is known.
        finish_reason: Why it ended.
        generated: Its tokens.
        asked: The tokens that it might have had.
    """
    end = answer[-_TAIL_CHARACTERS:]
    squeezed = _LAYOUT.sub(r"\1", end)
    tail = words(squeezed)
    if len(tail) >= LEAST_WORDS or len(end) >= _ZIPPED_CHARACTERS:
        if loops(tail) or zips(squeezed) or len(squeezed) < _SQUEEZED * len(end):
            return "loop"
        if is_salad(tail, squeezed):
            return "salad"
        if echoes(answer, prompt):
            return "echo"
    if not answer.strip() and (generated or finish_reason == "stop"):
        return "empty"
    if finish_reason == "length" and None not in {generated, asked} and generated < asked:  # type: ignore[operator]  # neither is None
        return "overflow"
    return None


def refused_for_length(status: int | None, message: str) -> bool:
    """Return whether a server refused a request because it does not fit into its window."""
    return status == 400 and "context length" in message.lower()


def words(text: str) -> list[str]:
    """Return the words of a text without its layout, in order."""
    return _WORD.findall(text)


def loops(tail: list[str]) -> bool:
    """Return whether words end in copies of each other; the last may have been cut."""
    body = tail[-2::-1]  # backwards
    for period in range(1, min(_LONGEST_PERIOD, len(body) // _COPIES) + 1):
        wanted = max(_COPIES * period, LEAST_WORDS)
        if wanted <= len(body) and body[: wanted - period] == body[period:wanted]:
            return True
    return False


def zips(squeezed: str) -> bool:
    """Return whether the end of an answer hardly holds any information."""
    data = squeezed[-_ZIPPED_CHARACTERS:].encode(errors="replace")
    enough = len(squeezed) >= _ZIPPED_CHARACTERS
    return enough and len(data) > _ZIPPED * len(zlib.compress(data))


def is_salad(tail: list[str], squeezed: str) -> bool:
    """Return whether an answer is a handful of words, or signs that are no words."""
    last = tail[-_TAIL_WORDS:]
    if len(last) == _TAIL_WORDS and len(set(last)) < _DIFFERENT * _TAIL_WORDS:
        return True
    characters = sum(map(len, squeezed.split()))
    return len(_SIGN.findall(squeezed)) > _NOT_ALPHANUMERIC * characters


def echoes(answer: str, prompt: str) -> bool:
    """Return whether most of an answer is one piece of the prompt.

    A run of more than six tenths of the answer covers its middle fifth, wherever it begins: so only
    where that stands in the prompt must be looked closer.
    """
    answer = answer.strip()
    length = len(answer)
    start = length * 2 // 5
    middle = answer[start : min(length * 3 // 5, start + _NEEDLE)]
    if length < _LEAST_ECHO:
        return False
    at = prompt.find(middle)
    for _ in range(_PLACES):
        if at < 0:
            return False
        if _common(answer, prompt, start, at) > _ECHOED * length:
            return True
        at = prompt.find(middle, at + 1)
    return False


def _common(answer: str, prompt: str, here: int, there: int) -> int:
    """Return the length of the run that two texts share around two places in them."""
    after = _longest(
        lambda n: answer[here : here + n] == prompt[there : there + n],
        min(len(answer) - here, len(prompt) - there),
    )
    before = _longest(
        lambda n: answer[here - n : here] == prompt[there - n : there], min(here, there)
    )
    return before + after


def _longest(same: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` for which texts are the same, as for all below it."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if same(middle) else (low, middle - 1)
    return low
