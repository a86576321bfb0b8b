"""Two tokenizers agree token by token, or the first difference is named."""

from __future__ import annotations

import fakes_text
import pytest

from kvbench.text.agreement import PROBE_CHAT, PROBE_TEXT, chat_difference, text_difference


def test_a_tokenizer_agrees_with_itself(tokenizer):
    """Whatever its kind, with the beginning-of-text token or without."""
    ids = tokenizer.encode(PROBE_TEXT)
    assert text_difference(tokenizer, ids) is None
    assert text_difference(tokenizer, [1, *ids]) is None
    assert chat_difference(tokenizer, tokenizer.encode_chat(PROBE_CHAT)) is None


@pytest.mark.parametrize("ours", fakes_text.KINDS)
@pytest.mark.parametrize("theirs", fakes_text.KINDS)
def test_different_tokenizers_are_told_apart(ours, theirs):
    """Every pair of kinds."""
    ids = fakes_text.KINDS[theirs]().encode(PROBE_TEXT)
    assert (text_difference(fakes_text.KINDS[ours](), ids) is None) == (ours == theirs)


def test_the_first_difference_is_named(shipped):
    """How many tokens are alike, and what stands there in each."""
    ids = shipped.encode(PROBE_TEXT)
    said = text_difference(shipped, [*ids[:5], 7, *ids[6:]])
    assert f"{len(ids)} tokens of a probe where ours are {len(ids)}; the first 5 are alike" in said
    assert f"{ids[5]} ({shipped.token(ids[5])!r}), theirs 7 ({shipped.token(7)!r})" in said
    assert "theirs at its end" in text_difference(shipped, ids[:9])


def test_another_template_is_told_apart():
    """With the same vocabulary."""
    theirs = fakes_text.byte_level(fakes_text.MARKED).encode_chat(PROBE_CHAT)
    said = chat_difference(fakes_text.byte_level(fakes_text.HEADED), theirs)
    assert said.startswith("the chat template of the server is another one than ours (")
