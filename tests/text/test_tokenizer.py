"""The tokenizer: files, encoding, chat, and text that comes token by token."""

from __future__ import annotations

import json
import shutil

import fakes_text
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.text.tokenizer import SHIPPED, Tokenizer

HELLO = [{"role": "user", "content": "hello there"}]


def copy_of_shipped(directory):
    """Copy the shipped tokenizer's files, to break them."""
    shutil.copytree(SHIPPED, directory, dirs_exist_ok=True)
    return directory


def test_the_shipped_tokenizer_needs_no_path(shipped):
    """Name, size and special tokens are what the build script gave it."""
    assert (shipped.name, shipped.path, shipped.vocab_size) == ("kvbench", SHIPPED, 4096)
    assert shipped.eos_token_id == 0
    assert shipped.encode("<|end|><|system|><|user|><|assistant|>") == [0, 1, 2, 3]


def test_the_shipped_template_puts_each_content_between_its_role_and_the_end(shipped):
    """The text is what a server with these files renders."""
    assert shipped.render_chat(HELLO) == "<|user|>hello there<|end|><|assistant|>"
    assert shipped.encode_chat(HELLO) == [2, *shipped.encode("hello there"), 0, 3]
    assert shipped.encode_chat(HELLO, add_generation_prompt=False)[-1] == 0


@given(text=st.text(max_size=80))
def test_every_text_survives_the_shipped_tokenizer(shipped, text):
    """A byte-level vocabulary can spell everything."""
    assert shipped.decode(shipped.encode(text), skip_special_tokens=False) == text


def test_a_directory_and_its_file_give_the_same_tokenizer(tmp_path):
    """Both ways to name a model on disk work, with what stands beside the file."""
    directory = copy_of_shipped(tmp_path / "model")
    by_directory = Tokenizer.load(directory)
    by_file = Tokenizer.load(str(directory / "tokenizer.json"))
    assert by_directory.name == by_file.name == "model"
    assert by_directory.encode_chat(HELLO) == by_file.encode_chat(HELLO)


def test_truncation_and_padding_in_the_file_are_switched_off(tmp_path):
    """A prompt is never shortened silently."""
    directory = copy_of_shipped(tmp_path)
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    file.write_text(json.dumps(content))
    assert len(Tokenizer.load(directory).encode("one two three four five six")) >= 6


def test_without_configuration_there_is_no_template_and_no_end_of_text(tmp_path):
    """What is not there is None or refused, not guessed."""
    shutil.copy(SHIPPED / "tokenizer.json", tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_token_id is None
    assert not tokenizer.has_chat_template
    with pytest.raises(InputError, match="no chat template") as caught:
        tokenizer.encode_chat(HELLO)
    assert "completions" in caught.value.hint


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ bos_token }}!", id="a string"),
        pytest.param(
            [{"name": "rag", "template": "?"}, {"name": "default", "template": "{{ bos_token }}!"}],
            id="several by name",
        ),
    ],
)
def test_a_template_may_stand_in_the_configuration(tmp_path, template):
    """Older models keep it there; special tokens may be objects."""
    shutil.copy(SHIPPED / "tokenizer.json", tmp_path)
    config = {"bos_token": {"content": "<|user|>"}, "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).render_chat(HELLO) == "<|user|>!"


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        pytest.param("tokenizer.json", None, "no such tokenizer", id="missing"),
        pytest.param("tokenizer.json", b"{", "not a tokenizer", id="cut"),
        pytest.param("tokenizer.json", b"\xff\xfe", "not a tokenizer", id="binary"),
        pytest.param("tokenizer_config.json", b"{", "not JSON", id="configuration cut"),
        pytest.param("tokenizer_config.json", b"[1]", "expected a JSON object", id="a list"),
        pytest.param("tokenizer_config.json", b"\xff", "not JSON", id="configuration binary"),
        pytest.param("chat_template.jinja", b"\xff", "not UTF-8", id="template binary"),
        pytest.param("chat_template.jinja", b"{% for", "does not compile", id="template cut"),
    ],
)
def test_a_broken_file_is_named(tmp_path, file, content, says):
    """The error begins with the file and says what is wrong with it."""
    directory = copy_of_shipped(tmp_path)
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        Tokenizer.load(directory)
    assert caught.value.message.startswith(str(directory / file))


def test_a_stream_holds_back_half_a_character(shipped):
    """The token that completes a character brings it; those before bring nothing."""
    ids = shipped.encode("é€")
    assert len(ids) == len("é€".encode())
    decoder = shipped.stream_decoder()
    assert [decoder.push(i) for i in ids] == ["", "é", "", "", "€"]


def test_a_stream_gives_up_bytes_that_can_become_no_character(shipped):
    """As recorded from vLLM: a stray lead byte comes out as U+FFFD with the text after it."""
    stray, letter = shipped.encode("é")[0], shipped.encode("X")[0]
    decoder = shipped.stream_decoder()
    pushed = [decoder.push(i) for i in (letter, stray, letter, stray)]
    assert pushed == ["X", "", "\ufffdX", ""]


def test_a_stream_says_in_the_end_what_decoding_says(tokenizer):
    """Plain words, token by token, for every kind of tokenizer."""
    ids = list(tokenizer.plain_token_ids[:12])
    prompt = list(tokenizer.plain_token_ids[:1])
    decoder = tokenizer.stream_decoder(prompt)
    streamed = "".join(decoder.push(i) for i in ids)
    assert streamed == tokenizer.decode(prompt + ids)[len(tokenizer.decode(prompt)) :]
    assert streamed.startswith(" ")


def test_special_tokens_are_silent_in_a_stream():
    """The end-of-text token has no text."""
    tokenizer = fakes_text.byte_level()
    assert tokenizer.stream_decoder().push(tokenizer.eos_token_id) == ""
