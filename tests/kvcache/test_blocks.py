"""The hash chain: equal if and only if everything before is equal."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.kvcache.blocks import (
    BYTES_PER_TOKEN,
    BlockChain,
    PromptKeys,
    block_hashes,
    hash_block,
    hash_blocks,
    pack_tokens,
    token_bytes,
)

tokens = st.lists(st.integers(0, 3), max_size=24)
sizes = st.integers(1, 5)


@given(tokens, tokens, sizes)
def test_two_blocks_are_equal_exactly_where_the_prompts_are_equal_up_to_their_ends(a, b, size):
    """Law 3, over prompts that share beginnings by chance all the time."""
    for index, (left, right) in enumerate(
        zip(block_hashes(a, size), block_hashes(b, size), strict=False)
    ):
        end = (index + 1) * size
        assert (left == right) == (a[:end] == b[:end])


@given(tokens.filter(len), sizes, st.data())
def test_changing_a_token_changes_its_block_and_all_after_it(prompt, size, data):
    """And none before it."""
    at = data.draw(st.integers(0, len(prompt) - 1))
    changed = [*prompt[:at], prompt[at] + 1, *prompt[at + 1 :]]
    same = [
        left == right
        for left, right in zip(block_hashes(prompt, size), block_hashes(changed, size), strict=True)
    ]
    assert same == [index < at // size for index in range(len(prompt) // size)]


@given(tokens, sizes, st.integers(0, 24))
def test_a_chain_that_grew_token_by_token_equals_one_that_was_given_whole(prompt, size, start):
    """Answers extend the chain of their prompt."""
    grown = BlockChain(prompt[:start], size)
    for token in prompt[start:]:
        grown.append(token)
    assert grown.hashes == block_hashes(prompt, size)
    assert list(grown.tokens) == prompt


def test_the_chain_is_the_same_on_every_machine_and_in_every_process():
    """Numbers that must never change: recorded indexes and routers depend on them."""
    assert block_hashes(range(1, 33), 16) == [521669649535334068, 499563427138383787]


def test_hashes_fit_into_sixty_bits_and_are_not_confused_with_the_root():
    """Sixty bits make the smallest integers that CPython has for them."""
    hashes = block_hashes(range(4096), 4)
    assert len(set(hashes)) == 1024
    assert all(0 < value < 1 << 60 for value in hashes)
    assert max(hashes) > 1 << 59


def test_a_salt_separates_prompts_from_their_first_block_on():
    """It is a key of the first block only; the chain carries it on."""
    plain = block_hashes(range(8), 2)
    salted = block_hashes(range(8), 2, PromptKeys(cache_salt="a"))
    other = block_hashes(range(8), 2, PromptKeys(cache_salt="b"))
    assert not set(plain) & set(salted)
    assert not set(salted) & set(other)
    keys = PromptKeys(cache_salt="a")
    assert keys.of_block(0, 2) == (("salt", "a"),)
    assert keys.of_block(2, 4) == ()


def test_a_lora_adapter_is_a_key_of_every_block_and_no_salt():
    """An adapter and a salt of the same name are not the same thing."""
    adapter = PromptKeys(lora_name="x")
    assert adapter.of_block(0, 2) == adapter.of_block(2, 4) == (("lora", "x"),)
    assert block_hashes([1, 2], 2, adapter) != block_hashes([1, 2], 2, PromptKeys(cache_salt="x"))


def test_a_picture_is_a_key_of_the_blocks_that_it_touches_with_its_place():
    """Placeholders are equal tokens for all pictures, so tokens alone would lie."""
    keys = PromptKeys(mm_hashes=(("cat", 3, 4),))
    assert keys.of_block(0, 2) == ()
    assert keys.of_block(2, 4) == (("mm", "cat", 1),)
    assert keys.of_block(4, 6) == (("mm", "cat", -1),)
    assert keys.of_block(6, 8) == (("mm", "cat", -3),)
    assert keys.of_block(8, 10) == ()
    dog = PromptKeys(mm_hashes=(("dog", 3, 4),))
    moved = PromptKeys(mm_hashes=(("cat", 2, 4),))
    cat_hashes = block_hashes([0] * 8, 2, keys)
    for other in (dog, moved):
        same = [a == b for a, b in zip(cat_hashes, block_hashes([0] * 8, 2, other), strict=True)]
        assert same == [True, False, False, False]


def test_extra_keys_come_in_one_order():
    """Adapter, pictures, salt: as vLLM has them."""
    keys = PromptKeys("s", "l", (("m", 0, 1), ("n", 1, 1)))
    assert keys.of_block(0, 2) == (("lora", "l"), ("mm", "m", 0), ("mm", "n", 1), ("salt", "s"))


def test_a_machine_of_the_other_byte_order_hashes_the_same_bytes():
    """Four bytes a token, the least significant first."""
    assert token_bytes(pack_tokens([1, 258]), "little") == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    swapped = pack_tokens([1 << 24, 0x02010000])
    assert token_bytes(swapped, "big") == bytes([1, 0, 0, 0, 2, 1, 0, 0])


@pytest.mark.parametrize("bad", [[-1], [1 << 32], ["x"], [1.5]])
def test_what_is_no_token_id_is_refused(bad):
    """A chain over something else would be a chain over nothing."""
    with pytest.raises((OverflowError, TypeError)):
        BlockChain(bad, 2)


@given(tokens, sizes)
def test_parents_are_the_hashes_before(prompt, size):
    """The first block has none."""
    chain = BlockChain(prompt, size)
    assert chain.parent_of(0) is None
    for index, (parent, _) in enumerate(pairwise(chain.hashes)):
        assert chain.parent_of(index + 1) == parent


@given(tokens.filter(len), sizes, st.integers(0, 2**60 - 1))
def test_blocks_hashed_together_are_as_if_hashed_one_by_one(ids, size, parent):
    """Whatever stands before them."""
    data, width = token_bytes(pack_tokens(ids * size)), size * BYTES_PER_TOKEN
    expected, above = [], parent
    for at in range(0, len(data), width):
        above = hash_block(above, data[at : at + width])
        expected.append(above)
    assert hash_blocks(parent, data, width) == expected
