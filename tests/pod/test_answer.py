"""What a pod says: the same for the same prompt, and the same again when it is sent back."""

from __future__ import annotations

import pytest
from fakes_pod import TOKENIZER
from hypothesis import given
from hypothesis import strategies as st

from kvbench.pod.answer import (
    LONGEST,
    SHORTEST,
    After,
    Answer,
    StopText,
    answer_key,
    natural_length,
)
from kvbench.text.compose import Composer
from kvbench.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return the tokenizer of the recordings."""
    return Tokenizer.load(TOKENIZER)


@pytest.mark.parametrize("shipped", [False, True])
def test_an_answer_that_is_sent_back_tokenises_to_the_ids_that_were_generated(
    tokenizer: Tokenizer, shipped: bool
):
    """So that the next turn hits the blocks that the answer filled."""
    tokenizer = Tokenizer.load() if shipped else tokenizer
    answer = Answer(Composer(tokenizer, 0), "key", after=After.NOTHING)
    ids = [answer.token(i) for i in range(200)]
    text = "".join(answer.text(i) for i in range(200))
    assert tokenizer.encode(text) == ids


def test_a_continued_text_tokenises_to_prompt_and_answer(tokenizer: Tokenizer):
    """A completion goes on behind a word, with a space."""
    composer = Composer(tokenizer, 0)
    prompt = composer.text("prompt", 20)
    answer = Answer(composer, "key", after=After.WORD)
    ids = [answer.token(i) for i in range(70)]
    text = prompt + "".join(answer.text(i) for i in range(70))
    assert tokenizer.encode(text) == tokenizer.encode(prompt) + ids


def test_an_answer_is_the_same_in_every_process(tokenizer: Tokenizer):
    """It depends on seed and key alone, and not on the order in which it is asked for."""
    one = Answer(Composer(tokenizer, 0), "key", after=After.WORD)
    two = Answer(Composer(tokenizer, 0), "key", after=After.WORD)
    assert two.token(150) == one.token(150)
    assert [one.token(i) for i in range(100)] == [two.token(i) for i in range(100)]


@pytest.mark.parametrize(
    "other", [((1, 2, 4), None, None, 0), ((1, 2, 3), "s", None, 0), ((1, 2, 3), None, 7, 0)]
)
def test_another_prompt_salt_or_seed_gets_another_answer(other: tuple):
    """And so does another of several answers to the same prompt."""
    assert answer_key(*other) != answer_key((1, 2, 3), None, None, 0)
    assert answer_key((1, 2, 3), None, None, 1) != answer_key((1, 2, 3), None, None, 0)


def test_an_answer_ends_with_the_token_that_ends_texts(tokenizer: Tokenizer):
    """At its natural length."""
    answer = Answer(Composer(tokenizer, 0), "key", after=After.WORD, end=5, end_id=0)
    assert [answer.token(i) == 0 for i in range(6)] == [False] * 4 + [True] * 2


def test_natural_lengths_are_within_their_bounds():
    """And not all the same."""
    lengths = {natural_length(str(i)) for i in range(300)}
    assert min(lengths) >= SHORTEST
    assert max(lengths) <= LONGEST
    assert len(lengths) > 100


@pytest.mark.parametrize(
    ("illness", "most"), [("loop", 1), ("salad", 10)], ids=["one word", "ten words"]
)
def test_a_degenerate_answer_is_of_few_words(tokenizer: Tokenizer, illness, most):
    """One over and over, or ten in any order, as broken models do."""
    answer = Answer(Composer(tokenizer, 0), "key", after=After.WORD, degenerate=illness)
    assert most // 2 <= len({answer.token(i) for i in range(200)}) <= most
    assert most // 2 <= len({answer.text(i) for i in range(200)}) <= most


def test_an_echo_is_the_prompt_and_then_the_prompt_again(tokenizer: Tokenizer):
    """Tokens and text as they are; without a prompt it is a loop."""
    prompt = [(7, "a "), (8, "b ")]
    answer = Answer(
        Composer(tokenizer, 0), "key", after=After.WORD, degenerate="echo", echoed=prompt
    )
    assert [(answer.token(i), answer.text(i)) for i in range(4)] == prompt * 2
    empty = Answer(Composer(tokenizer, 0), "key", after=After.WORD, degenerate="echo")
    assert len({empty.token(i) for i in range(99)}) == 1


def said(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], str]:
    """Return what is said of pieces, one after the other, and what stopped it."""
    watch = StopText(stops, include=include)
    out = []
    for piece in pieces:
        out.append(watch.push(piece))
        if watch.matched is not None:
            return out, watch.matched
    return [*out, watch.rest()], ""


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        pytest.param(
            [" knowingly", "standing"], ["nding"], ([" knowi", "nglysta"], "nding"), id="recorded"
        ),
        pytest.param(
            [" knowingly", "standing"],
            ["gly stand", "lyst"],
            ([" k", "nowing"], "lyst"),
            id="recorded: over the seam of two tokens",
        ),
        pytest.param([" Users"], ["e"], ([" Us"], "e"), id="recorded: in the first token"),
        pytest.param(["ab", "cd"], ["zz"], (["a", "bc", "d"], ""), id="none is there"),
        pytest.param(["abcd"], ["d", "bc"], (["a"], "bc"), id="the first that is complete counts"),
    ],
)
def test_stop_strings_end_an_answer_as_vllm_ends_it(
    pieces: list[str], stops: list[str], expected: tuple
):
    """What could be the beginning of one is held back, and nothing behind it is said."""
    assert said(pieces, stops) == expected


def test_a_stop_string_can_be_part_of_the_answer():
    """If the client wants it; nothing is held back then."""
    assert said([" Users"], ["e"], include=True) == ([" Use"], "e")


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1))
def test_what_is_said_is_the_text_before_the_first_stop(text: str, stops: list[str]):
    """However the text is cut into tokens."""
    out, matched = said(list(text), stops)
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    assert "".join(out) == (text[: min(ends)[1]] if ends else text) or matched
    if ends:
        end = min(ends)[0]
        assert matched in stops
        assert "".join(out) == text[: end - len(matched)]
