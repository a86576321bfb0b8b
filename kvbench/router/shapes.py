"""The shapes that a body is decoded into in one go, and what decodes them.

They stand apart because a compiled class (`scripts/compiled.py`) says less of its fields than a
decoder must know.
"""

from __future__ import annotations

import msgspec


class Said(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message that is a role and a text."""

    role: str
    content: str


class Plain(msgspec.Struct, gc=False):
    """A chat of such messages."""

    messages: list[Said]
    model: str = ""
    stream: bool = False
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()


class Named(msgspec.Struct):
    """Whatever asks for a model."""

    model: str = ""


PLAIN = msgspec.json.Decoder(Plain)
NAMED = msgspec.json.Decoder(Named)
