"""Anthropic's messages (`/v1/messages`) at a simulated pod: as a chat in, as events out.

vLLM makes a chat of them and its answer's chunks into events; so does this. What to notice in its
answers: a stream begins when its first token comes, with all of the prompt's tokens as its input;
the last event but one counts what was neither read from the cache nor written to it; what was
refused for its form is told in OpenAI's form, all else in Anthropic's.

Refuses pictures, as the model would. Nothing is thought here; that none is wanted is always "none"
for the template, where vLLM looks first if the template knows that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from kvbench.pod.errors import to_json
from kvbench.pod.request import MAX_STOPS, parse_chat, validate
from kvbench.text.conversation import without_bill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvbench.pod.face import Finished, Usage
    from kvbench.pod.request import Ask, Conversation

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"


class _Block(BaseModel):
    """A piece of a content."""

    type: Literal[
        "text", "image", "tool_use", "tool_result", "tool_reference", "thinking",
        "redacted_thinking",
    ]  # fmt: skip
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    content: str | list[dict[str, object]] | None = None


class _Turn(BaseModel):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    """A tool."""

    name: str
    description: str | None = None
    input_schema: dict[str, object]
    strict: bool | None = None
    defer_loading: bool | None = None

    def chat(self) -> dict[str, object]:
        """Return it in OpenAI's form; a schema that says no type is one of an object."""
        schema = {**self.input_schema, "type": self.input_schema.get("type", "object")}
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": schema,
            "strict": self.strict,
            "defer_loading": self.defer_loading,
        }
        return {"type": "function", "function": function}


class _Choice(BaseModel):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]


class _Output(BaseModel):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class _Thinking(BaseModel):
    """Whether to think."""

    type: Literal["enabled", "disabled", "adaptive"]


class _Said(BaseModel):
    """What both paths know."""

    model: str
    messages: list[_Turn]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    output_config: _Output | None = None
    thinking: _Thinking | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @property
    def effort(self) -> str | None:
        """How much to think."""
        if self.thinking is not None and self.thinking.type == "disabled":
            return "none"
        return None if self.output_config is None else self.output_config.effort


class _Body(_Said):
    """The body of /v1/messages."""

    max_tokens: int
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    cache_salt: str | None = None

    @field_validator("max_tokens")
    @classmethod
    def _positive(cls, most: int) -> int:
        if most <= 0:
            raise ValueError("max_tokens must be positive")
        return most


def parse_messages(value: object, model: str, *, system_first: bool, takes_tools: bool) -> Ask:
    """Return what a body of messages asks for.

    Args:
        value: The body's JSON.
        model: The served model's name, for messages.
        system_first: Whether the template takes what the system says in the first message only.
        takes_tools: Whether tools may be called (`--enable-auto-tool-choice`).

    Raises:
        ApiError: It is refused.
    """
    body = validate(_Body, value)
    stream = {"stream": True, "stream_options": _ALL_USAGE} if body.stream else {}
    chat = {
        **_chat(body, system_first=system_first),
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "cache_salt": body.cache_salt,
        **stream,
    }
    return parse_chat(chat, model, takes_tools=takes_tools, no_tools=True)


def parse_count(
    value: object, model: str, *, system_first: bool, takes_tools: bool
) -> tuple[str, Conversation]:
    """Return of which model the tokens of which conversation are to be counted.

    Raises:
        ApiError: It is refused.
    """
    body = validate(_Said, value)
    chat = _chat(body, system_first=system_first)
    ask = parse_chat(chat, model, takes_tools=takes_tools, no_tools=True)
    return body.model, ask.conversation


_ALL_USAGE = {"include_usage": True, "continuous_usage_stats": True}


def _chat(body: _Said, *, system_first: bool) -> dict[str, object]:
    """Return the conversation as the body of a chat has it."""
    chat: dict[str, object] = {
        "model": body.model,
        "messages": list(_messages(body, first=system_first)),
        "chat_template_kwargs": body.chat_template_kwargs,
        "reasoning_effort": body.effort,
    }
    if body.tools is not None:
        choice = "auto" if body.tool_choice is None else body.tool_choice.type
        chat |= {"tools": [tool.chat() for tool in body.tools], "tool_choice": choice}
    return chat


def _messages(body: _Said, *, first: bool) -> Iterator[dict[str, object]]:
    """Yield the messages; what the system says is one text, without the line for billing."""
    system = body.system or ""
    said = [system if isinstance(system, str) else _system(system)]  # which chats strip, too
    if first:
        said += [_system(turn.content) for turn in body.messages if turn.role == "system"]
    if any(said):
        yield {"role": "system", "content": "".join(said)}
    for turn in body.messages:
        if turn.role != "system":
            yield from _turn(turn)
        elif not first and (text := _system(turn.content)):
            yield {"role": "system", "content": text}


def _system(content: str | list[_Block]) -> str:
    """Return what the system says."""
    if isinstance(content, str):
        return without_bill(content)
    return "".join(without_bill(block.text) for block in content if block.type == "text")


def _turn(turn: _Turn) -> Iterator[dict[str, object]]:
    """Yield the messages of a turn: what tools answered stands before what else was said."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    for block in turn.content:
        if block.type == "tool_result" and turn.role == "user":
            yield {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": _told(block)}
    thoughts = [block.thinking or "" for block in turn.content if block.type == "thinking"]
    calls = [_call(block) for block in turn.content if block.type == "tool_use"]
    parts = [part for block in turn.content if (part := _part(block, turn.role)) is not None]
    message: dict[str, object] = {"role": turn.role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        single = len(parts) == 1 and parts[0]["type"] == "text"
        message["content"] = parts[0]["text"] if single else parts
    if parts or turn.role == "assistant":
        yield message


def _part(block: _Block, role: str) -> dict[str, object] | None:
    """Return what a block is of a content, if it is of it."""
    if block.type == "image":
        return {"type": "image_url"}
    if block.type == "tool_result" and role != "user":
        return {"type": "text", "text": f"Tool result: {block.content or ''}"}
    return {"type": "text", "text": block.text} if block.type == "text" and block.text else None


def _call(block: _Block) -> dict[str, object]:
    """Return a call in OpenAI's form."""
    function = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
    return {"id": block.id or "call_0", "type": "function", "function": function}


def _told(block: _Block) -> str:
    """Return what a tool answered."""
    content = block.content or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


class MessagesFace:
    """Encodes the answer to one body of messages.

    Args:
        identity: The answer's id.
        model: The served name.

    Attributes:
        opening: See `kvbench.pod.face.AnyFace`; so are the rest.
    """

    def __init__(self, identity: str, model: str) -> None:
        self._ident: dict[str, object] = {"id": identity, "type": "message", "role": "assistant"}
        self._model = model
        self.opening, self.done, self.tells = b"", b"", False
        self._begun = False
        self._ending: dict[str, object] = {}

    def piece(self, _index: int) -> tuple[bytes, bytes]:
        """Return nothing: with each piece its usage is told, so that it is made anew."""
        return b"", b""

    def role(self, _index: int, _prompt_ids: Sequence[int] | None, usage: Usage | None) -> bytes:
        """Return the event that begins an answer."""
        message = {**self._ident, "content": [], "model": self._model, **_ENDING, "usage": usage}
        if usage is not None:
            message["usage"] = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
        return _event("message_start", message=message)

    def chunk(
        self,
        _index: int,
        text: str,
        *,
        reason: str | None = None,
        stop: str | int | None = None,
        **_others: object,
    ) -> bytes:
        """Return the events of a token."""
        said = b""
        if text:
            if not self._begun:
                said = _event("content_block_start", content_block=_text(""), index=0)
            delta = {"type": "text_delta", "text": text}
            said += _event("content_block_delta", delta=delta, index=0)
            self._begun = True
        if reason is not None:
            self._ending = _ending(reason, stop)
        return said

    def usage(self, usage: Usage) -> bytes:
        """Return the events that end a stream."""
        said = _event("content_block_stop", index=0) if self._begun else b""
        said += _event("message_delta", delta=self._ending, usage=_counts(usage))
        return said + _event("message_stop")

    def whole(self, answers: Sequence[Finished], usage: Usage) -> bytes:
        """Return the body of an answer that does not come in pieces; it has no nulls."""
        (answer,) = answers
        ending = {k: v for k, v in _ending(answer.reason, answer.stop).items() if v is not None}
        body = {**self._ident, "content": [_text(answer.text)], "model": self._model, **ending}
        return to_json({**body, "usage": _counts(usage)})


_ENDING = {"stop_reason": None, "stop_sequence": None}


def _text(text: str) -> dict[str, object]:
    """Return a block of text."""
    return {"type": "text", "text": text}


def _event(kind: str, **fields: object) -> bytes:
    """Return an event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind, **fields}))


def _ending(reason: str, stop: str | int | None) -> dict[str, object]:
    """Return why an answer ended, in Anthropic's words."""
    if reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _counts(usage: Usage) -> dict[str, object]:
    """Return the counts; what was read from the cache, or written, is not among the input."""
    counts: dict[str, object] = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
    if usage.cached is not None:
        counts["input_tokens"] = max(usage.prompt - usage.cached - usage.created, 0)
        counts["cache_creation_input_tokens"] = usage.created
        counts["cache_read_input_tokens"] = usage.cached
    return counts
