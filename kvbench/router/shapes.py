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
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    prompt_logprobs: int | None = None
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()


class Start(msgspec.Struct, frozen=True, gc=False):
    """What bodies begin with: so many whole stretches of bytes, the same in all of them.

    Attributes:
        raw: The last of these stretches.
        before: What stands before that; None before the first.
        at: Bytes of the body that are done with: the next is a message of the chat, or the first
            of all.
        lead: What to put before the rest of a body, so that it is JSON which says the same.
        messages: Those in the bytes that are done with.
        first: The key that the chat's first piece comes after.
        keys: Of pieces that end in these messages, but not in those of `before`.
        key: Of the last piece that ends in these messages.
        text: Canonical text behind that piece.
        size: Bytes of canonical text in all.
    """

    raw: bytes
    before: Start | None
    at: int
    lead: bytes
    messages: int
    first: int
    keys: list[int]
    key: int
    text: bytes
    size: int


class Named(msgspec.Struct):
    """Whatever asks for a model."""

    model: str = ""


class Fields(msgspec.Struct, gc=False):
    """Of a body of any kind, what is read; the rest of it costs nothing, however much that is."""

    model: object = msgspec.UNSET
    messages: object = msgspec.UNSET
    tools: object = msgspec.UNSET
    prompt: object = msgspec.UNSET
    token_ids: object = msgspec.UNSET
    system: object = msgspec.UNSET
    input: object = msgspec.UNSET
    instructions: object = msgspec.UNSET
    features: object = msgspec.UNSET
    cache_salt: object = msgspec.UNSET
    previous_response_id: object = msgspec.UNSET
    session_id: object = msgspec.UNSET
    prompt_cache_key: object = msgspec.UNSET
    user: object = msgspec.UNSET
    stream: object = msgspec.UNSET
    echo: object = msgspec.UNSET
    logprobs: object = msgspec.UNSET
    prompt_logprobs: object = msgspec.UNSET
    sampling_params: object = msgspec.UNSET

    def given(self) -> dict[str, object]:
        """Return the fields that the body has."""
        read = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in read if value is not msgspec.UNSET}


PLAIN = msgspec.json.Decoder(Plain)
FIELDS = msgspec.json.Decoder(Fields)
NAMED = msgspec.json.Decoder(Named)
