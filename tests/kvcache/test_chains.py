"""The store of hashed beginnings: always equal to hashing everything."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kvbench.kvcache.blocks import PromptKeys, block_hashes
from kvbench.kvcache.chains import ChainStore

KEYS = st.builds(
    PromptKeys,
    cache_salt=st.none() | st.sampled_from("ab"),
    lora_name=st.none() | st.sampled_from("ab"),
    mm_hashes=st.sampled_from([(), (), (("cat", 1, 3),)]),
)
PROMPTS = st.lists(
    st.tuples(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), max_size=6), KEYS),
    max_size=6,
)


def marked(parts):
    """Return the ids of a prompt from so many on, and a mark for the end of each of its parts."""
    ids, marks = array("I"), []
    for part in parts:
        ids += array("I", part)
        marks.append((hash(ids.tobytes()), len(ids)))
    return lambda start: ids[start:], marks


@given(prompts=PROMPTS, size=st.integers(1, 4), capacity=st.sampled_from([6, 1000]))
def test_the_hashes_are_those_of_the_whole_prompt_whatever_was_seen_before(prompts, size, capacity):
    """Salts, adapters and pictures kept apart; blocks that no mark ends on."""
    store = ChainStore(size, capacity)
    for parts, keys in prompts:
        ids, marks = marked(parts)
        for some in (marks, marks[:-1], []):
            assert list(store.hashes(ids, some, keys)) == block_hashes(ids(0), size, keys)
            assert len(store) <= capacity


def test_a_conversation_is_kept_once():
    """Its next turn adds what is new."""
    store = ChainStore(2)
    store.hashes(*marked([[1] * 8, [2] * 8]))
    assert len(store) == 8
    store.hashes(*marked([[1] * 8, [2] * 8, [3] * 4]))
    assert len(store) == 10


def test_what_is_least_recently_used_goes_first():
    """Room for six blocks: the older prompt's four go."""
    store = ChainStore(2, capacity=6)
    old, new = marked([[1] * 4, [2] * 4]), marked([[3] * 8])
    store.hashes(*old)
    store.hashes(*new)
    assert len(store) == 4
    assert list(store.hashes(*old)) == block_hashes(old[0](0), 2)
    assert list(store.hashes(*new)) == block_hashes(new[0](0), 2)
