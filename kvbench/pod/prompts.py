"""From what a client wrote to token ids, with the limits of the model's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.pod.errors import ApiError, bad_parameter
from kvbench.pod.request import Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.pod.request import Ask
    from kvbench.text.tokenizer import Tokenizer


def encode(ask: Ask, tokenizer: Tokenizer, limit: int) -> list[list[int]]:
    """Return the token ids of each prompt.

    Args:
        ask: What the client wrote.
        tokenizer: Of the model.
        limit: Tokens of prompt and answer together.

    Raises:
        ApiError: A text or a token id is none of this tokenizer's, the template refuses, or a text
            is so long that it cannot fit whatever its tokens are.
    """
    if isinstance(ask.prompts, Conversation):
        return [encode_conversation(ask.prompts, tokenizer, limit)]
    prompts: list[list[int]] = []
    for prompt in ask.prompts:
        if isinstance(prompt, str):
            prompts.append(encode_text(prompt, tokenizer, limit, special=True))
            continue
        if (largest := max(prompt)) >= tokenizer.vocab_size:
            raise ApiError(f"Token id {largest} is out of vocabulary")
        prompts.append(prompt)
    if not all(prompts):
        raise ApiError("The decoder prompt cannot be empty")
    return prompts


def encode_text(
    text: str, tokenizer: Tokenizer, limit: int | None = None, *, special: bool
) -> list[int]:
    """Return the token ids of a text.

    Encoding takes some hundred bytes for each byte of text, so vLLM looks at its length first.

    Args:
        text: The text.
        tokenizer: Of the model.
        limit: Tokens that it may have; None is no limit, as vLLM has none where it only counts.
        special: Whether the tokens that go around a text are added.

    Raises:
        ApiError: It has halves of characters, or more of them than so many tokens can have.
    """
    if limit is not None and len(text) > (most := limit * tokenizer.longest_token):
        raise bad_parameter(
            "input_text",
            len(text),
            f"This model's maximum context length is {limit} tokens. However, your prompt contains "
            f"{len(text)} characters (more than {most} characters, which is the upper bound for "
            f"{limit} input tokens). Please reduce the length of the input prompt.",
        )
    try:
        return tokenizer.encode(text, add_special_tokens=special)
    except (TypeError, UnicodeEncodeError):
        raise ApiError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def encode_conversation(
    conversation: Conversation, tokenizer: Tokenizer, limit: int | None = None
) -> list[int]:
    """Return the token ids of messages under the chat template.

    Raises:
        ApiError: There is no template, it refuses them, or they are too long (`encode_text`).
    """
    ends, tools = conversation.add_generation_prompt, conversation.tools
    try:
        template = tokenizer.template(tools=tools is not None)
        messages = _of_developers(conversation.messages, known=template.knows_developers)
        text = template.render(
            messages, add_generation_prompt=ends, tools=tools, arguments=conversation.arguments
        )
    except InputError as error:
        raise ApiError(error.message) from None
    if conversation.continue_final_message:
        final = str(conversation.messages[-1]["content"]).strip()
        text = text[: text.rindex(final) + len(final)] if final in text else text
    return encode_text(text, tokenizer, limit, special=False)


def _of_developers(
    messages: Sequence[dict[str, object]], *, known: bool
) -> Sequence[dict[str, object]]:
    """Return messages with those of developers as a template gets them.

    One that does not know developers takes them for the system; if then the system says something
    later, all of it goes first, in one.
    """
    if all(one["role"] != "developer" for one in messages):
        return messages
    if known:
        return [{**one, "tools": None} if one["role"] == "developer" else one for one in messages]
    seen = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
    if all(one["role"] != "system" for one in seen[1:]):
        return seen
    texts = [str(one["content"]) for one in seen if one["role"] == "system" and one["content"]]
    first: dict[str, object] = {"role": "system", "content": "\n\n".join(texts)}
    return [first, *(one for one in seen if one["role"] != "system")]


def allowed_tokens(
    asked: int | None, prompt: Sequence[int], limit: int, *, text: bool, name: str = "max_tokens"
) -> int:
    """Return how many tokens an answer may have.

    Args:
        asked: What the client asks for; None leaves it open.
        prompt: Its prompt.
        limit: Tokens of prompt and answer together (`--max-model-len`).
        text: Whether the prompt came as text; vLLM stops counting that behind the limit.
        name: By which parameter the client asks.

    Raises:
        ApiError: The prompt is too long, or the client asks for what there cannot be.
    """
    if asked is not None and asked < 1:
        raise bad_parameter("max_tokens", asked, f"max_tokens must be at least 1, got {asked}.")
    if asked is not None and asked > limit:
        sentence = f"{name}={asked} cannot be greater than max_model_len={limit}."
        raise bad_parameter(name, asked, f"{sentence} Please request fewer output tokens.")
    length = len(prompt)
    if length > limit:
        raise _too_long(min(length, limit + 1) if text else length, limit, text=text)
    if length == limit:
        raise bad_parameter("max_tokens", 0, "max_tokens must be at least 1, got 0.")
    return min(asked or limit, limit - length)


def _too_long(length: int, limit: int, *, text: bool) -> ApiError:
    """Return the refusal of a prompt that leaves no room."""
    counted = f"at least {length}" if text else str(length)
    return bad_parameter(
        "input_tokens",
        length,
        f"This model's maximum context length is {limit} tokens. However, your prompt contains "
        f"{counted} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
    )
