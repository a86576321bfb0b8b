"""Which pods hold which block: an index fed by nothing but KV events.

The index is keyed by kvbench's own chain over token ids (`kvbench.kvcache.blocks`). What an engine
calls its blocks is an *alias* that means something only for that pod: it is translated when a block
is stored and looked up when it is removed. So engines may hash as they like, differently from each
other and from run to run.

Rules:

- A block counts as held from its BlockStored to its last BlockRemoved. Two physical copies of one
  block are announced twice and removed twice; copies are counted, up to `MOST_COPIES`, since some
  engines announce reused blocks again without ever removing them.
- A block whose parent is unknown cannot be placed: its place in the chain is missing. It is parked
  until the parent comes, and is not held until then.
- Only what serves attention over the whole context counts. Other cache groups (sliding windows) say
  only where in it an engine can go on (`kvbench.kvcache.windows`). A block is held if it is in GPU
  memory. What lies in a lower tier (CPU memory, a disk) is kept apart, medium by medium: an engine
  that offloads announces the lower copy of a block, by name alone, before it evicts the upper one.
  `match` counts lower tiers where it is told to.
- Blocks smaller than the index's are parts of blocks, by which some engines find a prompt's end
  again; they are skipped.
- Whether what is known is complete is for `kvbench.kvcache.feed` to say.

A (block, pod) pair takes 32 bytes for the alias and as much for the key, plus two dictionary slots:
about 150 bytes with one holder, less with several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvbench.kvcache.blocks import (
    BYTES_PER_TOKEN,
    ROOT,
    hash_block,
    hash_blocks,
    pack_tokens,
    token_bytes,
)
from kvbench.kvcache.events import BlockRemoved, BlockStored, EventFormatError, engine_hash, in_gpu
from kvbench.kvcache.stretches import LENGTH, Stretches
from kvbench.kvcache.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvbench.kvcache.blocks import BlockHash, ExtraKey
    from kvbench.kvcache.events import EngineHash, EventBatch, ExtraValue
    from kvbench.kvcache.stretches import Falls

MOST_COPIES = 16
"""Copies of one block that are counted on one pod."""

MOST_PARKED = 65_536
"""Blocks without a known parent that are kept per pod."""

_ALIAS_BITS = (1 << 60) - 1


class LargerBlocksError(EventFormatError):
    """A pod stores larger blocks than the index has: what it had told before were parts of them.

    Attributes:
        size: Tokens of the larger ones.
    """

    def __init__(self, pod: str, expected: int, size: int) -> None:
        super().__init__(
            f"{pod}: expected blocks of {expected} tokens, got {size}",
            hint="give the router the pods' --block-size",
        )
        self.size = size


class IndexObserver(Protocol):
    """Is told what becomes of blocks, as it happens. Copies of a block on one pod are one block."""

    def extended(self, pod: str, block: BlockHash, blocks: int) -> None:
        """A pod has computed `blocks` blocks behind a block that it holds: it has used that one."""
        ...

    def stored(self, pod: str, block: BlockHash, parent: BlockHash, holders: int) -> None:
        """A pod holds a block behind `parent`, as `holders` other pods do."""
        ...

    def removed(self, pod: str, block: BlockHash, holders: int, *, evicted: bool) -> None:
        """A pod holds a block no more, `holders` others still do; else than evicted, forgotten."""
        ...


class _Pod:
    """What is known of one pod."""

    __slots__ = (
        "aliases", "bit", "children", "copies", "group", "lower", "name", "parked", "windows",
    )  # fmt: skip

    def __init__(self, name: str, bit: int) -> None:
        self.name = name
        self.bit = bit
        self.group: int | None = None
        self.aliases: dict[int, BlockHash] = {}
        # Blocks in lower tiers, by medium and alias.
        self.lower: dict[str, dict[int, BlockHash]] = {}
        # Copies beyond the first, by alias.
        self.copies: dict[int, int] = {}
        # Blocks that wait for their parent, by alias, and their aliases by the parent's.
        self.parked: dict[int, tuple[int, bytes, tuple[ExtraKey, ...]]] = {}
        self.children: dict[int, list[int]] = {}
        # Other groups, where the model has them.
        self.windows: Windows | None = None


class BlockIndex:
    """Block hashes of many pods.

    Args:
        block_size: Tokens per block; all pods must agree.
        observer: Is told of every block.
        stretch: Blocks that are looked up as one, where it is known how far pods hold them.

    Attributes:
        dropped: Blocks that could be neither placed nor parked.
    """

    __slots__ = (
        "_everyone",
        "_holders",
        "_lower",
        "_names",
        "_observer",
        "_pods",
        "_stretches",
        "_windowed",
        "block_size",
        "dropped",
    )

    def __init__(
        self, block_size: int, observer: IndexObserver | None = None, stretch: int = LENGTH
    ) -> None:
        self.block_size = block_size
        self._observer = observer
        self.dropped = 0
        self._pods: dict[str, _Pod] = {}
        self._names: dict[int, str] = {}  # by bit
        self._everyone = 0
        # A bit for each pod that holds the block.
        self._holders: dict[BlockHash, int] = {}
        # The same for lower tiers.
        self._lower: dict[BlockHash, int] = {}
        # What was looked up among the holders, and still holds.
        self._stretches = Stretches(stretch)
        self._windowed = False  # whether any pod's model has other groups

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the pods that the index knows."""
        return tuple(self._pods)

    def add(self, pod: str) -> None:
        """Begin to know a pod, with nothing in it."""
        if pod not in self._pods:
            self._stretches.clear()  # nothing of the new one is known there
            bit = ~self._everyone & (self._everyone + 1)  # the lowest that nobody has
            self._pods[pod] = _Pod(pod, bit)
            self._names[bit] = pod
            self._everyone |= bit

    def remove(self, pod: str) -> None:
        """Forget a pod altogether."""
        self.clear(pod)
        known = self._pods.pop(pod, None)
        if known is not None:
            del self._names[known.bit]
            self._everyone ^= known.bit

    def clear(self, pod: str) -> None:
        """Forget what a pod holds: it was reset or restarted, or its events were lost."""
        known = self._pods.get(pod)
        if known is None:
            return
        for block_hash in known.aliases.values():
            self._release(block_hash, known)
        for medium in list(known.lower):
            self._raise(known, medium, list(known.lower[medium]))
        self._pods[pod] = _Pod(pod, known.bit)

    def blocks(self, pod: str) -> int:
        """Return how many different blocks a pod holds."""
        known = self._pods.get(pod)
        return len(known.aliases) if known else 0

    def physical(self, pod: str) -> int:
        """Return how many blocks of memory that takes: a block may have copies."""
        known = self._pods.get(pod)
        return len(known.aliases) + sum(known.copies.values()) if known else 0

    def parked(self, pod: str) -> int:
        """Return how many blocks of a pod wait for an unknown parent."""
        known = self._pods.get(pod)
        return len(known.parked) if known else 0

    def copies(self, pod: str, block_hash: BlockHash) -> int:
        """Return how many copies of a block a pod is believed to hold."""
        known = self._pods.get(pod)
        if known is None or not self._holders.get(block_hash, 0) & known.bit:
            return 0
        return max(
            (
                1 + known.copies.get(alias, 0)
                for alias in known.copies
                if known.aliases.get(alias) == block_hash
            ),
            default=1,
        )

    def contents(self, pod: str) -> set[BlockHash]:
        """Return the hashes of the blocks that a pod holds."""
        known = self._pods.get(pod)
        return set(known.aliases.values()) if known else set()

    def match(self, hashes: Sequence[BlockHash], *, anywhere: bool = False) -> dict[str, int]:
        """Return, for each pod, how many blocks it holds of the beginning of `hashes`.

        Args:
            hashes: Of a prompt's blocks. An engine never takes a prompt's last token from its
                cache: pass those of the first ⌊(tokens - 1) / block_size⌋ blocks to get what it
                would really reuse.
            anywhere: Whether blocks in lower tiers count too: they are loaded, not computed.
        """
        lower = self._lower if anywhere else {}
        everyone, length = self._everyone, self._stretches.length
        left, found = everyone, dict.fromkeys(self._pods, len(hashes))
        for first in range(0, len(hashes) if everyone else 0, length):
            falls = None if lower else self._stretches.find(hashes, first)
            if falls is None:
                falls = self._falls(hashes[first : first + length], everyone, lower)
            for fallen, held in falls:
                here = fallen & left
                left ^= here
                while here:
                    bit = here & -here
                    here ^= bit
                    found[self._names[bit]] = first + held
            if not left:
                break
        for pod, known in self._pods.items() if self._windowed else ():
            if known.windows is not None and not known.lower:
                found[pod] = known.windows.reach(hashes, found[pod])
        return found

    def _falls(
        self, blocks: Sequence[BlockHash], everyone: int, lower: Mapping[BlockHash, int]
    ) -> Falls:
        """Return how far each pod holds a stretch, if not all of it; blocks in `lower` count."""
        held: list[int | None] = list(map(self._holders.get, blocks))
        if lower:
            below = map(lower.get, blocks)
            held = [(one or 0) | (two or 0) for one, two in zip(held, below, strict=True)]
        falls: Falls = []
        for holders in dict.fromkeys(held):  # few: what follows each other is held by the same
            fallen = everyone & ~(holders or 0)
            if fallen:
                falls.append((fallen, held.index(holders)))
                everyone ^= fallen
        if everyone and not lower:  # somebody holds all of it
            self._stretches.keep(blocks, falls)
        return falls

    def apply(self, pod: str, batch: EventBatch) -> bool:
        """Apply a batch of a pod, which is added if it is new.

        Returns:
            Whether the batch cleared the pod's cache: what is known of it is complete again.

        Raises:
            LargerBlocksError: The pod's blocks are larger than the index's.
            EventFormatError: A token id does not fit into 32 bits.
        """
        self.add(pod)
        known, cleared = self._pods[pod], False
        gone: list[EngineHash] = []  # by events that follow each other
        for event in batch.events:
            if isinstance(event, BlockRemoved):
                if event.group_idx is not None and event.group_idx != known.group:
                    if known.windows is not None and in_gpu(event.medium):
                        known.windows.removed(event.group_idx, _aliases(event.block_hashes))
                    continue
                if in_gpu(event.medium):
                    gone += event.block_hashes
                else:
                    self._raise(known, event.medium or "", _aliases(event.block_hashes))
                continue
            if gone:
                self._evict(known, gone)
                gone = []
            if isinstance(event, BlockStored):
                self._store(known, event)
            else:
                self.clear(pod)
                known, cleared = self._pods[pod], True
        self._evict(known, gone)
        return cleared

    def correct(self, pod: str, hashes: Sequence[BlockHash], held: int) -> int:
        """Take an engine's word that it held only the first `held` of these blocks.

        For the case that a copy was counted which does not exist: the pod is no longer believed to
        hold the block after them, and so nothing behind it in this chain can be matched.

        Returns:
            How many blocks of the chain the pod was believed to hold beyond.
        """
        known = self._pods.get(pod)
        if known is None or held >= len(hashes) or known.windows is not None:
            return 0
        believed = self.match(hashes)[pod]
        if believed > held:
            self._release(hashes[held], known)
        return max(believed - held, 0)

    def _store(self, known: _Pod, event: BlockStored) -> None:
        """Place blocks after their parent, or park them."""
        aliases = _aliases(event.block_hashes)
        if not event.counts:
            if in_gpu(event.medium):
                self._windowed = True
                known.windows = known.windows or Windows(self.block_size)
                known.windows.stored(event, aliases, known.aliases)
            elif event.group_idx in {None, known.group}:
                self._sink(known, event.medium or "", aliases)
            return
        if known.group is None:
            known.group = event.group_idx
        elif event.group_idx is not None and event.group_idx != known.group:
            return
        if event.block_size < self.block_size:
            return
        if event.block_size > self.block_size:
            raise LargerBlocksError(known.name, self.block_size, event.block_size)
        parent = None if event.parent_block_hash is None else _alias(event.parent_block_hash)
        above = ROOT if parent is None else known.aliases.get(parent)
        if self._observer is not None and parent is not None and above is not None:
            self._observer.extended(known.name, above, len(aliases))
        if above is None or not known.parked.keys().isdisjoint(aliases):
            self._place_each(known, aliases, parent, event)
        else:
            self._place(known, aliases, above, event)

    def _place(self, known: _Pod, aliases: list[int], above: BlockHash, event: BlockStored) -> None:
        """Place blocks behind one that is held, and whoever waited for them."""
        held, holders, bit = known.aliases, self._holders, known.bit
        observer, watched = self._observer, self._stretches.watched
        for alias, block_hash in zip(aliases, _hashes(above, event), strict=True):
            if held.setdefault(alias, block_hash) is not block_hash:
                self._copy(known, alias)
            elif not (others := holders.get(block_hash, 0)):  # nor is it watched, then
                holders[block_hash] = bit  # an object that is there already
                if observer is not None:
                    observer.stored(known.name, block_hash, above, 0)
            elif not others & bit:
                holders[block_hash] = others | bit
                if block_hash in watched:
                    self._stretches.changed(block_hash)
                if observer is not None:
                    observer.stored(known.name, block_hash, above, others.bit_count())
            above = block_hash
        self._placed(known, aliases)

    def _place_each(
        self, known: _Pod, aliases: list[int], parent: int | None, event: BlockStored
    ) -> None:
        """Place blocks one by one, or park them, where some are parked already."""
        data, width = _packed(event), self.block_size * BYTES_PER_TOKEN
        for index, alias in enumerate(aliases):
            content = data[index * width : (index + 1) * width]
            above = ROOT if parent is None else known.aliases.get(parent)
            if alias in known.aliases:
                self._copy(known, alias)
            elif above is None:
                self._park(known, alias, parent or 0, content, _extra_keys(event, index))
            else:
                block_hash = hash_block(above, content, _extra_keys(event, index))
                known.aliases[alias] = block_hash
                self._hold(block_hash, above, known)
                self._unpark(known, alias)
            parent = alias
        if known.windows is not None:
            known.windows.placed(aliases, known.aliases)

    def _placed(self, known: _Pod, aliases: list[int]) -> None:
        """Tell those who have waited for these blocks."""
        if known.windows is not None:
            known.windows.placed(aliases, known.aliases)
        if known.children:
            for alias in aliases:
                self._unpark(known, alias)

    def _unpark(self, known: _Pod, alias: int) -> None:
        """Place the blocks that have waited for this one, and those that have waited for them."""
        waiting = [alias]
        while waiting:
            alias = waiting.pop()
            above = known.aliases[alias]
            for child in known.children.pop(alias, ()):
                _, content, extra = known.parked.pop(child)
                block_hash = known.aliases[child] = hash_block(above, content, extra)
                self._hold(block_hash, above, known)
                waiting.append(child)
                if known.windows is not None:
                    known.windows.placed((child,), known.aliases)

    def _copy(self, known: _Pod, alias: int) -> None:
        """Count one more copy of a block; one that was disbelieved is a first copy again."""
        block_hash = known.aliases[alias]
        if self._holders.get(block_hash, 0) & known.bit:
            known.copies[alias] = min(known.copies.get(alias, 0) + 1, MOST_COPIES - 1)
        else:
            known.copies.pop(alias, None)
            self._hold(block_hash, ROOT, known)

    def _park(
        self, known: _Pod, alias: int, parent: int, content: bytes, extra: tuple[ExtraKey, ...]
    ) -> None:
        """Keep a block until its parent is known."""
        if alias in known.parked:
            known.copies[alias] = min(known.copies.get(alias, 0) + 1, MOST_COPIES - 1)
        elif len(known.parked) >= MOST_PARKED:
            self.dropped += 1
        else:
            known.parked[alias] = (parent, content, extra)
            known.children.setdefault(parent, []).append(alias)

    def _evict(self, known: _Pod, names: Iterable[EngineHash]) -> None:
        """Drop one copy of each of these blocks, and the block with its last."""
        held, copies, bit = known.aliases, known.copies, known.bit
        holders, observer = self._holders, self._observer
        watched = self._stretches.watched
        for alias in _aliases(names):
            if copies and alias in copies:
                self._drop_copy(known, alias)
                continue
            block_hash = held.pop(alias, None)
            if block_hash is None:
                self._drop_parked(known, alias)
                continue
            before = holders.get(block_hash, 0)
            if before == bit:
                del holders[block_hash]
            elif before & bit:
                holders[block_hash] = before ^ bit
            else:  # it was disbelieved
                continue
            if block_hash in watched:
                self._stretches.changed(block_hash)
            if observer is not None:
                others = (before ^ bit).bit_count()
                observer.removed(known.name, block_hash, others, evicted=True)

    def _drop_copy(self, known: _Pod, alias: int) -> None:
        """Count one copy of a block less."""
        if known.copies[alias] > 1:
            known.copies[alias] -= 1
        else:
            del known.copies[alias]

    def _drop_parked(self, known: _Pod, alias: int) -> None:
        """Let a block wait no more, if it does."""
        if alias in known.parked:
            parent, _, _ = known.parked.pop(alias)
            known.children[parent].remove(alias)
            if not known.children[parent]:
                del known.children[parent]

    def _sink(self, known: _Pod, medium: str, aliases: Iterable[int]) -> None:
        """Note that blocks which the pod holds, or has in another tier, are in a lower one too."""
        blocks = known.lower.setdefault(medium, {})
        for alias in aliases:
            block_hash = known.aliases.get(alias) or _in_any(known, alias)
            if block_hash is None:
                self.dropped += 1
            else:
                blocks[alias] = block_hash
                self._lower[block_hash] = self._lower.get(block_hash, 0) | known.bit

    def _raise(self, known: _Pod, medium: str, aliases: Iterable[int]) -> None:
        """Note that blocks are in a lower tier no more."""
        blocks = known.lower.get(medium, {})
        for alias in aliases:
            block_hash = blocks.pop(alias, None)
            if block_hash is None or _in_any(known, alias) is not None:
                continue
            holders = self._lower.get(block_hash, 0) & ~known.bit
            if holders:
                self._lower[block_hash] = holders
            else:
                self._lower.pop(block_hash, None)

    def _hold(self, block_hash: BlockHash, parent: BlockHash, known: _Pod) -> None:
        """Note that a pod holds a block."""
        holders = self._holders.get(block_hash, 0)
        # One holder's bit is an object that is there already.
        self._holders[block_hash] = holders | known.bit if holders else known.bit
        if block_hash in self._stretches.watched:
            self._stretches.changed(block_hash)
        if self._observer is not None and not holders & known.bit:
            self._observer.stored(known.name, block_hash, parent, holders.bit_count())

    def _release(self, block_hash: BlockHash, known: _Pod) -> None:
        """Note that a pod does not hold a block (any more)."""
        if block_hash in self._stretches.watched:
            self._stretches.changed(block_hash)
        before = self._holders.get(block_hash, 0)
        holders = before & ~known.bit
        if holders:
            self._holders[block_hash] = holders
        else:
            self._holders.pop(block_hash, None)
        if self._observer is not None and holders != before:
            self._observer.removed(known.name, block_hash, holders.bit_count(), evicted=False)


def _alias(name: EngineHash) -> int:
    """Return an engine's hash as the index keeps it: 60 bits of it."""
    return engine_hash(name) & _ALIAS_BITS


def _aliases(names: Iterable[EngineHash]) -> list[int]:
    """Return engines' hashes as the index keeps them."""
    try:
        return [name & _ALIAS_BITS for name in names]  # type: ignore[operator]  # bytes raise
    except TypeError:
        return [_alias(name) for name in names]


def _packed(event: BlockStored) -> bytes:
    """Return an event's token ids as the chain hashes them."""
    try:
        return token_bytes(pack_tokens(event.token_ids))
    except OverflowError as error:
        raise EventFormatError(f"KV events: token_ids: {error}") from error


def _hashes(above: BlockHash, event: BlockStored) -> list[BlockHash]:
    """Return the hashes of an event's blocks behind one."""
    data, width = _packed(event), event.block_size * BYTES_PER_TOKEN
    extra = event.extra_keys
    if not event.lora_name and event.lora_id is None and (extra is None or not any(extra)):
        return hash_blocks(above, data, width)
    hashes: list[BlockHash] = []
    for index in range(len(event.block_hashes)):
        content = data[index * width : (index + 1) * width]
        above = hash_block(above, content, _extra_keys(event, index))
        hashes.append(above)
    return hashes


def _in_any(known: _Pod, alias: int) -> BlockHash | None:
    """Return a block's hash if a lower tier has it."""
    return next((blocks[alias] for blocks in known.lower.values() if alias in blocks), None)


def _extra_keys(event: BlockStored, index: int) -> tuple[ExtraKey, ...]:
    """Return the extra keys of a block as the chain tags them; on the wire they are bare."""
    values = event.extra_keys[index] if event.extra_keys is not None else None
    if values is None:
        if event.lora_name:
            return (("lora", event.lora_name),)
        return () if event.lora_id is None else (("lora", f"#{event.lora_id}"),)
    return tuple(_tagged(event, position, value) for position, value in enumerate(values))


def _tagged(event: BlockStored, position: int, value: ExtraValue) -> ExtraKey:
    """Return one extra key with what it is: a LoRA's name comes first, a salt is a lone text."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int):
        return ("mm", str(value[0]), value[1])
    if isinstance(value, str):
        lora = position == 0 and value == event.lora_name
        return ("lora" if lora else "salt", value)
    return ("other", repr(value))
