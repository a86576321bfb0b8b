"""From texts and messages to token ids, within the model's context."""

from __future__ import annotations

import pytest
from fakes_pod import TOKENIZER

from kvbench.pod.errors import ApiError
from kvbench.pod.prompts import allowed_tokens, encode_conversation, encode_text
from kvbench.pod.request import Conversation
from kvbench.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("asked", "length", "allowed"),
    [
        pytest.param(10, 50, 10, id="what is asked for"),
        pytest.param(None, 50, 50, id="what is left, where nothing is asked for"),
        pytest.param(80, 50, 50, id="what is left, where more is asked for"),
        pytest.param(1, 99, 1, id="the last token"),
    ],
)
def test_an_answer_has_the_room_that_its_prompt_leaves(
    asked: int | None, length: int, allowed: int
):
    """Of 100 tokens."""
    assert allowed_tokens(asked, range(length), 100, text=True) == allowed


@pytest.mark.parametrize(
    ("asked", "length", "text", "message"),
    [
        (0, 5, True, "max_tokens must be at least 1, got 0"),
        (101, 5, True, "max_tokens=101 cannot be greater than max_model_len=100"),
        (5, 100, True, "max_tokens must be at least 1, got 0"),
        (5, 500, True, "your prompt contains at least 101 input tokens"),
        (5, 500, False, "your prompt contains 500 input tokens"),
    ],
)
def test_what_does_not_fit_is_refused(asked: int, length: int, text: bool, message: str):
    """In vLLM's words."""
    with pytest.raises(ApiError, match=message):
        allowed_tokens(asked, range(length), 100, text=text)


def test_a_final_message_can_be_continued():
    """The prompt then ends with its last word."""
    tokenizer = Tokenizer.load(TOKENIZER)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so far"}]
    open_end = Conversation(messages, add_generation_prompt=False, continue_final_message=True)
    ids = encode_conversation(open_end, tokenizer)
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("<|assistant|>so far")


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded():
    """Its tokens would take hundreds of times its size; vLLM's words, as 0.32.0 says them."""
    tokenizer = Tokenizer.load(TOKENIZER)
    most = 100 * tokenizer.longest_token
    with pytest.raises(ApiError) as refused:
        encode_text("a" * (most + 1), tokenizer, 100, special=True)
    assert str(refused.value) == (
        "This model's maximum context length is 100 tokens. However, your prompt contains "
        f"{most + 1} characters (more than {most} characters, which is the upper bound for 100 "
        "input tokens). Please reduce the length of the input prompt. "
        f"(parameter=input_text, value={most + 1})"
    )
    user = Conversation([{"role": "user", "content": "a" * most}])
    with pytest.raises(ApiError, match="which is the upper bound for 100 input tokens"):
        encode_conversation(user, tokenizer, 100)
    assert len(encode_text("a" * most, tokenizer, 100, special=True)) > 100
    assert len(encode_text("a" * (most + 1), tokenizer, special=True)) > 100


def test_half_of_a_character_is_refused():
    """JSON can carry it, a tokenizer cannot."""
    with pytest.raises(ApiError, match="TextEncodeInput"):
        encode_text("\ud800", Tokenizer.load(TOKENIZER), special=True)


def test_a_tokenizer_without_a_template_refuses_messages(tmp_path):
    """With a sentence."""
    (tmp_path / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
    conversation = Conversation([{"role": "user", "content": "x"}])
    with pytest.raises(ApiError, match="no chat template"):
        encode_conversation(conversation, Tokenizer.load(tmp_path))
