"""The store of tokenised beginnings: always equal to full tokenization, and nearly free."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from fakes_text import SPECIAL, byte_level
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from kvbench.text.prefix_store import PrefixStore, Rendered, find_seams
from kvbench.text.tokenizer import Tokenizer

SEAM = st.sampled_from([*SPECIAL, "<|en", "d|>", " ", "\n\n", "[INST]"])
ANYTHING = st.text(max_size=12) | st.text("aeé\u0301 \n\t'1234<|end|>▁漢👩\u200d💻", max_size=16)
TEXT = st.lists(SEAM | ANYTHING, max_size=14).map("".join)


@given(
    texts=st.lists(TEXT, max_size=4),
    text=TEXT,
    cuts=st.lists(st.floats(0, 1), max_size=3),
    stride=st.sampled_from([1, 5, 8192]),
    capacity=st.sampled_from([30, 200]),
)
def test_the_ids_are_those_of_the_whole_text_whatever_was_seen_before(
    tokenizer, texts, text, cuts, stride, capacity
):
    """Any Unicode, cut anywhere, with halves of special tokens at the cut and where strides end."""
    store = PrefixStore(tokenizer, capacity, stride)
    for cut in [*cuts, 1.0, 1.0]:
        for one in (*texts, text[: round(cut * len(text))]):
            tokens = store.encode(one)
            assert tokens.ids.tolist() == tokenizer.encode(one)
            assert len(store) <= capacity
    assert store.unfit == 0


PARTS = st.lists(SEAM | ANYTHING | st.sampled_from(["<|end|>", "river"]), max_size=24)


@given(
    turns=st.lists(st.tuples(st.floats(0, 1), PARTS, st.integers(0, 1)), min_size=1, max_size=6),
    stride=st.sampled_from([1, 5, 8192]),
    capacity=st.sampled_from([30, 200]),
)
def test_the_ids_are_those_of_the_whole_text_whatever_stood_before_its_parts(
    tokenizer, turns, stride, capacity
):
    """Each text has some first parts of the one before, or is another; parts may be empty."""
    store, renderings, parts = PrefixStore(tokenizer, capacity, stride), [Rendered()] * 2, []
    renderings[1] = Rendered()
    for kept, more, which in turns:
        parts = [*parts[: round(kept * len(parts))], *more]
        for again in (parts, [*parts, "x"], parts):
            lookup = store.lookup_parts(list(again), renderings[which])
            assert lookup.text == "".join(again)
            ids = store.complete(lookup, tokenizer.encode_batch(lookup.todo)).ids
            assert ids.tolist() == tokenizer.encode("".join(again))
    assert store.unfit == 0


def test_parts_that_came_before_are_not_looked_into(tokenizer):
    """Of a turn that goes on otherwise at its end, only what is behind the last seam they share."""
    store, rendered = PrefixStore(tokenizer), Rendered()
    for turn in range(6):
        parts = ["<|user|>", "river garden " * 900, "<|end|>"] * (10 + 3 * turn) + [f"{turn}"]
        lookup = store.lookup_parts(parts, rendered)
        store.complete(lookup, tokenizer.encode_batch(lookup.todo))
        assert turn == 0 or (len(lookup.todo) <= 5 and not lookup.strides)
    assert len(rendered.ends) < 100


@given(text=TEXT, stride=st.sampled_from([1, 5, 8192]))
def test_marks_name_beginnings_by_their_length_in_tokens(tokenizer, text, stride):
    """Each is one that ends with a special token; the same text has the same marks."""
    store = PrefixStore(tokenizer, stride=stride)
    tokens = store.encode(text)
    seams = find_seams(tokenizer).values()
    for mark, end in tokens.marks:
        assert tokens.ids[end - 1] in seams
        assert 0 <= mark < 2**128
    for one in (store, PrefixStore(tokenizer)):  # one that looks it up, and one that never saw it
        again = one.encode(text)
        assert (again.ids, again.marks) == (tokens.ids, tokens.marks)


def chat(turns: int) -> list[dict[str, str]]:
    """Return a conversation."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"river {n} garden " * 40} for n in range(turns)]


def test_of_the_next_turn_only_what_is_new_is_encoded(tokenizer):
    """A chat of 21 messages that was known up to its 20th."""
    store = PrefixStore(tokenizer)
    store.encode(tokenizer.render_chat(chat(20), add_generation_prompt=False))
    text = tokenizer.render_chat(chat(21))
    tokens = store.encode(text)
    assert tokens.ids.tolist() == tokenizer.encode(text)
    assert 0 < tokens.encoded < len(tokens.ids) / 10


def test_a_known_text_is_not_encoded_at_all():
    """There is nothing to do behind its last special token."""
    tokenizer = byte_level()
    store = PrefixStore(tokenizer)
    store.encode("river<|end|>")
    lookup = store.lookup("river<|end|>")
    assert (lookup.todo, lookup.characters) == ([], 0)


def test_of_a_long_text_only_the_last_stride_is_cut_into_pieces(tokenizer):
    """The others are recognised as a whole."""
    store = PrefixStore(tokenizer)
    text = tokenizer.render_chat(chat(200))
    store.encode(text)
    cut = []
    pieces = store._pieces
    store._pieces = lambda text, last: cut.append(len(text) - last.at) or pieces(text, last)
    tokens = store.encode(text + "river<|end|>")
    assert tokens.ids.tolist() == tokenizer.encode(text + "river<|end|>")
    assert (len(text) > 50_000, cut[0] < 8192 + 800) == (True, True)


def test_what_stands_for_a_stride_ends_with_a_seam():
    """Not with the text, which another may continue; here a stride ends where the text does."""
    tokenizer = byte_level()
    store = PrefixStore(tokenizer, stride=4)
    store.encode("river<|end|>sto")
    assert len("river<|end|>sto") % 4 == 3
    store.encode("river<|end|>ston")
    assert [end.at for _, end in store._strides.items()] == [0, 0, 12, 12]
    assert len(store.lookup("river<|end|>stone<|end|>").todo) == 1


def test_a_beginning_that_is_gone_is_made_anew():
    """The least recently used text goes as a whole; its strides are still known, and of no use."""
    tokenizer = byte_level()
    store = PrefixStore(tokenizer, capacity=25, stride=4)
    old = "river garden<|end|>window letter<|end|>"
    store.encode(old)
    assert store.lookup(old).todo == []
    store.encode("stone " * 20 + "<|end|>")
    lookup = store.lookup(old)
    assert (lookup.known, len(lookup.todo)) == (None, 2)
    assert store.encode(old).ids.tolist() == tokenizer.encode(old)
    assert store.lookup(old).todo == []


def test_halves_of_characters_are_refused():
    """As the tokenizer refuses them."""
    store = PrefixStore(byte_level())
    for text in ("\ud800", "\ud800<|end|>", "a<|end|>\udfff"):
        with pytest.raises(UnicodeEncodeError):
            store.lookup(text)


def added(*tokens: AddedToken) -> Tokenizer:
    """Return a tokenizer of single letters with these added tokens."""
    vocabulary = {letter: number for number, letter in enumerate("abxyz<>| ")}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="x"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens(list(tokens))
    return Tokenizer(backend, path=Path("fake"))


@pytest.mark.parametrize(
    ("tokens", "seams"),
    [
        pytest.param([AddedToken("<a>", normalized=False)], ["<a>"], id="alone"),
        pytest.param([AddedToken("<a>", normalized=True)], [], id="normalized"),
        pytest.param([AddedToken("<a>", normalized=False, lstrip=True)], [], id="takes spaces"),
        pytest.param([AddedToken("<a>", normalized=False, single_word=True)], [], id="a word"),
        pytest.param(
            [AddedToken("<a>", normalized=False), AddedToken("<a>b", normalized=False)],
            ["<a>b"],
            id="one begins another",
        ),
        pytest.param(
            [AddedToken("<a>", normalized=False), AddedToken("x<a", normalized=False)],
            ["x<a"],
            id="one reaches into another",
        ),
        pytest.param(
            [AddedToken("<a>", normalized=False), AddedToken("x<a>y", normalized=False)],
            ["x<a>y"],
            id="one holds another",
        ),
        pytest.param([AddedToken("aba", normalized=False)], [], id="it reaches into itself"),
    ],
)
def test_only_what_stands_for_certain_is_a_seam(tokens, seams):
    """Wherever its letters are, the tokenizer finds it."""
    assert list(find_seams(added(*tokens))) == seams


@given(text=st.lists(st.sampled_from(["<a>", "x<a", "<a>b", "aba", "x", "a", " "])).map("".join))
def test_special_tokens_that_overlap_are_no_harm(text):
    """Those that are no seams stay inside a piece."""
    tokenizer = added(*(AddedToken(t, normalized=False) for t in ("<a>", "x<a", "<a>b", "aba")))
    store = PrefixStore(tokenizer)
    for end in range(len(text) + 1):
        assert store.encode(text[:end]).ids.tolist() == tokenizer.encode(text[:end])


def test_a_tokenizer_that_breaks_the_theory_is_noticed():
    """The seam's id does not come first: the text is encoded as a whole."""

    class Odd:
        """Encodes pieces otherwise than texts."""

        def added_tokens(self):
            """Return one."""
            return byte_level().added_tokens()

        def encode_batch(self, texts):
            """Return nonsense."""
            return [[99, 98] for _ in texts]

        def encode(self, _text):
            """Return the truth."""
            return [1, 2, 3]

    store = PrefixStore(Odd())
    tokens = store.encode("a<|end|>b")
    assert (tokens.ids.tolist(), tokens.marks, tokens.encoded) == ([1, 2, 3], (), 3)
    assert (store.unfit, len(store)) == (1, 0)
