"""What a body says of a conversation, whichever API's form it has; as vLLM 0.32 understands it.

| path | form |
|---|---|
| `/v1/chat/completions` | OpenAI's chats: `Chat` |
| `/v1/messages` | Anthropic's messages: `Messages`, which vLLM turns into such a chat first |
| `/v1/responses` | OpenAI's responses: `kvbench.router.inputs` |

Read from vLLM's `entrypoints/openai/chat_completion` and `entrypoints/anthropic`, and held to them
by `tests/vllm/test_chats.py`. What was not tried there does not decode here: the body's tokens are
not known then. Nor are they where the server's own settings decide, and nobody here knows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from kvbench.router.shapes import ON, Off, Switch
from kvbench.text.conversation import (
    CalledFunction,
    Definition,
    KnownTools,
    Message,
    Part,
    Spoken,
    Tool,
    ToolCall,
    read_tools,
    without_bill,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvbench.text.chat_template import Kept
    from kvbench.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is handed.

    Attributes:
        said: What was said.
        tools: What may be called; None is nothing.
        certain: Whether the tools are there for certain: where none may be called, a server may
            have been told to leave them out.
        arguments: What the client hands to the template besides.
        answered: Whether the prompt ends where an answer begins.
    """

    said: Sequence[Spoken]
    tools: Sequence[Kept] | None = None
    certain: bool = True
    arguments: Mapping[str, object] = field(default_factory=dict)
    answered: bool = True

    @property
    def messages(self) -> list[Message]:
        """All messages."""
        return [message for some in self.said for message in some.messages]

    @property
    def plain(self) -> bool:
        """Whether it is roles and contents, and nothing more."""
        return not (self.tools or self.arguments) and all(some.plain for some in self.said)

    @property
    def sound(self) -> bool:
        """Whether a server takes its messages, as far as they are known to be taken."""
        return any(some.messages for some in self.said) and all(some.sound for some in self.said)


class _Transfer(msgspec.Struct):
    prompt_token_ids: None = None  # which a server would take instead of the conversation


class Body(msgspec.Struct):
    """What of a body decides which tokens the prompt has; None is what may not be there."""

    asked: str | None = msgspec.field(name="model", default=None)
    stream: Switch | None = False
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    cache_salt: str | None = None
    documents: None = None
    chat_template: None = None
    truncate_prompt_tokens: None = None
    prompt_embeds: None = None
    mm_processor_kwargs: None = None
    features: None = None
    prompt_logprobs: None = None  # for which all of the prompt is computed, whatever is cached
    kv_transfer_params: _Transfer | None = None

    @property
    def model(self) -> str:
        """The model asked for, "" if none is."""
        return self.asked or ""


class Chat(Body, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[Message]
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: object = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: Switch = True
    add_special_tokens: Off = False
    continue_final_message: Off = False
    echo: Off = False  # wants probabilities of the prompt

    @property
    def length(self) -> int:
        """How many messages there are."""
        return len(self.messages)

    def unmark(self, mark: str) -> bool:
        """Take away its first message; return whether that says `mark`."""
        return bool(self.messages) and self.messages.pop(0).content == mark

    def spoken(self) -> Spoken | None:
        """Return what its messages are, whatever stands around them; None: that decides."""
        return Spoken(self.messages)

    def conversation(
        self,
        tokenizer: Tokenizer,  # noqa: ARG002 - as others'
        before: Sequence[Spoken] = (),
    ) -> Conversation | None:
        """Return the conversation; None if it is not known what a server makes of it.

        Its own messages come after what was said `before`.
        """
        tools = _tools.seen(self.tools)
        if tools == []:
            return None
        return Conversation(
            [*before, Spoken(self.messages)],
            tools,
            tools is None or self.tool_choice != "none",
            arguments_of(self.chat_template_kwargs, self.reasoning_effort),
            self.add_generation_prompt in ON,
        )


class _Block(msgspec.Struct):
    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str | None = None
    thinking: str | None = None
    id: str = ""
    tool_use_id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    content: str | list[dict[str, object]] | None = None


class _Turn(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _AnthropicTool(msgspec.Struct):
    name: str
    input_schema: dict[str, object]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]


class _Output(msgspec.Struct):
    effort: str | None = None


class Messages(Body, kw_only=True):
    """The body of `/v1/messages`."""

    messages: list[_Turn]
    system: str | list[_Block] | None = None
    tools: msgspec.Raw = msgspec.Raw()
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _Output | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @property
    def length(self) -> int:
        """How many messages there are, at least."""
        return len(self.messages)

    def unmark(self, mark: str) -> bool:
        """Take away its first message; return whether that says `mark`."""
        return bool(self.messages) and self.messages.pop(0).content == mark

    def spoken(self) -> Spoken | None:
        """Return what its messages become, whatever stands around them; None: that decides.

        So it does of what the system says.
        """
        said = list[Message]()
        for turn in self.messages:
            some = list(_turn(turn))
            if turn.role == "system" or None in some:
                return None
            said += filter(None, some)
        return Spoken(said)

    def conversation(
        self, tokenizer: Tokenizer, before: Sequence[Spoken] = ()
    ) -> Conversation | None:
        """Return the conversation; None if it is not known what a server makes of it.

        Its own messages, but for what the system says apart, come after what was said `before`.

        Of a client that wants no thoughts, it is the server's settings that say how little effort
        the template is told to make.
        """
        tools, effort = _anthropic_tools.seen(self.tools), None
        if self.thinking is not None and self.thinking.type == "disabled":
            template = tokenizer.template(tools=tools is not None)
            if template.asks_for("reasoning_effort", "enable_thinking"):
                return None
        elif self.output_config is not None:
            effort = self.output_config.effort
        first = tokenizer.system_first
        said = list[Message]()
        for message in self._said(first=first):
            if message is None:
                return None
            said.append(message)
        callable_ = self.tool_choice is None or self.tool_choice.type != "none"
        arguments = arguments_of(self.chat_template_kwargs, effort)
        spoken = [Spoken(self._lead(first=first)), *before, Spoken(said)]
        return Conversation(spoken, tools, not tools or callable_, arguments)

    def _lead(self, *, first: bool) -> list[Message]:
        """Return what the system says before all else.

        Args:
            first: Whether all that it says goes there.
        """
        system = [self.system] if isinstance(self.system, str) else _texts(self.system or [])
        if first:
            system += [_inline(turn) for turn in self.messages if turn.role == "system"]
        return [Message("system", "".join(system))] if any(system) else []

    def _said(self, *, first: bool) -> Iterator[Message | None]:
        """Yield the messages behind that; None for what is not known."""
        for turn in self.messages:
            if turn.role != "system":
                yield from _turn(turn)
            elif not first and (text := _inline(turn)):
                yield Message("system", text)


def _texts(blocks: Sequence[_Block]) -> list[str]:
    """Return the texts of the system, without the block that only billing wants."""
    return [without_bill(block.text) for block in blocks if block.type == "text"]


def _inline(turn: _Turn) -> str:
    """Return what the system says in the middle of a conversation."""
    content = turn.content
    return without_bill(content) if isinstance(content, str) else "".join(_texts(content))


def _turn(turn: _Turn) -> Iterator[Message | None]:
    """Yield the messages that a turn becomes; None for what is not known.

    What a tool answered goes before what else a user says, whatever its place was.
    """
    if isinstance(turn.content, str):
        yield Message(turn.role, turn.content)
        return
    parts, calls, thoughts = list[Part](), list[ToolCall](), list[str]()
    for block in turn.content:
        if block.type == "text":
            parts += [Part(block.text, "text")] if block.text else []
        elif block.type == "tool_result":
            yield _result(block) if turn.role == "user" else None
        elif turn.role == "user":
            yield None
        elif block.type == "tool_use":
            arguments = bytes(block.input or b"").decode()
            function = CalledFunction(block.name or "", "" if arguments == "null" else arguments)
            calls.append(ToolCall(block.id, function, "function"))
            if not block.id:
                yield None
        elif block.thinking is not None and block.type == "thinking":
            thoughts.append(block.thinking)
    content: str | list[Part] | None = parts[0].text if len(parts) == 1 else parts or None
    if content is not None or turn.role == "assistant":
        yield Message(
            turn.role,
            content,
            tool_calls=calls or None,
            reasoning="".join(thoughts) if thoughts else None,
        )


def _result(block: _Block) -> Message | None:
    """Return what a tool answered; None if there is more to it than text."""
    content = block.content or ""
    if not isinstance(content, str):
        texts = [part.get("text", "") for part in content if part.get("type") == "text"]
        if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
            return None
        content = "\n".join(map(str, texts))
    return Message("tool", content, tool_call_id=block.tool_use_id or "")


def _read_anthropic_tools(raw: msgspec.Raw) -> list[Tool]:
    """Return tools in Anthropic's form; a schema that says no type is one of an object."""
    return [
        Tool(
            Definition(
                tool.name,
                tool.description,
                tool.input_schema | {"type": tool.input_schema.get("type", "object")},
                tool.strict,
                tool.defer_loading,
            )
        )
        for tool in _ANTHROPIC_TOOLS.decode(raw)
    ]


def arguments_of(asked: dict[str, object] | None, effort: str | None) -> dict[str, object]:
    """Return what a server hands to the template of a request's own.

    What a client leaves to it (null, "auto") it does not hand on. Who says how much to think is
    taken to want thoughts.
    """
    given = asked or {}
    told = {name: value for name, value in given.items() if value not in (None, "auto")}
    if effort is not None:
        told["reasoning_effort"] = effort
        if "enable_thinking" not in given:
            told["enable_thinking"] = effort != "none"
    return told


_ANTHROPIC_TOOLS = msgspec.json.Decoder(list[_AnthropicTool])
_tools = KnownTools(read_tools)
_anthropic_tools = KnownTools(_read_anthropic_tools)
