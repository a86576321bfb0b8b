"""What the prefix cache costs: time per block, bytes per block, and against the naive model.

Prints a small table. Only ratios and bytes travel from machine to machine:

    python scripts/bench_kvcache.py [--blocks 1000000]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.engine.profiles import profile
from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest
from kvbench.kvcache.blocks import BlockChain, block_hashes
from kvbench.kvcache.events import BlockStored, EventBatch, decode_batch, encode_batch
from kvbench.kvcache.index import BlockIndex
from kvbench.kvcache.manager import BlockTable, CacheManager
from kvbench.kvcache.pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from naive_cache import NaiveCache

SIZE = 16
PROMPT_BLOCKS = 500
TRIES = 20  # requests of which a cost is the mean


def timed(work: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of CPU that some work took, the best of so many times."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def prompt(number: int, blocks: int = PROMPT_BLOCKS) -> Sequence[int]:
    """Return a prompt of so many blocks that shares nothing with any other number's."""
    start = number * blocks * SIZE
    return range(start, start + blocks * SIZE)


def serve(manager: CacheManager, chain: BlockChain) -> None:
    """Let a request come and go."""
    table = BlockTable(chain)
    hits = manager.lookup(table)
    manager.admit(table, hits, len(chain.tokens) - len(hits) * SIZE)
    manager.release(table)


def fill(manager: CacheManager, blocks: int) -> None:
    """Fill a pool with different prompts."""
    for number in range(blocks // PROMPT_BLOCKS):
        serve(manager, BlockChain(prompt(number), SIZE))


def bench_pool(blocks: int) -> None:
    """Print what a full pool takes, and what hits and misses cost in it."""
    gc.collect()
    tracemalloc.start()
    manager = CacheManager(BlockPool(blocks + 1), SIZE)
    empty = tracemalloc.get_traced_memory()[0]
    fill(manager, blocks)
    full = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    resident = manager.pool.resident
    row("pool, bytes per block, empty", f"{empty / blocks:.0f} B")
    row("pool, bytes per resident block", f"{full / resident:.0f} B of {resident:,}")
    report_costs(manager, blocks)
    for smaller in (blocks // 10, blocks // 100):
        manager = CacheManager(BlockPool(smaller + 1), SIZE)
        fill(manager, smaller)
        report_costs(manager, smaller)
    tokens = list(prompt(3))
    seconds = timed(lambda: block_hashes(tokens, SIZE)) / PROMPT_BLOCKS
    row("chain, hashing", f"{seconds * 1e6:.2f} µs per block")


def costs(manager: CacheManager, blocks: int) -> tuple[float, float]:
    """Return the seconds per block of a request that hits, and of one that evicts, in a full pool.

    Requests are many and all different, as in use: what a pool of a million blocks costs more than
    a small one is that the processor's caches do not hold it.
    """
    first = max(0, blocks // PROMPT_BLOCKS - TRIES)
    known = [BlockChain(prompt(first + number), SIZE) for number in range(TRIES)]
    fresh = [BlockChain(prompt(10**5 + number), SIZE) for number in range(TRIES)]
    hits = min(timed(lambda: [serve(manager, chain) for chain in known], 1) for _ in range(3))
    misses = timed(lambda: [serve(manager, chain) for chain in fresh], 1)
    return hits / TRIES / PROMPT_BLOCKS, misses / TRIES / PROMPT_BLOCKS


def report_costs(manager: CacheManager, blocks: int) -> None:
    """Print what hits and evictions cost in a full pool."""
    hits, misses = costs(manager, blocks)
    row(
        f"pool of {blocks:,}, hit and eviction",
        f"{hits * 1e6:.2f}, {misses * 1e6:.2f} µs per block; {1e-6 / hits:.2f}, "
        f"{1e-6 / misses:.2f} M blocks per second",
    )


def bench_naive() -> None:
    """Print how much faster the pool is than lists, where lists are still bearable."""
    blocks, requests = 400, 40

    def ours() -> None:
        manager = CacheManager(BlockPool(blocks + 1), SIZE)
        for number in range(requests):
            serve(manager, BlockChain(prompt(number % 25, 20), SIZE))

    def theirs() -> None:
        naive = NaiveCache(blocks, SIZE)
        for number in range(requests):
            answer = naive.ask(tuple(prompt(number % 25, 20)))
            assert answer is not None
            naive.release(answer[1])

    row("pool against plain lists, 400 blocks", f"{timed(theirs) / timed(ours):.0f} × faster")


def bench_index(blocks: int, pods: int) -> None:
    """Print what an index of several pods takes, and what events and lookups cost."""
    gc.collect()
    tracemalloc.start()
    index = BlockIndex(SIZE)
    each = blocks // pods // PROMPT_BLOCKS
    for pod in range(pods):
        for number in range(each):
            index.apply(f"pod{pod}", stored(pod, number))
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    pairs = pods * each * PROMPT_BLOCKS
    row(f"index, bytes per (block, pod), {pods} pods", f"{memory / pairs:.0f} B of {pairs:,}")
    payload = encode_batch(stored(0, 10**6))
    seconds = timed(lambda: decode_batch(payload)) / PROMPT_BLOCKS
    row("index, decoding an event", f"{seconds * 1e6:.2f} µs per block")
    fresh = iter([stored(0, 2 * 10**6 + number) for number in range(3)])
    seconds = timed(lambda: index.apply("pod0", next(fresh))) / PROMPT_BLOCKS
    row("index, applying an event", f"{seconds * 1e6:.2f} µs per block")
    hashes = block_hashes((0,) * (PROMPT_BLOCKS * SIZE), SIZE)
    seconds = timed(lambda: index.match(hashes)) / PROMPT_BLOCKS
    row("index, matching a prompt", f"{seconds * 1e6:.2f} µs per block")


def stored(pod: int, number: int) -> EventBatch:
    """Return the event of a prompt that all pods have, under this pod's names."""
    first = (pod << 58) + number * PROMPT_BLOCKS
    tokens = (number, *([0] * (PROMPT_BLOCKS * SIZE - 1)))
    names = tuple(range(first, first + PROMPT_BLOCKS))
    return EventBatch(0.0, (BlockStored(names, None, tokens, SIZE),))


def bench_engine() -> None:
    """Print how fast virtual time runs: 64 conversations with long answers on one pod."""
    config = EngineConfig(20_000, SIZE, max_num_seqs=64)
    engine = Engine(config, profile("llama-3.1-8b-h100").time)
    for number in range(64):
        engine.add(EngineRequest(str(number), prompt(number, 100), 256, lambda _: 1))
    now, began = 0.0, time.process_time()
    while engine.has_work:
        now = engine.step(now).ends
    seconds = time.process_time() - began
    row("engine, decoding", f"{seconds / engine.counters.generation_tokens * 1e6:.2f} µs per token")
    row("engine, virtual against real time", f"{now / seconds:.0f} × faster")


def row(what: str, value: str) -> None:
    """Print one line of the table."""
    print(f"{what:<44} {value}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    blocks = parser.parse_args().blocks
    bench_pool(blocks)
    bench_naive()
    bench_index(blocks, 1)
    bench_index(blocks, 8)
    bench_engine()


if __name__ == "__main__":
    main()
