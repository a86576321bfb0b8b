"""Stretches looked up as one: always what a look-up block by block would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbench.kvcache.blocks import block_hashes
from kvbench.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbench.kvcache.index import BlockIndex
from kvbench.kvcache.stretches import Stretches

PROMPTS = [[0] * 9, [0] * 6 + [1] * 3, [0] * 3 + [1] * 6, [1] * 9]
HASHES = [block_hashes(prompt, 1) for prompt in PROMPTS]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["stored", "removed", "removed", "cleared", "corrected", "dropped"]),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(1, 9),
    ),
    max_size=30,
)


def change(index: BlockIndex, what: str, pod: str, prompt: int, blocks: int) -> None:
    """Have something become of a pod's blocks, whose names are their hashes."""
    hashes = HASHES[prompt]
    if what == "stored":
        event = BlockStored(tuple(hashes[:blocks]), None, tuple(PROMPTS[prompt][:blocks]), 1)
        index.apply(pod, EventBatch(0.0, (event,)))
    elif what == "removed":
        index.apply(pod, EventBatch(0.0, (BlockRemoved((hashes[blocks - 1],)),)))
    elif what == "cleared":
        index.apply(pod, EventBatch(0.0, (AllBlocksCleared(),)))
    elif what == "corrected":
        index.correct(pod, hashes, blocks - 1)
    else:
        index.remove(pod)


@given(steps=STEPS, stretch=st.integers(1, 4))
def test_a_match_is_that_of_an_index_which_never_looked_before(steps, stretch):
    """Whatever pods store, evict or forget between look-ups, with holes in the middle."""
    index = BlockIndex(1, stretch=stretch)
    for number, step in enumerate(steps, 1):
        change(index, *step)
        fresh = BlockIndex(1)
        for earlier in steps[:number]:
            change(fresh, *earlier)
        for hashes in HASHES:
            for end in (9, 6, 1):
                assert index.match(hashes[:end]) == fresh.match(hashes[:end])


def test_a_known_stretch_is_not_looked_up_again_until_one_of_its_blocks_changes():
    """And what follows it is."""
    asked = []

    class Asked(BlockIndex):
        """Notes what is looked up."""

        def _falls(self, blocks, *rest):
            asked.append(HASHES[0].index(blocks[0]))
            return super()._falls(blocks, *rest)

    index = Asked(1, stretch=3)
    change(index, "stored", "a", 0, 6)
    assert [index.match(HASHES[0]), index.match(HASHES[0])] == [{"a": 6}] * 2
    assert asked == [0, 3, 6, 6]
    change(index, "removed", "a", 0, 5)
    assert index.match(HASHES[0]) == {"a": 4}
    assert asked[4:] == [3]


def test_there_is_room_for_so_many_blocks_and_the_oldest_stretch_goes_first():
    """A part of a stretch, and one that shares blocks with another, are not kept."""
    kept = Stretches(length=2, most=5)
    for first in (10, 20, 30):
        kept.keep([first, first + 1], [])
    kept.keep([40], [])
    kept.keep([30, 99], [])
    assert [kept.find(blocks) for blocks in ([10, 11], [20, 21], [30, 31])] == [None, [], []]
    assert (kept.find([40]), kept.find([30, 99]), kept.find([31])) == (None, None, None)
    assert set(kept.watched) == {20, 21, 30, 31}
