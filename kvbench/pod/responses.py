"""OpenAI's responses (`/v1/responses`) at a simulated pod: as a chat in, as events out.

As vLLM without `VLLM_ENABLE_RESPONSES_API_STORE`: it keeps none, so none can be continued or asked
for. What to notice in its answers: a stream begins at once, before the prompt is computed, with all
that was asked repeated twice; events are numbered; usage always tells what was cached; an answer
that is too long is "incomplete" and its stream all the same "completed"; functions are laid out in
the prompt whether they may be called or not, and other tools are not.

Refuses items of other kinds than messages, thoughts, calls and what was answered to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from pydantic import BaseModel

from kvbench.pod.errors import ApiError, to_json
from kvbench.pod.request import Int64, parse_chat, validate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvbench.pod.face import Finished, Usage
    from kvbench.pod.request import Ask

RESPONSES = "/v1/responses"

Fields = dict[str, object]


class _Tool(BaseModel):
    """A tool; only functions are laid out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Fields | None = None
    strict: bool | None = None
    defer_loading: bool | None = None

    def chat(self) -> Fields:
        """Return it in the form of chats."""
        return {"type": "function", "function": self.model_dump(exclude={"type"})}

    def told(self) -> Fields:
        """Return it as answers repeat it."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "strict": self.strict,
            "type": self.type,
            "allowed_callers": None,
            "async": None,
            "defer_loading": self.defer_loading,
            "description": self.description,
            "output_schema": None,
        }


class _Reasoning(BaseModel):
    """How much to think."""

    effort: str | None = None
    generate_summary: str | None = None
    summary: str | None = None


class _Body(BaseModel):
    """The body of /v1/responses."""

    input: str | list[Fields]
    instructions: str | None = None
    model: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    background: bool | None = False
    reasoning: _Reasoning | None = None
    chat_template_kwargs: Fields | None = None
    request_id: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    stream: bool | None = False
    temperature: float | None = None
    tool_choice: str | Fields = "auto"
    tools: list[_Tool] = []
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    cache_salt: str | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = []
    ignore_eos: bool = False

    def told(self) -> Told:
        """Return what an answer repeats."""
        tools = [tool.told() for tool in self.tools]
        return Told(
            {"instructions": self.instructions, "metadata": self.metadata},
            {
                "parallel_tool_calls": self.parallel_tool_calls,
                "temperature": 1.0 if self.temperature is None else self.temperature,
                "tool_choice": self.tool_choice if tools else "none",
                "tools": tools,
                "top_p": 1.0 if self.top_p is None else self.top_p,
                "background": self.background,
            },
            {
                "reasoning": None if self.reasoning is None else self.reasoning.model_dump(),
                "service_tier": self.service_tier,
            },
            {"truncation": self.truncation},
            {"user": self.user},
        )


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer repeats of its request, in the pieces that stand together."""

    said: Fields
    settings: Fields
    service: Fields
    window: Fields
    whose: Fields


def parse_response(value: object, model: str) -> tuple[Ask, Told]:
    """Return what a body of a response asks for, and what its answer repeats.

    Args:
        value: The body's JSON.
        model: The served model's name, for messages.

    Raises:
        ApiError: It is refused.
    """
    body = validate(_Body, value)
    if body.background:
        raise ApiError(
            "This vLLM engine does not support `store=True` and therefore does not support the "
            "background mode. To enable these features, set the environment variable "
            "`VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.",
            kind=_INVALID,
            param="background",
        )
    if body.previous_response_id is not None:
        raise not_kept(body.previous_response_id)
    said: list[Fields] = []
    if body.instructions:
        said.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        said.append({"role": "user", "content": body.input})
    else:
        _add(said, body.input)
    functions = [tool.chat() for tool in body.tools if tool.type == "function"]
    chat: Fields = {
        "messages": said,
        "model": body.model,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "cache_salt": body.cache_salt,
        "seed": body.seed,
        "stop": body.stop,
        "ignore_eos": body.ignore_eos,
        "request_id": body.request_id,
        "chat_template_kwargs": body.chat_template_kwargs,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
    }
    if body.stream:
        usage = {"include_usage": True, "continuous_usage_stats": True}
        chat |= {"stream": True, "stream_options": usage}
    if body.tools:
        chat["tools"] = functions
    ask = parse_chat(chat, model, takes_tools=True, no_tools=True)
    messages = [_as_sent(message) for message in ask.conversation.messages]
    return replace(ask, prompts=replace(ask.conversation, messages=messages)), body.told()


_INVALID = "invalid_request_error"


def not_kept(response: str) -> ApiError:
    """Return the refusal of a response that is not kept."""
    sentence = f"Response with id '{response}' not found."
    return ApiError(sentence, status=404, kind=_INVALID, param="response_id")


def _add(said: list[Fields], items: Iterable[Fields]) -> None:
    """Add the messages that items become; several may make one turn of the assistant.

    Raises:
        ApiError: An item is of another kind.
    """
    for item in items:
        kind, last = item.get("type", "message"), said[-1] if said else {}
        turn: Fields = last if last.get("role") == "assistant" else {"role": "assistant"}
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            calls = turn.get("tool_calls")
            turn["tool_calls"] = [*(calls if isinstance(calls, list) else []), call]
        elif kind == "function_call_output":
            answered = {"content": item.get("output"), "tool_call_id": item.get("call_id")}
            said.append({"role": "tool", **answered})
            continue
        elif kind == "reasoning":
            turn = turn if turn.get("reasoning") is None else {"role": "assistant"}
            turn["reasoning"] = _first_text(item.get("content") or item.get("summary")) or ""
        elif kind == "message" and item.get("role") == "assistant":
            turn = turn if turn.get("content") is None else {"role": "assistant"}
            turn["content"] = _first_text(item.get("content"))
        elif kind == "message" and "role" in item:
            said.append({"role": item["role"], "content": item.get("content")})
            continue
        else:
            raise ApiError(f"Unsupported input item type: {kind} (parameter=input)", param="input")
        if turn is not last:
            said.append(turn)


def _first_text(content: object) -> object:
    """Return a content that is a text, or the first text of one in parts."""
    if isinstance(content, list):
        return content[0].get("text") if content and isinstance(content[0], dict) else None
    return content


def _as_sent(message: Fields) -> Fields:
    """Return a message with its calls in the order in which vLLM makes them of items."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    turned = []
    for call in calls:
        function = call["function"]
        function = {"name": function["name"], "arguments": function["arguments"]}
        turned.append({**call, "function": function})
    return {**message, "tool_calls": turned}


class ResponsesFace:
    """Encodes the answer to one body of a response.

    Args:
        identity: The response's id.
        created: Calendar seconds.
        model: The served name.
        told: What it repeats of its request.
        max_tokens: Most tokens of the answer.

    Attributes:
        opening: See `kvbench.pod.face.AnyFace`; so are the rest.
    """

    def __init__(
        self, identity: str, created: int, model: str, told: Told, max_tokens: int
    ) -> None:
        self._ident: Fields = {"id": identity, "created_at": created}
        self._model = model
        self.done, self.tells = b"", True
        self._told = told
        self._max_tokens = max_tokens
        self._item = f"msg_{uuid4().hex[:16]}"
        self._said: list[str] = []
        self._reason = "stop"
        self._number = 0
        begun = self._response("in_progress", [], None)
        self.opening = self._event("created", response=begun)
        self.opening += self._event("in_progress", response=begun)

    def piece(self, _index: int) -> tuple[bytes, bytes]:
        """Return nothing: events are numbered, so that each is made anew."""
        return b"", b""

    def role(self, _index: int, _prompt_ids: Sequence[int] | None, _usage: Usage | None) -> bytes:
        """Return nothing: it has been said."""
        return b""

    def chunk(
        self,
        _index: int,
        text: str,
        *,
        reason: str | None = None,
        **_others: object,
    ) -> bytes:
        """Return the events of a token."""
        self._reason = reason or self._reason
        if not text:
            return b""
        begun = b""
        if not self._said:
            item = {**self._message([]), "status": "in_progress"}
            begun = self._event("output_item.added", item=item, output_index=0)
            begun += self._event("content_part.added", **self._place(), part=_part("", []))
        self._said.append(text)
        return begun + self._event("output_text.delta", **self._place(), delta=text, logprobs=[])

    def usage(self, usage: Usage) -> bytes:
        """Return the events that end a stream."""
        text, said = "".join(self._said), b""
        if text:
            said = self._event("output_text.done", **self._place(), logprobs=[], text=text)
            said += self._event("content_part.done", **self._place(), part=_part(text, None))
            item = self._message([_part(text, None)])
            said += self._event("output_item.done", item=item, output_index=0)
        response = self._ended(text, self._reason, usage)
        return said + self._event("completed", response=response)

    def whole(self, answers: Sequence[Finished], usage: Usage) -> bytes:
        """Return the body of an answer that does not come in pieces."""
        (answer,) = answers
        return to_json(self._ended(answer.text, answer.reason, usage))

    def _place(self) -> Fields:
        """Return where in the response a text stands."""
        return {"content_index": 0, "item_id": self._item, "output_index": 0}

    def _message(self, content: list[Fields]) -> Fields:
        """Return the one item of the answer."""
        ident: Fields = {"id": self._item, "content": content, "role": "assistant"}
        return {**ident, "status": "completed", "type": "message", "phase": None}

    def _event(self, kind: str, **fields: object) -> bytes:
        """Return the next event, its fields in the order of their names."""
        kind = f"response.{kind}"
        fields |= {"sequence_number": self._number, "type": kind}
        self._number += 1
        data = to_json({name: fields[name] for name in sorted(fields)})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _ended(self, text: str, reason: str, usage: Usage) -> Fields:
        """Return the response, complete."""
        output = [self._message([_part(text, None)])] if text else []
        status = "incomplete" if reason == "length" else "completed"
        return self._response(status, output, usage)

    def _response(self, status: str, output: list[Fields], usage: Usage | None) -> Fields:
        """Return the response as it stands."""
        told, cut = self._told, {"reason": "max_output_tokens"}
        return {
            **self._ident,
            "incomplete_details": cut if status == "incomplete" else None,
            **told.said,
            "model": self._model,
            "object": "response",
            "output": output,
            **told.settings,
            "max_output_tokens": self._max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            **told.service,
            "status": status,
            "text": None,
            "top_logprobs": None,
            **told.window,
            "usage": None if usage is None else _counts(usage),
            **told.whose,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _part(text: str, logprobs: list[object] | None) -> Fields:
    """Return a piece of an answer."""
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _counts(usage: Usage) -> Fields:
    """Return the counts."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached or 0,
            "cache_write_tokens": usage.created,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt + usage.completion,
    }
