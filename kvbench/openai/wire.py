"""What OpenAI-compatible servers say, as typed values: of each answer only what we read.

One `Chunk` fits everything: a chunk of a chat or completions stream, a whole answer, an error.
Servers differ, so unknown fields are passed over and missing ones are None; a known field of the
wrong type is a `DecodeError` whose sentence names the place.

What differs between servers and is evened out here: reasoning comes as `reasoning` (vLLM from 0.14)
or `reasoning_content` (vLLM before, SGLang, DeepSeek); errors come as `{"error": {"message": …}}`,
`{"error": "…"}` or, from SGLang and older vLLM, `{"object": "error", "message": …}`; cached tokens
stand in `prompt_tokens_details` or, from DeepSeek, in `prompt_cache_hit_tokens`.
"""

from __future__ import annotations

import msgspec

__all__ = ["Choice", "Chunk", "DecodeError", "Delta", "PromptTokensDetails", "Usage", "parse"]

DecodeError = msgspec.DecodeError


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, how many came from a cache; None is unknown."""

    cached_tokens: int | None = None
    created_cache_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The server's own count of tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    prompt_cache_hit_tokens: int | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the cache; None where the server does not say."""
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return self.prompt_cache_hit_tokens


class Delta(msgspec.Struct, frozen=True):
    """A piece of a message, or the message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None

    @property
    def thought(self) -> str:
        """Reasoning text, under either name."""
        return self.reasoning or self.reasoning_content or ""

    @property
    def answers(self) -> bool:
        """Whether there is a part of an answer: text, refusal or a call of a tool."""
        return bool(self.content or self.tool_calls or self.refusal)


_NOTHING = Delta()


class Choice(msgspec.Struct, frozen=True):
    """One of the answers to a request."""

    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def piece(self) -> Delta:
        """What it brings, whichever endpoint it comes from."""
        if self.text is not None:
            return Delta(content=self.text)
        return self.delta or self.message or _NOTHING


class Chunk(msgspec.Struct, frozen=True):
    """One payload of a stream, or a whole answer."""

    id: str | None = None
    kind: str | None = msgspec.field(default=None, name="object")
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: dict[str, object] | str | None = None
    message: str | None = None

    @property
    def error_message(self) -> str | None:
        """The server's sentence if this is an error, else None."""
        if isinstance(self.error, dict):
            message = self.error.get("message")
            return message if isinstance(message, str) else str(self.error)
        if self.error is not None:
            return self.error
        return (self.message or "error") if self.kind == "error" else None


_decoder = msgspec.json.Decoder(Chunk)


def parse(data: bytes) -> Chunk:
    """Return the payload as a chunk.

    Raises:
        DecodeError: It is no JSON object, or a field that we read has a wrong type.
    """
    return _decoder.decode(data)
