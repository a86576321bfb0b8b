"""The pool against a model of thirty lines, and its rules one by one."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from naive_cache import NaiveCache

from kvbench.errors import InputError
from kvbench.kvcache.blocks import BlockChain
from kvbench.kvcache.manager import BlockTable, CacheManager
from kvbench.kvcache.pool import BlockPool

SIZE = 2


class Watcher:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.told = []

    def stored(self, chain, first, last):
        """Note which blocks of a chain were stored."""
        self.told += [("stored", chain.hashes[index]) for index in range(first, last)]

    def removed(self, block_hash):
        """Note an eviction."""
        self.told.append(("removed", block_hash))

    def cleared(self):
        """Note a reset."""
        self.told.append(("cleared",))


def cache_of(blocks, watcher=None):
    """Return a manager over a pool with that many usable blocks."""
    return CacheManager(BlockPool(blocks + 1, watcher), SIZE)


def ask(cache, prompt):
    """Admit a whole prompt; return its table and how many blocks it hit, or None."""
    table = BlockTable(BlockChain(prompt, SIZE))
    hits = cache.lookup(table)
    if not cache.admit(table, hits, len(prompt) - len(hits) * SIZE):
        return None
    return table, len(hits)


def test_a_prompt_that_is_cached_in_full_recomputes_its_last_block():
    """The last token's logits are needed in any case: ⌊(P - 1) / B⌋ blocks."""
    cache = cache_of(8)
    table, hits = ask(cache, [1, 2, 3, 4])
    cache.release(table)
    assert hits == 0
    assert ask(cache, [1, 2, 3, 4])[1] == 1
    assert ask(cache, [1, 2, 3, 4, 5])[1] == 2


def test_of_one_request_the_tail_is_evicted_before_the_head():
    """What is left of a prompt under pressure is its beginning."""
    cache = cache_of(4)
    cache.release(ask(cache, [1, 2, 3, 4, 5, 6])[0])
    cache.release(ask(cache, [9, 9, 9, 9])[0])
    assert ask(cache, [1, 2, 3, 4, 5, 6, 7])[1] == 2


def test_blocks_without_a_hash_are_reused_before_any_cached_block():
    """A partial block can never be hit, so it goes to the front of the queue."""
    cache = cache_of(3)
    cache.release(ask(cache, [1, 2, 3])[0])  # one full block, one partial
    cache.release(ask(cache, [7])[0])
    assert cache.pool.evictions == 0
    assert ask(cache, [1, 2, 8])[1] == 1


def test_the_least_recently_used_request_is_evicted_first_and_a_hit_is_a_use():
    """A prompt that was asked again outlives one that was not."""
    cache = cache_of(4)
    for prompt in ([1, 1, 2, 2], [3, 3, 4, 4], [1, 1, 2, 2]):
        cache.release(ask(cache, prompt)[0])
    cache.release(ask(cache, [5, 5])[0])
    assert ask(cache, [1, 1, 2, 2, 0])[1] == 2


def test_two_requests_at_once_fill_two_copies_and_the_older_is_hit():
    """Copies are announced twice, and stay hits until the last is gone."""
    watcher = Watcher()
    cache = cache_of(4, watcher)
    first, second = (BlockTable(BlockChain([1, 2, 3], SIZE)) for _ in range(2))
    assert cache.admit(first, [], 3)
    assert cache.admit(second, [], 3)
    stored = ("stored", first.chain.hashes[0])
    assert watcher.told == [stored, stored]
    assert cache.pool.resident == 2
    assert cache.lookup(BlockTable(BlockChain([1, 2, 3], SIZE))) == first.blocks[:1]
    cache.release(first)
    assert ask(cache, [8, 8])[1] == 0  # takes the partial block
    assert ask(cache, [9, 9])[1] == 0  # takes the older copy
    assert watcher.told[-2] == ("removed", first.chain.hashes[0])
    assert cache.lookup(BlockTable(BlockChain([1, 2, 3], SIZE))) == second.blocks[:1]


def test_a_younger_copy_may_be_evicted_while_the_older_is_in_use():
    """The lookup goes on finding the older one."""
    cache = cache_of(4)
    older, younger = (BlockTable(BlockChain([1, 2, 3], SIZE)) for _ in range(2))
    cache.admit(older, [], 3)
    cache.admit(younger, [], 3)
    cache.release(younger)
    ask(cache, [7, 7, 8, 8])
    assert cache.pool.evictions == 1
    assert cache.lookup(BlockTable(BlockChain([1, 2, 3], SIZE))) == older.blocks[:1]


def test_a_reset_is_refused_while_a_block_is_referenced():
    """It would take blocks away from a running request."""
    watcher = Watcher()
    cache = cache_of(4, watcher)
    table, _ = ask(cache, [1, 2, 3])
    assert not cache.pool.reset()
    cache.release(table)
    assert cache.pool.reset()
    assert watcher.told[-1] == ("cleared",)
    assert (cache.pool.resident, cache.pool.evictable) == (0, 0)
    assert ask(cache, [1, 2, 3])[1] == 0


def test_a_request_that_does_not_fit_as_a_whole_changes_nothing():
    """Hits that nobody uses count as room, hits that somebody uses need none."""
    cache = cache_of(4)
    cache.release(ask(cache, [1, 1, 2, 2])[0])
    before = (cache.pool.free_order(), cache.pool.contents())
    assert ask(cache, [1, 1, 2, 2, 3, 3, 4, 4, 5]) is None
    assert (cache.pool.free_order(), cache.pool.contents()) == before
    assert ask(cache, [1, 1, 2, 2, 3, 3, 4])[1] == 2


def test_a_pool_needs_a_block_beside_the_null_block():
    """One block alone could hold nothing."""
    with pytest.raises(InputError, match="num_gpu_blocks: expected at least 2, got 1"):
        BlockPool(1)


def test_usage_counts_referenced_blocks_among_the_usable():
    """Cached blocks that nobody references are free: they cost nothing to reuse."""
    cache = cache_of(4)
    table, _ = ask(cache, [1, 2, 3])
    assert cache.pool.usage == 0.5
    cache.release(table)
    assert (cache.pool.usage, cache.pool.resident, cache.pool.evictable) == (0.0, 1, 1)


class PoolAgainstModel(RuleBasedStateMachine):
    """Law 1: the same hits and the same victims as the naive list."""

    def __init__(self):
        super().__init__()
        self.usable = 6
        self.watcher = Watcher()
        self.cache = cache_of(self.usable, self.watcher)
        self.naive = NaiveCache(self.usable, SIZE)
        self.names = {}
        self.running = []

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=11).map(tuple))
    def ask(self, prompt):
        """Ask both; they agree on whether it fits and on the hits."""
        for end in range(SIZE, len(prompt) + 1, SIZE):
            self.names[BlockChain(prompt[:end], SIZE).hashes[-1]] = prompt[:end]
        ours, theirs = ask(self.cache, prompt), self.naive.ask(prompt)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours[1] == theirs[0]
            self.running.append((ours[0], theirs[1]))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def free(self, data):
        """End any running request in both."""
        table, blocks = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.cache.release(table)
        self.naive.release(blocks)

    @rule()
    def clear(self):
        """Reset both; allowed exactly when nothing runs."""
        assert self.cache.pool.reset() == (not self.running)
        if not self.running:
            self.naive.clear()

    @invariant()
    def same_victims(self):
        """The same blocks were evicted in the same order."""
        told = [self.names[item[1]] for item in self.watcher.told if item[0] == "removed"]
        assert told == self.naive.evicted

    @invariant()
    def blocks_add_up(self):
        """Used + free = capacity; nothing is both; who is free is referenced by none."""
        pool = self.cache.pool
        used = {block for table, _ in self.running for block in table.blocks}
        free = pool.free_order()
        assert len(free) == pool.free == len(set(free))
        assert used | set(free) == set(range(1, self.usable + 1))
        assert not used & set(free)
        assert pool.idle(range(1, self.usable + 1)) == pool.free

    @invariant()
    def figures_agree(self):
        """Resident and evictable are counted as they change, and counted right."""
        pool = self.cache.pool
        assert pool.resident == len(self.naive.cached)
        assert pool.evictable == sum(block[1] == 0 for block in self.naive.cached)
        assert {self.names[key] for key in pool.contents()} == {
            block[0] for block in self.naive.cached
        }

    @invariant()
    def children_come_after_parents(self):
        """No block was ever stored before the block that it continues."""
        seen = set()
        for item in self.watcher.told:
            if item[0] == "stored":
                name = self.names[item[1]]
                assert len(name) == SIZE or name[:-SIZE] in seen
                seen.add(name)


TestPoolAgainstModel = PoolAgainstModel.TestCase
