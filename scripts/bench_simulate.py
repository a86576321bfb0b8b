"""How fast `kvbench simulate` plays a Mooncake trace: CPU seconds, by block size, pods and mode.

    python scripts/bench_simulate.py conversation_trace.jsonl

The pods have 2.56 million tokens of KV cache each, whatever the block size. CPU time is this
process's own, so a busy machine disturbs it little; memory is the process's peak so far.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from kvbench.engine.profiles import profile
from kvbench.engine.values import EngineConfig
from kvbench.oracle.load import Reading, load_script
from kvbench.oracle.play import Fleet, play

TOKENS = 2_560_000
RUNS = [
    ("timed", 4, "prefix_cost"),
    ("timed", 4, "round_robin"),
    ("serial", 4, "prefix_cost"),
    ("serial", 1, "prefix_cost"),
]


def main() -> None:
    """Play and print a line for each run."""
    path = Path(sys.argv[1])
    steps = profile("llama-3.1-8b-h100").time
    for block_size in (512, 16):
        begun = time.process_time()
        script = load_script(path, Reading(block_size))
        print(f"block {block_size:3}  read, with ceiling: {time.process_time() - begun:.1f} s")
        config = EngineConfig(TOKENS // block_size, block_size, max_model_len=TOKENS)
        for mode, pods, policy in RUNS:
            begun = time.process_time()
            run = play(script, Fleet(pods, config, steps, policy), mode)
            for _ in run:
                pass
            took = time.process_time() - begun
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            summary = run.summary()
            print(
                f"block {block_size:3}  {mode:6} {pods} × {policy:11}  {took:5.1f} s"
                f"  {summary.requests} requests, hit rate {summary.hit_rate:.4f}, {peak:.0f} MB"
            )


if __name__ == "__main__":
    main()
