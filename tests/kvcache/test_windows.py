"""Where a model with several kinds of attention can go on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.kvcache.blocks import block_hashes
from kvbench.kvcache.events import BlockRemoved, BlockStored, EventBatch
from kvbench.kvcache.index import BlockIndex

SIZE = 2
FULL = {"group_idx": 3, "kv_cache_spec_kind": "full_attention"}


def stored(names, tokens, size=SIZE, parent=None, **fields) -> BlockStored:
    """Return a BlockStored."""
    return BlockStored(tuple(names), parent, tuple(tokens), size, **fields)


def window(names, tokens, number=0, width=5, size=SIZE, kind="sliding_window") -> BlockStored:
    """Return that of a group with a window of so many tokens: it names the blocks it has kept."""
    fields = {"group_idx": number, "kv_cache_spec_kind": kind}
    return stored(names, tokens, size, **fields, kv_cache_spec_sliding_window=width)


def reach(index: BlockIndex, tokens) -> int:
    """Return how many blocks of a prompt the pod is taken to reuse."""
    return index.match(block_hashes(list(tokens), SIZE))["a"]


def index_of(*events) -> BlockIndex:
    """Return an index after these events of a pod."""
    index = BlockIndex(SIZE)
    index.apply("a", EventBatch(0.0, events))
    return index


TEN = list(range(20))
NAMES = list(range(1, 11))


@pytest.mark.parametrize("late", [False, True])
def test_a_prefix_is_reused_as_far_as_its_last_blocks_are_in_every_window(late):
    """A window of five tokens needs two blocks of two; in between there is nothing to go on from.

    Groups are told of before the whole context or after it.
    """
    whole = stored(NAMES, TEN, **FULL)
    windows = [window([4, 5, 9, 10], TEN), window([4, 5, 9, 10], TEN, number=1)]
    index = index_of(whole, *windows) if late else index_of(*windows, whole)
    assert [reach(index, TEN[: 2 * n]) for n in range(11)] == [0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10]
    index.apply("a", EventBatch(0.0, (BlockRemoved((9,), "GPU", 1),)))
    assert reach(index, TEN) == 5
    index.apply("a", EventBatch(0.0, (BlockRemoved((5,), "GPU", 0),)))
    assert reach(index, TEN) == 0
    assert index.blocks("a") == 10


def test_at_a_prompts_beginning_a_window_needs_no_more_than_there_is():
    """The first block alone, if that is all."""
    index = index_of(window([1], TEN[:2]), stored([1], TEN[:2], **FULL))
    assert reach(index, TEN) == 1


def test_a_recurrent_state_is_needed_at_the_place_itself():
    """One block, whatever came before it."""
    state = window([6], TEN, width=None, kind="mamba")
    assert reach(index_of(state, stored(NAMES, TEN, **FULL)), TEN) == 6


def test_groups_of_other_kinds_need_nothing_that_is_known():
    """As a window whose width is not told."""
    for other in (
        window([6], TEN, kind="chunked_local_attention"),
        window([6], TEN, width=None),
        stored([6], TEN, group_idx=1),
    ):
        assert reach(index_of(other, stored(NAMES, TEN, **FULL)), TEN) == 10


@pytest.mark.parametrize(
    ("size", "names", "expected"),
    [
        pytest.param(4, [4, 6], 6, id="larger blocks end at every other"),
        pytest.param(4, [4, 8], 0, id="and need the one before"),
        pytest.param(1, [105, 5, 104, 4], 5, id="of smaller ones, those that end with another"),
    ],
)
def test_blocks_of_other_sizes_are_compared_by_where_they_end(size, names, expected):
    """By their names, which are those of the same places."""
    width = 7 if size == 4 else 4
    events = window(names, TEN, width=width, size=size), stored(NAMES, TEN, **FULL)
    assert reach(index_of(*events), TEN) == expected


def test_copies_in_a_window_are_counted_and_a_reset_forgets_all():
    """Two physical blocks are removed twice."""
    whole = stored(NAMES, TEN, **FULL)
    index = index_of(window([9, 10], TEN), whole, window([10], TEN))
    index.apply("a", EventBatch(0.0, (BlockRemoved((10,), "GPU", 0),)))
    assert reach(index, TEN) == 10
    index.apply("a", EventBatch(0.0, (BlockRemoved((10,), "GPU", 0),)))
    assert reach(index, TEN) == 0
    index.clear("a")
    index.apply("a", EventBatch(0.0, (whole,)))
    assert reach(index, TEN) == 10


def test_what_is_offloaded_is_not_cut_off_and_an_engines_word_corrects_nothing():
    """What lies in lower tiers is loaded whole; and less than was held is no copy too many."""
    index = index_of(window([4, 5], TEN), stored(NAMES, TEN, **FULL))
    assert index.correct("a", block_hashes(TEN, SIZE), 0) == 0
    assert index.blocks("a") == 10
    index.apply("a", EventBatch(0.0, (stored([1], [], medium="CPU"),)))
    assert index.match(block_hashes(TEN, SIZE), anywhere=True)["a"] == 10


@given(st.integers(0, 2**32), st.integers(2, 9), st.integers(1, 3))
def test_whatever_is_kept_the_longest_prefix_that_all_windows_serve_is_found(seed, width, groups):
    """As a search over all lengths finds it; parents may come late, and names in any order."""
    draw = random.Random(seed)
    need = max(-(-(width - 1) // SIZE), 1)
    kept = [{n for n in NAMES if draw.random() < 0.7} for _ in range(groups)]
    halves = [stored(NAMES[5:], TEN[10:], parent=5, **FULL), stored(NAMES[:5], TEN[:10], **FULL)]
    told = [window(sorted(names), TEN, g, width) for g, names in enumerate(kept)]
    events = [*told, *halves]
    draw.shuffle(events)
    expected = max(
        length
        for length in range(11)
        if all(n in names for names in kept for n in NAMES[max(length - need, 0) : length])
    )
    assert reach(index_of(*events), TEN) == expected
