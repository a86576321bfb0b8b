"""Token ids word by word are those of the library."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from fakes_text import KINDS, byte_level
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from kvbench.text.known_words import CUTS, KnownWords
from kvbench.text.tokenizer import Tokenizer


def cut_by(expression: str, *, nfc: bool = False, others: tuple[str, ...] = ()) -> Tokenizer:
    """Return a byte-level tokenizer whose words are cut by an expression."""
    backend = tokenizers.Tokenizer.from_str(byte_level()._backend.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.add_tokens([AddedToken(text, normalized=True) for text in others])
    return Tokenizer(backend, path=Path("fake"))


TOKENIZERS = {
    "shipped": Tokenizer.load(),
    "GPT-2": byte_level(),
    **{f"cut {number}": cut_by(cut, nfc=number % 2 == 0) for number, cut in enumerate(CUTS)},
    "others": cut_by(CUTS[2], nfc=True, others=("K;", "rive", "Zz")),
}

tricky = st.sampled_from(
    [
        " ", "  ", "\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x1f", "\x00", "\x7f", "\x85",
        "\xa0", "\u2028", "'s", "'S", "'Ll", "'", "don't", "river", " river", "River", "RIVER",
        "riVer", "bridge ", "1", "12345", " 7", "<|end|>", "<|user|>", "<|", "|>", "é", "e\u0301",
        "\u0301", "\u017f", "'\u017f", "\u212a", "\u212a;", "\u037e", "日本", " 日", "😀",
        "İ", "ß", "-",
        "()", "/", "//\n", "[INST]", "²", "Ⅷ", "ʰ", "ǅ", "a" * 70, "K;", "Zz",
    ]
)  # fmt: skip
texts = st.lists(
    tricky | st.text(max_size=8) | st.text(st.characters(max_codepoint=127)), max_size=9
)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_words_of_these_tokenizers_are_known(name):
    """All expressions that are known, with a normalizer or without."""
    assert KnownWords(TOKENIZERS[name]).cuts


@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(st.sampled_from(sorted(TOKENIZERS)), st.lists(texts.map("".join), min_size=1, max_size=4))
@example("GPT-2", ["it's\u212a;", "\u212a;"])
@example("others", ["x \u212a; y", "\u212a\u037e"])
def test_ids_are_those_of_the_library_whatever_came_before(name, drawn):
    """For any text, again and again; where there is room for few words, too."""
    tokenizer = TOKENIZERS[name]
    for known in (KnownWords(tokenizer), KnownWords(tokenizer, most=12)):
        for text in [*drawn, *drawn, "".join(drawn)]:
            assert list(known.encode_batch([text])[0]) == tokenizer.encode(text), text


def test_a_text_of_known_words_is_not_encoded(monkeypatch):
    """Nor is one with a few new words, of which only these are."""
    tokenizer = byte_level()
    known, asked = KnownWords(tokenizer), []
    encode, model = tokenizer.encode_batch, known._model

    class Model:
        """Says what it is asked for."""

        def tokenize(self, word):
            """Return the tokens of a word."""
            asked.append(word)
            return model.tokenize(word)

    known._model = Model()
    monkeypatch.setattr(
        tokenizer, "encode_batch", lambda texts, **how: asked.extend(texts) or encode(texts, **how)
    )
    text = "<|user|>The river, the bridge — the\x0bgarden.<|end|>"
    for _ in range(3):
        known.encode_batch([text])
    assert asked == ["The", "Ġriver", ",", "Ġthe", " bridge —", "ċ", "garden", "."]
    known.encode_batch([text.replace("garden", "harbour")])
    assert asked[8:] == ["harbour"]


def test_words_that_are_not_used_are_dropped():
    """Used ones stay, and long ones are not kept."""
    known = KnownWords(byte_level(), most=50)
    for number in range(300):
        known.encode_batch([f"river {'x' * (number % 90)} {number}"])
        known.encode_batch(["".join(f" {'é' * n}" for n in range(40, 90))])
    assert len(known._younger) + len(known._older) < 120
    assert max(map(len, known._younger)) <= 64
    assert "river" in known._younger


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"byte-level BPE", "shipped"}))
def test_other_tokenizers_are_left_to_the_library(name):
    """Their words depend on what stands around them, or may."""
    tokenizer = KINDS[name]()
    known = KnownWords(tokenizer)
    assert not known.cuts
    assert known.encode_batch(["river bridge"]) == [tokenizer.encode("river bridge")]


@pytest.mark.parametrize("expression", [r"\w+|\W+", CUTS[1] + "|x"])
def test_an_expression_that_is_not_known_is_left_to_the_library(expression):
    """However like the others it may be."""
    assert not KnownWords(cut_by(expression)).cuts


def test_added_tokens_that_other_letters_may_become_are_left_to_the_library():
    """Not where they are plain letters: these are looked for."""
    assert not KnownWords(cut_by(CUTS[1], nfc=True, others=("é",))).cuts
