"""The shapes that a body is decoded into in one go, and what decodes them.

They stand apart because a compiled class (`scripts/compiled.py`) says less of its fields than a
decoder must know.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Switch: TypeAlias = bool | Literal[0, 1, "true", "false", "True", "False", "0", "1"]
"""Yes or no, in the words that vLLM takes for them too; those of most clients, not all."""

Off: TypeAlias = Literal[False, 0, "false", "False", "0"]
"""The words for no."""

ON: Final = (True, "true", "True", "1")
"""The words for yes; 1 is equal to True."""


class Said(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message that is a role and a text."""

    role: str
    content: str


class Told(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of an agent's: also a call, what was answered to one, thoughts; None is nothing."""

    role: str
    content: str | list[object] | None = None
    tool_calls: list[object] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[object] | None = None
    cache_control: msgspec.Raw = msgspec.Raw()


class Beside(msgspec.Struct, gc=False):
    """What a chat says beside its messages."""

    model: str | None = ""
    stream: Switch | None = False
    cache_salt: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    prompt_logprobs: int | None = None
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()


class Plain(Beside, kw_only=True, gc=False):
    """A chat of messages that are role and text."""

    messages: list[Said]


class Agents(Beside, kw_only=True, gc=False):
    """A chat of messages as agents send them."""

    messages: list[Told]


class Opening(msgspec.Struct, frozen=True, gc=False):
    """What stands before a chat's messages: tools, and what is said to the system apart.

    Attributes:
        keys: Of its whole pieces.
        key: That its messages' first piece comes after.
        tail: Its text behind its whole pieces.
    """

    keys: list[int]
    key: int
    tail: bytes


class Start(msgspec.Struct, frozen=True, gc=False):
    """What bodies begin with: so many whole stretches of bytes, the same in all of them.

    Attributes:
        raw: The last of these stretches.
        before: What stands before that; None before the first.
        at: Bytes of the body that are done with: the next is a message of the chat, or the first
            of all.
        lead: What to put before the rest of a body, so that it is JSON which says the same.
        tools: The tools that were named there, as JSON.
        system: What was said to the system there, as JSON.
        messages: Those in the bytes that are done with.
        opening: What stands before the chat's messages, wherever the body has it.
        keys: Of pieces that end in these messages, but not in those of `before`.
        key: Of the last piece that ends in these messages.
        text: Canonical text behind that piece.
        size: Bytes of canonical text behind the whole pieces of the opening.
    """

    raw: bytes
    before: Start | None
    at: int
    lead: bytes
    tools: msgspec.Raw
    system: msgspec.Raw
    messages: int
    opening: Opening
    keys: list[int]
    key: int
    text: bytes
    size: int


class Named(msgspec.Struct):
    """Whatever asks for a model."""

    model: object = ""


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
AGENTS = msgspec.json.Decoder(Agents)
FIELDS = msgspec.json.Decoder(Fields)
NAMED = msgspec.json.Decoder(Named)
