"""The free queue against a plain list."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvbench.kvcache.free_queue import FreeQueue


class QueueAgainstList(RuleBasedStateMachine):
    """Whatever is done to both, they hold the same blocks in the same order."""

    def __init__(self):
        super().__init__()
        self.queue = FreeQueue(7)
        self.plain = list(range(7))
        self.out = []

    @rule(data=st.data())
    def pop(self, data):
        """Take some from the front."""
        count = data.draw(st.integers(0, len(self.plain)))
        taken = self.queue.pop(count)
        assert taken == self.plain[:count]
        self.plain = self.plain[count:]
        self.out += taken

    @rule(data=st.data())
    def remove(self, data):
        """Take one from anywhere."""
        if self.plain:
            block = data.draw(st.sampled_from(self.plain))
            self.queue.remove(block)
            self.plain.remove(block)
            self.out.append(block)

    @rule(data=st.data(), front=st.booleans())
    def put_back(self, data, front):
        """Put some back, at either end."""
        self.out = data.draw(st.permutations(self.out))
        count = data.draw(st.integers(0, len(self.out)))
        blocks, self.out = self.out[:count], self.out[count:]
        if front:
            self.queue.prepend(blocks)
            self.plain = blocks + self.plain
        else:
            self.queue.append(blocks)
            self.plain += blocks

    @invariant()
    def same(self):
        """Same order, same length."""
        assert list(self.queue) == self.plain
        assert len(self.queue) == len(self.plain)


TestQueueAgainstList = QueueAgainstList.TestCase
