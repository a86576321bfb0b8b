"""Recordings of a real vLLM, and what it takes to play them to our engine.

The files under `tests/engine/golden/` are described in `scripts/record_engine.py`. Those with
`kind: serial` were sent through vLLM's HTTP server one request at a time and have one stream of
events; those with `kind: batch` have requests and counters only, without single steps.
"""

import gzip
import json
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest

GOLDEN = Path(__file__).parent / "engine" / "golden"


class OneSecond:
    """A time model for which every step takes a second."""

    def step_seconds(self, work):
        """Return one second, whatever there is to do."""
        assert work
        return 1.0


class Events:
    """A sink that writes events down as a recording does, with the same numbers for hashes."""

    def __init__(self):
        self.rows = []
        self._numbers = {}

    def block_stored(self, block_hashes, parent, token_ids, request, start):
        """Note stored blocks: their parent, themselves, and the CRC-32 of their tokens."""
        assert (start == 0) == (parent is None)
        assert request.id
        parent = None if parent is None else self._number(parent)
        crc = zlib.crc32(array("I", token_ids).tobytes())
        self.rows.append(["stored", parent, [self._number(key) for key in block_hashes], crc])

    def block_removed(self, block_hash):
        """Note an eviction."""
        self.rows.append(["removed", self._number(block_hash)])

    def all_blocks_cleared(self):
        """Note a reset."""
        self.rows.append(["cleared"])

    def take(self):
        """Return what was noted since the last call."""
        rows, self.rows = self.rows, []
        return rows

    def _number(self, key):
        """Return how many other hashes were seen before this one."""
        return self._numbers.setdefault(key, len(self._numbers))


@dataclass
class Recording:
    """One file: settings and counters, requests by id in order, steps."""

    header: dict
    rows: dict = field(default_factory=dict)
    steps: list = field(default_factory=list)

    @property
    def config(self):
        """The engine's settings."""
        settings = self.header["settings"]
        return EngineConfig(
            num_gpu_blocks=settings["num_gpu_blocks"],
            block_size=settings["block_size"],
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_model_len=settings["max_model_len"],
            enable_prefix_caching=not settings.get("no_prefix_caching", False),
            long_prefill_token_threshold=settings.get("long_prefill_token_threshold", 0),
        )


def request_of(row):
    """Return the request of a row; it generates what the real engine generated."""
    output = row.get("output", [])
    return EngineRequest(
        id=row["id"],
        prompt_token_ids=row["prompt"],
        max_tokens=row["max_tokens"],
        next_token=lambda generated: output[generated] if generated < len(output) else 0,
        stop_token_ids=frozenset(row["stop"]),
        cache_salt=row["salt"],
    )


def load(name):
    """Return the recording of that name, or of that path, prompts written out."""
    path = name if isinstance(name, Path) else GOLDEN / f"{name}.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        header, *rest = [json.loads(line) for line in lines]
    recording, whole = Recording(header), []
    for row in rest:
        if "prompt" not in row:
            recording.steps.append(row)
            continue
        source, shared, tail = row["prompt"]
        row["prompt"] = (whole[source][:shared] if shared else []) + tail
        whole.append(row["prompt"] + row.get("output", []))
        recording.rows[row["id"]] = row
    return recording


def counters_of(engine):
    """Return the counters that vLLM has as well, by its names."""
    counters = engine.counters
    return {
        "prefix_cache_queries": counters.prefix_cache_queries,
        "prefix_cache_hits": counters.prefix_cache_hits,
        "num_preemptions": counters.num_preemptions,
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generation_tokens,
    }


def compare_steps(recording):
    """Play a recording step by step; whatever differs first is an AssertionError."""
    events = Events()
    engine = Engine(recording.config, OneSecond(), events)
    rows = list(recording.rows.values())
    answers = {row["id"]: [] for row in rows}
    for number, step in enumerate(recording.steps):
        while rows and rows[0]["before_step"] <= number:
            engine.add(request_of(rows.pop(0)))
        if "aborted" in step:
            assert engine.abort(step["aborted"]).finish_reason == "abort"
        if "reset" in step:
            assert engine.reset_prefix_cache() == step["reset"]
        result = engine.step(float(number))
        assert list(map(list, result.scheduled_tokens.items())) == step["scheduled"]
        assert sorted(result.preempted) == step["preempted"]
        if step["scheduled"] or step["events"]:  # an idle engine keeps "cleared" to itself
            assert events.take() == step["events"]
        assert engine.pool.free == step["free"]
        for output in result.outputs:
            row = recording.rows[output.request_id]
            answers[output.request_id] += output.token_ids
            assert output.cached_tokens == row["cached"]
            assert output.finish_reason in {None, row["finish"]}
    assert not engine.has_work
    assert all(
        answers[row["id"]] == row["output"]
        for row in recording.rows.values()
        if row["finish"] != "abort"
    )
    assert counters_of(engine) == recording.header["counters"]
