"""A simulated engine that publishes KV events, for tests of whoever listens."""

from msgspec.structs import replace
from recordings import OneSecond

from kvbench.engine.publication import EventCollector
from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest
from kvbench.kvcache.events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    EventBatch,
    Message,
    encode_batch,
)

SIZE = 2  # tokens per block


class Pod:
    """An engine that publishes: its own names for blocks, a replay buffer, a sequence."""

    def __init__(self, number, blocks, kept):
        self.number = number
        self.life = getattr(self, "life", 0) + 1  # made anew, it is another process
        self.collector = EventCollector()
        config = EngineConfig(blocks, SIZE, 4, 16, 64)
        self.engine = Engine(config, OneSecond(), self.collector)
        self.published = []
        self.kept = kept
        self.asked = 0

    def act(self, draw):
        """Do something; return the message that comes of it, if any."""
        choice = draw.random()
        if choice < 0.4:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 12))]
            self.asked += 1
            request = EngineRequest(str(self.asked), prompt, draw.randrange(1, 5), lambda _: 1)
            self.engine.add(request)
        elif choice < 0.43:
            self.engine.reset_prefix_cache()
        elif choice < 0.46:
            self.engine.abort(str(self.asked))
        self.engine.step(0.0)
        return self.publish()

    def publish(self):
        """Return what the step has to say as a message."""
        events = tuple(map(self.renamed, self.collector.take()))
        if not events:
            return None
        form = "map" if len(self.published) % 2 else "array"
        payload = encode_batch(EventBatch(1e6 * self.life + len(self.published), events), form)
        self.published.append(Message("", len(self.published), payload))
        return self.published[-1]

    def renamed(self, event):
        """Give blocks this engine's own names."""
        if isinstance(event, AllBlocksCleared):
            return event
        names = tuple(map(self.name, event.block_hashes))
        if isinstance(event, BlockRemoved):
            return replace(event, block_hashes=names)
        parent = event.parent_block_hash
        parent = None if parent is None else self.name(parent)
        return replace(event, block_hashes=names, parent_block_hash=parent)

    def name(self, block_hash):
        """Return this engine's own name for a block."""
        return (block_hash * (2 * self.number + 3)) % 2**64

    def replay(self, start):
        """Return what is still kept from that number on, and the end marker."""
        kept = self.published[-self.kept :]
        return [m for m in kept if m.seq >= start] + [Message("", END_OF_REPLAY, b"")]
