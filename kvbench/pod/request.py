"""What a client asks for: bodies validated as vLLM validates them, reduced to one value.

pydantic does the validating, since vLLM's own answers to malformed bodies are pydantic's. Fields
that change nothing in a simulation (temperature, penalties, …) are read as far as vLLM refuses
values of theirs; others are passed over, as vLLM passes over what it does not know.

Refuses what a real engine could do and this one would have to pretend: log probabilities, beam
search, structured output, images. Tools are laid out in the prompt, if the pod is told to take
them, and never called.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from kvbench.pod.errors import (
    ApiError,
    DetailError,
    bad_parameter,
    invalid,
    not_json,
    unsupported_media_type,
)
from kvbench.text import conversation as text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_N = 16384
"""Answers to one prompt, as vLLM allows them by default."""

MAX_PROMPTS = 1024
"""Prompts of one request, as vLLM allows them by default."""

MAX_STOPS = 4
"""Stop strings of one request, as vLLM allows them by default."""

LONGEST_SALT = 128
"""Characters of a cache salt."""

TokenId = Annotated[int, Field(ge=0)]
_FORBIDDEN = frozenset("@/\\\0")  # in a salt
Prompts = list[TokenId] | list[list[TokenId]] | str | list[str]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Message(BaseModel):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, object]] | None = None
    tool_calls: list[dict[str, object]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    name: str | None = None

    def seen(self, model: str) -> dict[str, object]:
        """Return the message as the chat template gets it.

        Raises:
            ApiError: A part of the content is no text, or a call is none.
        """
        told = {"role": self.role, "content": self._text(model)}
        names = ("tool_calls", "tool_call_id", "reasoning", "reasoning_content", "name")
        beside = {name: one for name in names if (one := getattr(self, name)) is not None}
        if not beside and self.role not in {"system", "tool"}:
            return dict(told)
        try:
            return msgspec.convert({**told, **beside}, text.Message).seen(parts=False)
        except (ValueError, RecursionError) as error:
            raise ApiError(str(error)) from None

    def _text(self, model: str) -> str:
        """Return the content as one text.

        Raises:
            ApiError: A part of it is no text.
        """
        if self.content is None and "content" in self.model_fields_set and self.role == "user":
            place = ("body", "messages", "content")
            message = "Input should be a valid string"
            raise invalid([{"type": "string_type", "loc": place, "msg": message, "input": None}])
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        texts: list[str] = []
        for part in self.content:
            said = part.get("text")
            if part.get("type") in {"image_url", "input_audio", "video_url", "audio_url"}:
                raise ApiError(f"{model} is not a multimodal model")
            if not isinstance(said, str):
                raise ApiError(f"Unknown part type: {part.get('type')}")
            texts.append(said)
        return "\n".join(filter(None, texts))


class _Sampling(BaseModel):
    """What both endpoints know; field order is the order of findings."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str | None = None
    max_tokens: int | None = None
    seed: Int64 | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool = False
    response_format: dict[str, object] | None = None


class _Chat(_Sampling):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    n: int | None = 1
    logprobs: bool | None = False
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None

    @property
    def arguments(self) -> dict[str, object]:
        """What is handed to the template besides: not what is left to it, by null or "auto".

        Who says how much to think is taken to want thoughts.
        """
        given, effort = self.chat_template_kwargs or {}, self.reasoning_effort
        told = {name: value for name, value in given.items() if value not in (None, "auto")}
        if effort is not None:
            told["reasoning_effort"] = effort
            told.setdefault("enable_thinking", effort != "none")
        return told


class _Completion(_Sampling):
    """The body of /v1/completions."""

    prompt: Prompts | None = None
    echo: bool | None = False
    max_tokens: int | None = 16
    n: int = 1
    logprobs: int | None = None
    suffix: str | None = None


class _TokenizeText(BaseModel):
    """The body of /tokenize for a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class _TokenizeChat(BaseModel):
    """The body of /tokenize for messages."""

    model: str | None = None
    messages: list[Message]
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False


class _Tokenize(RootModel[_TokenizeText | _TokenizeChat]):
    """The body of /tokenize."""


class FaultsBody(BaseModel):
    """The body of /faults."""

    model_config = ConfigDict(extra="forbid")

    faults: list[str]


class DetokenizeBody(BaseModel):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools as the template gets them, what else it gets, and how it is to end."""

    messages: list[dict[str, object]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, object]] | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for text, from any endpoint.

    Attributes:
        chat: Whether it is a chat, whatever form it came in.
        prompts: A conversation, texts, or token ids; each gets `n` answers.
        n: Answers for each prompt.
        max_tokens: Most tokens of an answer; None where the client left it open.
        stop: Texts that end an answer.
        include_stop: Whether such a text is part of it.
        stop_token_ids: Tokens that end an answer.
        ignore_eos: Whether answers are as long as asked for.
        stream: Whether the answer comes in pieces.
        include_usage: Whether a stream ends with its usage.
        continuous_usage: Whether each piece has it.
        return_token_ids: Whether ids are told beside the text.
        echo: Whether the answer begins with its prompt.
        cache_salt: Prefixes with different salts share nothing.
        seed: Of the answer.
        request_id: As the client wants it called.
        model: Name of the model, None where the client leaves it open.
        limited_by: The parameter that says how many tokens an answer may have.
    """

    chat: bool
    prompts: Conversation | list[str] | list[list[int]]
    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    include_stop: bool
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    echo: bool
    cache_salt: str | None
    seed: int | None
    request_id: str | None
    model: str | None
    limited_by: str = "max_tokens"

    @property
    def conversation(self) -> Conversation:
        """The conversation of a chat."""
        assert isinstance(self.prompts, Conversation)
        return self.prompts

    @property
    def prompts_are_ids(self) -> bool:
        """Whether the client tokenised by itself."""
        return not isinstance(self.prompts, Conversation) and isinstance(self.prompts[0], list)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """What /tokenize is asked: a conversation, or else a text."""

    model: str | None
    conversation: Conversation | None
    prompt: str
    add_special_tokens: bool
    return_token_strs: bool


M = TypeVar("M", bound=BaseModel)


def read_json(content_type: str | None, body: bytes) -> object:
    """Return the body's JSON.

    Raises:
        ApiError: It is none, or does not say that it is.
    """
    if not body and content_type is not None:
        return None
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise unsupported_media_type()
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise not_json(error) from None
    except (ValueError, RecursionError):  # not UTF-8, too deep, a number of too many digits
        raise DetailError("There was an error parsing the body", status=400) from None


def validate(model: type[M], value: object) -> M:
    """Return `value` as `model`.

    Raises:
        ApiError: It is not; with everything that was found.
    """
    if value is None:
        finding = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        raise invalid([finding])
    try:
        return model.model_validate(value, from_attributes=True)
    except ValidationError as error:
        findings = error.errors(include_url=False)
        findings.sort(key=lambda finding: finding["loc"][:1] != ("messages",))  # vLLM's order
        raise invalid([{**item, "loc": ("body", *item["loc"])} for item in findings]) from None


def parse_chat(
    value: object, model: str, *, takes_tools: bool = False, no_tools: bool = False
) -> Ask:
    """Return what a chat body asks for.

    Args:
        value: The body's JSON.
        model: The served model's name, for messages.
        takes_tools: Whether tools may be called (`--enable-auto-tool-choice`).
        no_tools: Whether there may be a list of no tools.

    Raises:
        ApiError: It is refused.
    """
    _check_before(value)
    body = validate(_Chat, value)
    if not body.messages:
        raise ApiError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    _check_ending(body.add_generation_prompt, body.continue_final_message)
    if body.tools == [] and not no_tools:
        sentence = "`tools` must not be an empty array. "
        sentence += "Either provide at least one tool or omit the field entirely."
        raise ApiError(f"{sentence} (parameter=tools)", param="tools")
    if body.tools and body.tool_choice != "none" and not takes_tools:
        raise ApiError(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    if body.logprobs:
        raise ApiError("logprobs are not simulated", param="logprobs")
    conversation = _conversation(body, model)
    wanted = body.max_completion_tokens
    return _ask(body, conversation, body.n or (1 if body.n is None else 0), wanted, echo=False)


def parse_completion(value: object) -> Ask:
    """Return what a completions body asks for.

    Raises:
        ApiError: It is refused.
    """
    _check_before(value)
    if isinstance(value, dict) and (value.get("prompt") is None or value["prompt"] == ""):
        raise _no_prompt()
    body, prompt = _validate_completion(value)
    if prompt is None:
        raise _no_prompt()
    if not prompt:
        raise ApiError("You must pass at least one prompt")
    if body.suffix:
        sentence = "suffix is only supported for models with FIM completion rendering"
        raise ApiError(sentence, param="suffix")
    if body.logprobs is not None:
        raise ApiError("logprobs are not simulated", param="logprobs")
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    if not all(prompts):
        raise ApiError("The decoder prompt cannot be empty")
    if len(prompts) * body.n > MAX_N:
        sentence = f"more than {MAX_N} answers to one request are not simulated"
        raise ApiError(f"{sentence}, got {len(prompts)} prompts with n={body.n}.", param="n")
    return _ask(body, prompts, body.n, None, echo=bool(body.echo))  # type: ignore[arg-type]  # a list of one kind, as validated


def _validate_completion(value: object) -> tuple[_Completion, Prompts | None]:
    """Return a body of a completion, validated, and its prompts.

    Token ids are looked at here: pydantic tries all that a prompt can be, and takes a second for a
    million of them.
    """
    if isinstance(value, dict) and isinstance(ids := value.get("prompt"), list) and _are_ids(ids):
        return validate(_Completion, {**value, "prompt": ids[:1]}), ids
    body = validate(_Completion, value)
    return body, body.prompt


def parse_tokenize(value: object, model: str) -> Tokenize:
    """Return what a body of /tokenize asks for.

    Args:
        value: The body's JSON.
        model: The served model's name, for messages.

    Raises:
        ApiError: It is refused.
    """
    body = validate(_Tokenize, value).root
    strings = bool(body.return_token_strs)
    if isinstance(body, _TokenizeText):
        return Tokenize(body.model, None, body.prompt, body.add_special_tokens, strings)
    _check_ending(body.add_generation_prompt, body.continue_final_message)
    conversation = _conversation(body, model)
    return Tokenize(
        body.model, conversation, "", add_special_tokens=False, return_token_strs=strings
    )


def _conversation(body: _Chat | _TokenizeChat, model: str) -> Conversation:
    """Return what the template gets.

    Raises:
        ApiError: A message or a tool is none.
    """
    try:
        tools = msgspec.convert(body.tools, list[text.Tool] | None)
    except msgspec.ValidationError as error:
        raise ApiError(str(error), param="tools") from None
    return Conversation(
        [message.seen(model) for message in body.messages],
        body.add_generation_prompt,
        body.continue_final_message,
        text.tools_seen(tools),
        body.arguments if isinstance(body, _Chat) else {},
    )


def _check_ending(add_generation_prompt: bool, continue_final_message: bool) -> None:
    """Refuse a prompt that is to end in two ways."""
    if continue_final_message and add_generation_prompt:
        raise ApiError(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )


def _no_prompt() -> ApiError:
    """Return the refusal of a body without a prompt."""
    sentence = "Either prompt or prompt_embeds must be provided and non-empty."
    return ApiError(f"{sentence} (parameter=prompt)", param="prompt")


def _check_before(value: object) -> None:
    """Refuse what vLLM refuses before it looks at types."""
    if not isinstance(value, dict):
        return
    prompts = value.get("prompt")
    if isinstance(prompts, list) and len(prompts) > MAX_PROMPTS and not isinstance(prompts[0], int):
        raise ApiError(
            f"prompt list length {len(prompts)} exceeds the maximum allowed count of {MAX_PROMPTS}."
            " To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable. "
            "(parameter=prompt)",
            param="prompt",
        )
    if value.get("stream_options") and not value.get("stream"):
        sentence = "Stream options can only be defined when `stream=True`."
        raise ApiError(f"{sentence} (parameter=stream_options)", param="stream_options")
    salt = value.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        sentence = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise ApiError(f"{sentence} (parameter=cache_salt)", param="cache_salt")
    if isinstance(salt, str) and (len(salt) > LONGEST_SALT or not _FORBIDDEN.isdisjoint(salt)):
        sentence = (
            f"Parameter 'cache_salt' must be at most {LONGEST_SALT} characters and must not "
            r"contain '@', '/', '\\', or NUL."
        )
        raise ApiError(f"{sentence} (parameter=cache_salt)", param="cache_salt")


def _are_ids(values: list[object]) -> bool:
    """Return whether these are token ids, at least one."""
    return bool(values) and all(type(value) is int and value >= 0 for value in values)


def _check_sampling(body: _Sampling, n: int, max_tokens: int | None) -> None:
    """Refuse values that no sampler takes, and what is not simulated."""
    for name in ("temperature", "top_p"):
        value = getattr(body, name)
        if value is not None and not math.isfinite(value):
            raise bad_parameter(name, value, f"{name} must be a finite number, got {value}.")
    if body.temperature is not None and body.temperature < 0:
        sentence = f"temperature must be non-negative, got {body.temperature}."
        raise bad_parameter("temperature", body.temperature, sentence)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise bad_parameter("top_p", body.top_p, f"top_p must be in (0, 1], got {body.top_p}.")
    _check_n(n, greedy=body.temperature == 0)
    if max_tokens is not None and body.min_tokens > max_tokens >= 1:
        sentence = "min_tokens must be less than or equal to max_tokens"
        raise ApiError(f"{sentence}={max_tokens}, got {body.min_tokens}.")
    if body.prompt_logprobs is not None or body.use_beam_search:
        raise ApiError("prompt_logprobs and beam search are not simulated")
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise ApiError("structured output is not simulated", param="response_format")


def _check_n(n: int, *, greedy: bool) -> None:
    """Refuse numbers of answers that make no sense."""
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise ApiError(
            f"n must be at most {MAX_N}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable."
        )
    if n > 1 and greedy:
        raise ApiError(f"n must be 1 when using greedy sampling, got {n}.")


def _ask(
    body: _Sampling,
    prompts: Conversation | list[str] | list[list[int]],
    n: int,
    max_completion_tokens: int | None,
    *,
    echo: bool,
) -> Ask:
    """Return the request, its sampling parameters checked."""
    max_tokens = body.max_tokens if max_completion_tokens is None else max_completion_tokens
    _check_sampling(body, n, max_tokens)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    options = body.stream_options or StreamOptions()
    include_usage = bool(options.include_usage)
    return Ask(
        chat=isinstance(prompts, Conversation),
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        stop=tuple(text for text in stop if text),
        include_stop=body.include_stop_str_in_output,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        stream=bool(body.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        echo=echo,
        cache_salt=body.cache_salt,
        seed=body.seed,
        request_id=body.request_id,
        model=body.model,
        limited_by="max_tokens" if max_completion_tokens is None else "max_completion_tokens",
    )
