"""Do a server's tokenizer and chat template make the tokens that ours make?

A plan's lengths, its ceiling and its shared prefixes are exact for one tokenizer and one template.
Whether the server has the same is asked with a few probes (vLLM's `/tokenize` takes both forms) and
decided here: equal token by token, or a sentence that names the first difference.

The probes are chosen so that different vocabularies, normalizers and pre-tokenizers split them
differently: runs of spaces and line breaks, digits, capitals, apostrophes, code, several scripts,
an emoji of several code points. Beginning-of-text tokens that a server puts before a text, but not
before a chat, are no difference: prompts are sent as chats or as token ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.text.tokenizer import Tokenizer

PROBE_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs, doesn't it?\n\n"
    "\tdef f(x):  return x**2  # 1234567\n"
    "naïve Straße — Ελληνικά кириллица 漢字かな 👩‍💻 HTTPServerError   end"
)
"""Text on which two different tokenizers hardly agree by accident."""

PROBE_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Say a × b.",
            "parameters": {
                "type": "object",
                "required": ["b"],
                "properties": {"b": {"type": "number"}, "a": {"enum": [1, 2.5, None]}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "strict": True}},
)
"""Tools that show how they are laid out, and what stands for what a client leaves out."""

PROBE_CALLS = (
    {"role": "system", "content": "Answer briefly."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is 7 × 6?"},
            {"type": "text", "text": "Be quick."},
        ],
    },
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call4t7x6",
                "type": "function",
                "function": {"name": "multiply", "arguments": '{"b":7, "a":6.0}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call4t7x6", "content": "42"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "And 7 × 60?"},
)
"""Messages that show how calls and contents of several parts are laid out."""

PROBE_PARTS = (PROBE_CALLS[1],)
"""The same without calls: not every template knows them."""

PROBE_CHAT = (
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is 7 times 6?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "And 7 times 60?"},
)
"""Messages that show where a template puts each role."""


def text_difference(tokenizer: Tokenizer, theirs: Sequence[int]) -> str | None:
    """Return how the server's tokens of `PROBE_TEXT` differ from ours; None: they do not.

    Args:
        tokenizer: Ours.
        theirs: What the server made of the text, with special tokens or without.
    """
    ours = tokenizer.encode(PROBE_TEXT)
    with_special = tokenizer.encode(PROBE_TEXT, add_special_tokens=True)
    if list(theirs) in (ours, with_special) or list(theirs[1:]) == ours:
        return None
    return _difference(tokenizer, ours, theirs, "the tokenizer")


def chat_difference(tokenizer: Tokenizer, theirs: Sequence[int]) -> str | None:
    """Return how the server's tokens of `PROBE_CHAT` differ from ours; None: they do not.

    Args:
        tokenizer: Ours, with its chat template.
        theirs: What the server made of the messages, with the generation prompt.

    Raises:
        InputError: Our tokenizer has no chat template.
    """
    ours = tokenizer.encode_chat(PROBE_CHAT)
    if list(theirs) == ours:
        return None
    return _difference(tokenizer, ours, theirs, "the chat template")


def _difference(tokenizer: Tokenizer, ours: Sequence[int], theirs: Sequence[int], what: str) -> str:
    """Return a sentence that names the first difference."""
    pairs = zip(ours, theirs, strict=False)
    alike = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    shown = [_shown(tokenizer, ids, alike) for ids in (ours, theirs)]
    return (
        f"{what} of the server is another one than ours ({tokenizer.path}): {len(theirs)} tokens "
        f"of a probe where ours are {len(ours)}; the first {alike} are alike, then ours is "
        f"{shown[0]}, theirs {shown[1]}"
    )


def _shown(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> str:
    """Return a token as our vocabulary spells it."""
    if place >= len(ids):
        return "at its end"
    spelling = tokenizer.token(ids[place])
    return f"{ids[place]}" if spelling is None else f"{ids[place]} ({spelling!r})"
