"""Record what a real vLLM's scheduler and prefix cache do, step by step.

Runs inside the Python that has vLLM 0.32.0 (not kvbench's own), with the engine in this very
process, and writes one gzipped file of JSON lines that `tests/recordings.py` reads:

1. a header: vLLM's version, the engine's settings, its counters at the end;
2. one row per request: when it was added (before which step), what it asked, what came back. A
   prompt is [row, n, rest]: the first n tokens of that row's prompt and answer, then the rest;
3. one row per step: tokens scheduled for each request, in order; requests preempted; requests
   aborted and whether the cache was reset before it; KV events; blocks free at its end.

In events, block hashes are numbered in the order in which they first appear, so the file does not
depend on vLLM's hash function: ["stored", parent, hashes, CRC-32 of the token ids], ["removed",
hash], ["cleared"]. The scenario is made from a seed, so the same command writes the same file:

    python scripts/record_engine.py MODEL OUT --seed 1 --num-gpu-blocks 90 --max-num-seqs 16
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import zlib
from array import array
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

COUNTERS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
)


def arguments() -> argparse.Namespace:
    """Return the command line's settings: the engine's first, then the scenario's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--num-gpu-blocks", type=int, default=90)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--long-prefill-token-threshold", type=int, default=0)
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--spread", type=int, default=0, help="steps over which they are added")
    parser.add_argument("--output", type=int, default=80, help="most tokens of an answer")
    parser.add_argument("--stop-tokens", type=int, default=0, help="how many ids end an answer")
    parser.add_argument("--salts", type=int, default=0, help="how many cache salts are in use")
    parser.add_argument("--aborts", type=int, default=0, help="how many requests are aborted")
    parser.add_argument("--resets", type=int, default=0, help="how often a reset is tried")
    return parser.parse_args()


def scenario(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return requests with shared beginnings, of which some continue an earlier one."""
    rng = random.Random(args.seed)  # noqa: S311 - reproducible, not secret
    systems = [[rng.randrange(4, 500) for _ in range(rng.randrange(40, 500))] for _ in range(6)]
    rows: list[dict[str, Any]] = []
    for index in range(args.requests):
        base = rng.choice(systems) if rng.random() < 0.7 or not rows else rng.choice(rows)["prompt"]
        fresh = [rng.randrange(4, 500) for _ in range(rng.choice([0, 1, 31, 32, 33, 90, 200]))]
        prompt = (base + fresh)[: args.max_model_len - args.output - 1]
        rows.append(
            {
                "id": str(index),
                "before_step": rng.randrange(args.spread) if args.spread else 0,
                "prompt": prompt,
                "max_tokens": rng.randrange(1, args.output + 1),
                "stop": sorted(rng.sample(range(3000), args.stop_tokens)),
                "salt": f"salt{rng.randrange(args.salts)}" if args.salts else None,
            }
        )
    rows.sort(key=lambda row: row["before_step"])
    return rows


class Recorder:
    """Stands where the engine publishes, and sees each schedule on its way out."""

    def __init__(self, scheduler: Any) -> None:
        self.events: list[list[Any]] = []
        self.steps: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}
        self._schedule = scheduler.schedule
        scheduler.schedule = self.schedule
        scheduler.kv_event_publisher = self

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Note what was scheduled, by the ids that the caller gave."""
        output = self._schedule(*args, **kwargs)
        self.steps[-1]["scheduled"] = [
            [name.rsplit("-", 1)[0], tokens] for name, tokens in output.num_scheduled_tokens.items()
        ]
        self.steps[-1]["preempted"] = sorted(
            name.rsplit("-", 1)[0] for name in output.preempted_req_ids or ()
        )
        return output

    def publish(self, batch: Any) -> None:
        """Note a batch of KV events."""
        for event in batch.events:
            self.steps[-1]["events"] += self._translate(event)

    def shutdown(self) -> None:
        """Nothing to close."""

    def _translate(self, event: Any) -> list[list[Any]]:
        """Return an event as rows; one that removes several blocks is several."""
        kind = type(event).__name__
        if kind == "BlockRemoved":
            return [["removed", self._number(key)] for key in event.block_hashes]
        if kind == "AllBlocksCleared":
            return [["cleared"]]
        parent = event.parent_block_hash
        parent = None if parent is None else self._number(parent)
        hashes = [self._number(key) for key in event.block_hashes]
        return [["stored", parent, hashes, zlib.crc32(array("I", event.token_ids).tobytes())]]

    def _number(self, key: Any) -> int:
        """Return the number of a block hash: how many others were seen before it."""
        return self._numbers.setdefault(key, len(self._numbers))


def play(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Send the scenario through a real engine; fill the rows, return steps and counters."""
    from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: PLC0415
    from vllm.config import KVEventsConfig  # noqa: PLC0415

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=args.model,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            block_size=args.block_size,
            num_gpu_blocks_override=args.num_gpu_blocks,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_model_len=args.max_model_len,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            enable_prefix_caching=not args.no_prefix_caching,
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
        )
    )
    scheduler = engine.engine_core.engine_core.scheduler
    recorder = Recorder(scheduler)
    rng = random.Random(args.seed + 1)  # noqa: S311 - reproducible, not secret
    doomed = {rng.randrange(3, 120) for _ in range(args.aborts)}
    resets = {rng.randrange(3, 200) for _ in range(args.resets)}
    waiting, by_id = list(rows), {row["id"]: row for row in rows}
    while waiting or engine.has_unfinished_requests():
        number = len(recorder.steps)
        step: dict[str, Any] = {"scheduled": [], "preempted": [], "events": []}
        recorder.steps.append(step)
        while waiting and waiting[0]["before_step"] <= number:
            row = waiting.pop(0)
            prompt: dict[str, Any] = {"prompt_token_ids": row["prompt"]}
            if row["salt"]:
                prompt["cache_salt"] = row["salt"]
            params = SamplingParams(
                temperature=1.0,
                max_tokens=row["max_tokens"],
                ignore_eos=True,
                stop_token_ids=row["stop"],
                detokenize=False,
            )
            engine.add_request(row["id"], prompt, params)
        if number in doomed:
            live = [name.rsplit("-", 1)[0] for name in scheduler.requests]
            if live:
                step["aborted"] = rng.choice(live)
                engine.abort_request([step["aborted"]])
                by_id[step["aborted"]]["finish"] = "abort"
        if number in resets:
            step["reset"] = engine.reset_prefix_cache()
        for output in engine.step():
            row, completion = by_id[output.request_id], output.outputs[0]
            row["output"] = list(completion.token_ids)
            row["cached"] = output.num_cached_tokens
            row["finish"] = completion.finish_reason or row.get("finish")
        step["free"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    metrics = {metric.name: getattr(metric, "value", None) for metric in engine.get_metrics()}
    return {
        "steps": recorder.steps,
        "counters": {name: metrics[f"vllm:{name}"] for name in COUNTERS},
    }


def shared_length(left: list[int], right: list[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def condense(rows: list[dict[str, Any]]) -> None:
    """Write each prompt as the longest beginning that an earlier row has, and the rest."""
    whole: list[list[int]] = []
    for row in rows:
        prompt = row["prompt"]
        lengths = [shared_length(prompt, earlier) for earlier in whole]
        best = max(range(len(whole)), key=lengths.__getitem__, default=0)
        shared = lengths[best] if lengths else 0
        whole.append(prompt + row.get("output", []))
        row["prompt"] = [best, shared, prompt[shared:]]


def main() -> None:
    """Record one scenario."""
    args = arguments()
    import vllm  # noqa: PLC0415

    rows = scenario(args)
    played = play(args, rows)
    settings = {key: value for key, value in vars(args).items() if key not in {"model", "out"}}
    condense(rows)
    header = {
        "recorded": "vLLM on a CPU, in process, scripts/record_engine.py",
        "vllm": vllm.__version__,
        "settings": settings,
        "counters": played["counters"],
    }
    lines = [header, *rows, *played["steps"]]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    args.out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(args.out, len(played["steps"]), "steps", played["counters"])


if __name__ == "__main__":
    main()
