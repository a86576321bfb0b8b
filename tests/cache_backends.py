"""What `.cache` files are played to: the pool, and an index that hears only its events."""

from kvbench.kvcache.blocks import BlockChain, block_hashes
from kvbench.kvcache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
    encode_batch,
)
from kvbench.kvcache.index import BlockIndex
from kvbench.kvcache.manager import BlockTable, CacheManager
from kvbench.kvcache.pool import BlockPool


class PoolBackend:
    """The pool itself, with a manager before it."""

    def pool(self, blocks, size):
        """Begin anew."""
        self.told, self.texts, self.tables, self.size = [], {}, {}, size
        self.manager = CacheManager(BlockPool(blocks + 1, self), size)

    def ask(self, request, tokens):
        """Admit the whole prompt at once."""
        table = BlockTable(BlockChain(tokens, self.size))
        hits = self.manager.lookup(table)
        if not self.manager.admit(table, hits, len(tokens) - len(hits) * self.size):
            return None
        self.tables[request] = table
        return len(hits)

    def free(self, request):
        """Give its blocks back."""
        self.manager.release(self.tables.pop(request))

    def clear(self):
        """Reset the pool."""
        return self.manager.pool.reset()

    def events(self):
        """Return what the pool told its observer, this object."""
        told, self.told = self.told, []
        return told

    def stored(self, chain, first, last):
        """Hear of stored blocks."""
        for index in range(first, last):
            text = list(chain.tokens[: (index + 1) * self.size])
            self.texts[chain.hashes[index]] = text
            self.told.append(("stored", text))

    def removed(self, block_hash):
        """Hear of an eviction."""
        self.told.append(("removed", self.texts[block_hash]))

    def cleared(self):
        """Hear of a reset."""
        self.told.append(("cleared",))


class IndexBackend(PoolBackend):
    """An index that predicts each hit from events that went over the wire."""

    def pool(self, blocks, size):
        """Begin anew, with an index that knows nothing."""
        super().pool(blocks, size)
        self.index, self.wire = BlockIndex(size), []
        self.index.add("pod")

    def ask(self, request, tokens):
        """Predict, then ask the pool: both are the hit."""
        usable = block_hashes(tokens, self.size)[: (len(tokens) - 1) // self.size]
        predicted = self.index.match(usable)["pod"]
        hit = super().ask(request, tokens)
        self.publish()
        return hit if hit is None else predicted

    def clear(self):
        """Reset the pool and hear of it."""
        done = super().clear()
        self.publish()
        return done

    def publish(self):
        """Send what happened through the codec into the index."""
        payload = encode_batch(EventBatch(0.0, tuple(self.wire)))
        self.wire.clear()
        self.index.apply("pod", decode_batch(payload))
        assert self.index.contents("pod") == self.manager.pool.contents()

    def stored(self, chain, first, last):
        """Put it on the wire under other names."""
        super().stored(chain, first, last)
        names = tuple(key * 3 for key in chain.hashes[first:last])
        parent = chain.parent_of(first)
        tokens = tuple(chain.tokens[first * self.size : last * self.size])
        parent = None if parent is None else parent * 3
        self.wire.append(BlockStored(names, parent, tokens, self.size))

    def removed(self, block_hash):
        """Put it on the wire under its other name."""
        super().removed(block_hash)
        self.wire.append(BlockRemoved((block_hash * 3,)))

    def cleared(self):
        """Put it on the wire."""
        super().cleared()
        self.wire.append(AllBlocksCleared())
