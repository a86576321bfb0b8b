"""A request's blocks as it grows: what it asks the pool for, and what others can hit."""

from kvbench.kvcache.blocks import BlockChain
from kvbench.kvcache.manager import BlockTable, CacheManager
from kvbench.kvcache.pool import BlockPool


def test_blocks_are_taken_as_tokens_are_scheduled_and_cached_when_they_are_full():
    """A chunk of a prompt takes the blocks of that chunk only."""
    manager = CacheManager(BlockPool(11), 4)
    table = BlockTable(BlockChain(range(18), 4))
    assert manager.admit(table, [], 6)
    assert (len(table.blocks), table.cached) == (2, 1)
    assert manager.extend(table, 18)
    assert (len(table.blocks), table.cached) == (5, 4)
    assert manager.extend(table, 18)
    assert len(table.blocks) == 5
    manager.release(table)
    assert (table.blocks, table.cached, manager.pool.free) == ([], 0, 10)


def test_a_request_that_cannot_grow_keeps_what_it_has():
    """The scheduler may preempt somebody and ask again."""
    manager = CacheManager(BlockPool(3), 4)
    table = BlockTable(BlockChain(range(8), 4))
    assert manager.admit(table, [], 8)
    table.chain.append(8)
    assert not manager.extend(table, 9)
    assert (len(table.blocks), table.cached) == (2, 2)


def test_a_manager_that_keeps_nothing_finds_nothing():
    """Prefix caching turned off."""
    manager = CacheManager(BlockPool(9), 4, enable_caching=False)
    table = BlockTable(BlockChain(range(9), 4))
    assert manager.admit(table, manager.lookup(table), 9)
    manager.release(table)
    assert manager.lookup(table) == []
    assert manager.pool.resident == 0
