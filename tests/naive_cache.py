"""The prefix cache as one would explain it on a whiteboard: lists, no links, no arrays.

It plays the same requests as `kvbench.kvcache` and is slow on purpose. Blocks are named by what
they hold (the tuple of all tokens up to their end), so there is no hash to get wrong.
"""


class NaiveCache:
    """A least-recently-used list of blocks: the front goes first."""

    def __init__(self, usable, size):
        self.size = size
        self.free = [[None, 0] for _ in range(usable)]  # [what it holds, how many use it]
        self.cached = []  # blocks that can be hit, oldest first
        self.evicted = []

    def ask(self, prompt):
        """Return (blocks hit, all blocks of the prompt), or None if it does not fit."""
        names = [prompt[:end] for end in range(self.size, len(prompt) + 1, self.size)]
        hits = []
        for name in names[: (len(prompt) - 1) // self.size]:
            found = [block for block in self.cached if block[0] == name]
            if not found:
                break
            hits.append(found[0])
        fresh = -(-len(prompt) // self.size) - len(hits)
        if fresh > len(self.free) - sum(block[1] == 0 for block in hits):
            return None
        self.free = [block for block in self.free if not any(block is hit for hit in hits)]
        taken, self.free = self.free[:fresh], self.free[fresh:]
        self.evicted += [block[0] for block in taken if block[0] is not None]
        self.cached = [block for block in self.cached if not any(block is old for old in taken)]
        for block, name in zip(taken, [*names[len(hits) :], None], strict=False):
            block[0] = name
            self.cached += [block] if name is not None else []
        for block in hits + taken:
            block[1] += 1
        return len(hits), hits + taken

    def release(self, blocks):
        """Give blocks back: tail first, cached ones to the back, others to the front."""
        idle = [block for block in reversed(blocks) if block[1] == 1]
        for block in blocks:
            block[1] -= 1
        empty = [block for block in idle if block[0] is None]
        self.free = empty + self.free + [block for block in idle if block[0] is not None]

    def clear(self):
        """Forget all content."""
        for block in self.free:
            block[0] = None
        self.cached = []
