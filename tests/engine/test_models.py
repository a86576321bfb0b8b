"""Where a model's shape is read from, and what is said where there is none."""

import json

import pytest

from kvbench.engine.models import known_models, load_shape
from kvbench.errors import InputError


def test_many_models_are_known():
    """By short names and by those on Hugging Face, in capitals or not."""
    assert len(known_models()) >= 15
    assert load_shape("Qwen/Qwen3-32B") == load_shape("qwen3-32b") == known_models()["qwen3-32b"]


def test_a_file_and_its_directory_are_the_same_model(tmp_path):
    """A `config.json` is read by the parser that reads the known models."""
    small = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 128,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(small))

    assert load_shape(str(file)).windows == load_shape(str(tmp_path)).windows == (None, None)


def test_a_model_that_is_not_known_names_the_nearest():
    """A slip of the finger costs one look."""
    with pytest.raises(InputError, match="got 'lama-3-8b'") as caught:
        load_shape("lama-3-8b")

    assert caught.value.hint is not None
    assert "llama-3-8b" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"{", "config.json:1: not JSON: Expecting property name", id="cut off"),
        pytest.param(b'{\n"a": }', "config.json:2: not JSON: Expecting value", id="second line"),
        pytest.param(b"[]", "config.json: expected a JSON object", id="a list"),
        pytest.param(b"\xff\xfe\x00", "config.json: not JSON: ", id="not text"),
        pytest.param(b"[" * 100_000, "config.json: not JSON: ", id="too deep"),
        pytest.param(b"{}", "num_attention_heads: missing", id="empty"),
    ],
)
def test_a_broken_file_is_named(content, message, tmp_path):
    """With its line where there is one."""
    (tmp_path / "config.json").write_bytes(content)

    with pytest.raises(InputError) as caught:
        load_shape(str(tmp_path))

    assert message in caught.value.message


@pytest.mark.parametrize("path", ["no/such/config.json", "no-such.json"])
def test_a_missing_file_is_named(path):
    """What looks like a path is not looked for among the models."""
    with pytest.raises(InputError, match=r"no such file"):
        load_shape(path)


def test_a_directory_without_a_configuration_says_so(tmp_path):
    """It names the file that is missing."""
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        load_shape(str(tmp_path))
