"""Segments: as many tokens as asked for, equal where keys are equal, different where not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.text.compose import Composer, SegmentCache

KEYS = st.text(max_size=12)
PINNED = "equal special contract chosen connection useful"
LENGTHS = st.integers(1, 200)


@pytest.fixture(scope="module")
def composer(tokenizer):
    """A composer for each kind of tokenizer."""
    return Composer(tokenizer, seed=7)


@given(segments=st.lists(st.tuples(KEYS, LENGTHS), min_size=1, max_size=6))
def test_joined_segments_are_exactly_their_tokens(composer, tokenizer, segments):
    """What the text tokenises to is known without tokenising it."""
    expected = composer.join_ids(segments)
    expected[0] = composer.opening_ids(segments[0][0])[1]
    assert tokenizer.encode(composer.join(segments)) == expected
    assert len(expected) == sum(n for _, n in segments)


@given(key=KEYS, n=LENGTHS, more=LENGTHS)
def test_a_shorter_segment_is_the_beginning_of_a_longer_one(composer, key, n, more):
    """In tokens and in words."""
    assert composer.ids(key, n + more)[:n] == composer.ids(key, n)
    assert composer.text(key, n + more).split()[:n] == composer.text(key, n).split()


@given(keys=st.lists(KEYS, min_size=2, max_size=2, unique=True))
def test_different_keys_share_no_first_block(composer, keys):
    """Sixteen tokens, vLLM's block, already differ."""
    assert composer.ids(keys[0], 16) != composer.ids(keys[1], 16)


def test_a_segment_is_the_same_in_every_process_and_another_under_another_seed(shipped):
    """Pinned: a change here changes every prompt that was ever recorded with a seed."""
    assert Composer(shipped, seed=1).text("system/0", 6) == PINNED
    assert Composer(shipped, seed=2).text("system/0", 6) != PINNED


def test_forgotten_segments_come_back_the_same(shipped):
    """The cache is a matter of speed alone."""
    composer = Composer(shipped, seed=1, most_tokens=50)
    before = composer.ids("a", 40)
    for i in range(10):
        composer.ids(f"other/{i}", 30)
    assert composer.ids("a", 40) == before


def test_a_cache_makes_once_and_forgets_what_was_used_longest_ago():
    """Bounded in tokens; the entry just made always stays."""
    made = []

    def make(key, tokens):
        made.append(key)
        return key * tokens

    cache = SegmentCache(most_tokens=10)
    for key, tokens in [("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4), ("d", 99)]:
        assert cache.get(key, tokens, make) == key * tokens
    assert made == ["a", "b", "c", "b", "d"]
