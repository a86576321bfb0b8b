"""Plain words are one token each, wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from kvbench.errors import InputError
from kvbench.text.tokenizer import Tokenizer
from kvbench.text.words import FEWEST


@given(data=st.data())
def test_any_sequence_of_plain_words_is_as_many_tokens(tokenizer, data):
    """The first word in its bare form, the others in their spaced form."""
    plain = tokenizer.plain_words
    chosen = data.draw(st.lists(st.integers(0, len(plain.words) - 1), min_size=1, max_size=40))
    text = " ".join(plain.words[i] for i in chosen)
    expected = [plain.bare_ids[chosen[0]], *(plain.spaced_ids[i] for i in chosen[1:])]
    assert tokenizer.encode(text) == expected


def test_plain_words_are_distinct_ascii_words(tokenizer):
    """They stand in JSON as they are, and no two of them are the same token."""
    plain = tokenizer.plain_words
    assert len(plain.words) == len(set(plain.words)) == len(set(plain.spaced_ids)) >= FEWEST
    assert all(word.isascii() and word.isalnum() for word in plain.words)


def test_the_shipped_tokenizer_has_words_of_three_letters_and_more(shipped):
    """Prompts look like language."""
    words = shipped.plain_words.words
    assert len(words) > 1000
    assert all(len(word) >= 3 and word.islower() for word in words)
    assert {"bridge", "question", "letter", "morning"} <= set(words)


def test_a_tokenizer_without_words_is_refused():
    """A vocabulary of single bytes cannot make prompts of exact length."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(InputError, match="expected at least 16 words") as caught:
        _ = Tokenizer(backend, path=Path("model")).plain_words
    assert caught.value.message.startswith("model/tokenizer.json: ")


def test_words_that_melt_together_are_not_plain():
    """A vocabulary with a token for two whole words loses these words, not its usefulness."""
    words = [f"▁w{c}{d}" for c in "abcde" for d in "vwxyz"]
    scores = [(word, -1.0) for word in words]
    backend = Backend(models.Unigram([("<unk>", -9.0), *scores, ("▁wav▁wbw", -0.5)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    found = Tokenizer(backend, path=Path("model")).plain_words.words
    assert not {"wav", "wbw"} <= set(found)
    assert len(found) >= FEWEST
