"""What the body of `/v1/responses` says of a conversation, as vLLM 0.32 understands it.

A response's input is a list of items, of which several may make one message: thoughts, a text and
calls that follow each other are one turn of the assistant. Read from vLLM's
`entrypoints/openai/responses`, and held to it by `tests/vllm/test_chats.py`.

What a server itself answers may be sent back as it came, with the nulls in it.

Does not decode, so that its tokens are not known: what continues another response or an unfinished
message, pictures, thoughts that are encrypted, and tools that are neither functions nor vLLM's to
leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from kvbench.router.conversations import Body, Conversation, arguments_of
from kvbench.text.conversation import (
    CalledFunction,
    Definition,
    KnownTools,
    Message,
    Part,
    PlainCall,
    Spoken,
    Tool,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.text.chat_template import Kept
    from kvbench.text.tokenizer import Tokenizer


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    type: Literal["input_text", "output_text", "reasoning_text", "summary_text"]
    annotations: list[msgspec.Raw] | None = None
    logprobs: list[msgspec.Raw] | None = None
    parsed: None = None


class _Easy(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "system", "developer", "assistant"]
    content: str | list[_Text]
    id: str | None = None
    status: Literal["completed"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    @property
    def known(self) -> bool:
        """Whether it is known what becomes of it: of an answer in parts, the first text."""
        content = self.content
        if self.role == "assistant" and not isinstance(content, str):
            return bool(content) and content[0].type == "output_text"
        texts = () if isinstance(content, str) else content
        return self.id is self.status is None and all(
            part.type == "input_text" and part.annotations is part.logprobs is None
            for part in texts
        )


class _Said(_Easy, tag="message"):
    """The same, with its type."""


class _Called(msgspec.Struct, forbid_unknown_fields=True, tag="function_call"):
    name: str
    arguments: str
    call_id: str
    id: str | None = None
    status: Literal["completed"] | None = None
    namespace: None = None
    caller: None = None
    parsed_arguments: None = None
    apart: None = msgspec.field(name="async", default=None)
    apart_: None = msgspec.field(name="async_", default=None)  # as OpenAI's client says it


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    type: Literal["input_text"]


class _Answered(msgspec.Struct, forbid_unknown_fields=True, tag="function_call_output"):
    call_id: str
    output: str | list[_Told]
    id: str | None = None
    status: Literal["completed"] | None = None
    name: None = None
    namespace: None = None
    caller: None = None


class _Thought(msgspec.Struct, forbid_unknown_fields=True, tag="reasoning"):
    summary: list[_Text]
    content: list[_Text] | None = None
    encrypted_content: None = None
    id: str | None = None
    status: Literal["completed"] | None = None


class _Tool(msgspec.Struct):
    type: Literal["function", "web_search"]
    name: str = ""
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class Responses(Body, kw_only=True):
    """The body of `/v1/responses`."""

    input: str | list[msgspec.Raw]
    instructions: str | None = None
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: object = None
    reasoning: _Reasoning | None = None
    chat_template_kwargs: dict[str, object] | None = None
    previous_response_id: None = None
    previous_input_messages: None = None

    @property
    def length(self) -> int:
        """How many items there are."""
        return 1 if isinstance(self.input, str) else len(self.input)

    def unmark(self, mark: str) -> bool:
        """Take away its first item; return whether that says `mark`."""
        return isinstance(self.input, list) and bool(self.input) and _says(self.input.pop(0), mark)

    def spoken(self) -> Spoken | None:
        """Return what its items become, whatever stands around them; None: that decides.

        So it does of a turn of the assistant that may go on in the next item.

        Raises:
            ValueError: It has items of other kinds.
        """
        said = self._said()
        if said is None or (said and said[-1].role == "assistant"):
            return None
        return Spoken(said)

    def _said(self) -> list[Message] | None:
        """Return the messages; None if it is not known what a server makes of them.

        Raises:
            ValueError: It has items of other kinds.
        """
        if isinstance(self.input, str):
            return [Message("user", self.input)]
        items = [_read_item(raw) for raw in self.input]
        known = all(item.known for item in items if isinstance(item, _Easy))
        return _messages(items) if known else None

    def conversation(
        self,
        tokenizer: Tokenizer,  # noqa: ARG002 - as others'
        before: Sequence[Spoken] = (),
    ) -> Conversation | None:
        """Return the conversation; None if it is not known what a server makes of it.

        Its own items come after what was said `before`, its instructions before all.

        Raises:
            ValueError: It has items or tools of other kinds.
        """
        tools: list[Kept] | None = _tools.seen(self.tools)
        if not tools and not (self.tools and msgspec.json.decode(self.tools)):
            tools = None
        said = self._said()
        if said is None:
            return None
        lead = [Message("system", self.instructions)] if self.instructions else []
        effort = None if self.reasoning is None else self.reasoning.effort
        arguments = arguments_of(self.chat_template_kwargs, effort)
        spoken = [Spoken(lead), *before, Spoken(said)]
        return Conversation(spoken, tools, not tools or self.tool_choice != "none", arguments)


_Item: TypeAlias = _Easy | _Called | _Answered | _Thought


def _says(raw: msgspec.Raw, text: str) -> bool:
    """Return whether an item says that, and nothing more."""
    item = _read_item(raw)
    return isinstance(item, _Easy) and item.content == text


def _read_item(raw: msgspec.Raw) -> _Item:
    """Return an item; what has no type is a message."""
    try:
        return _TYPED.decode(raw)
    except msgspec.ValidationError:
        return _EASY.decode(raw)


def _messages(items: Sequence[_Item]) -> list[Message]:
    """Return the messages that items become."""
    said = list[Message]()
    for item in items:
        if isinstance(item, _Answered):
            said.append(Message("tool", _parts(item.output), tool_call_id=item.call_id))
            continue
        if isinstance(item, _Easy) and item.role != "assistant":
            said.append(Message(item.role, _parts(item.content)))
            continue
        last = said[-1] if said and said[-1].role == "assistant" else None
        turn = last or Message("assistant")
        if isinstance(item, _Called):
            function = CalledFunction(item.name, item.arguments)
            call = PlainCall(item.call_id, function, "function")
            turn.tool_calls = [*(turn.tool_calls or []), call]
        elif isinstance(item, _Thought):
            turn = turn if turn.reasoning is None else Message("assistant")
            first = (item.content or item.summary or [_NO_TEXT])[0]
            turn.reasoning = first.text
        else:
            turn = turn if turn.content is None else Message("assistant")
            turn.content = item.content if isinstance(item.content, str) else item.content[0].text
        if turn is not last:
            said.append(turn)
    return said


def _parts(content: str | Sequence[_Text] | Sequence[_Told]) -> str | list[Part]:
    """Return a content as a message has it."""
    return content if isinstance(content, str) else [Part(one.text, "text") for one in content]


def _read_tools(raw: msgspec.Raw) -> list[Tool]:
    """Return the functions among a response's tools: others are not laid out."""
    return [
        Tool(
            Definition(
                tool.name, tool.description, tool.parameters, tool.strict, tool.defer_loading
            )
        )
        for tool in _TOOLS.decode(raw)
        if tool.type == "function"
    ]


_NO_TEXT = _Text("", "reasoning_text")
_TYPED: msgspec.json.Decoder[_Item] = msgspec.json.Decoder(_Said | _Called | _Answered | _Thought)
_EASY = msgspec.json.Decoder(_Easy)
_TOOLS = msgspec.json.Decoder(list[_Tool])
_tools = KnownTools(_read_tools)
