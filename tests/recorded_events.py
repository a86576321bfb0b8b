"""KV events of a real vLLM, frame by frame, and what our engine says to the same requests.

The file is described in `scripts/record_events.py`.
"""

import gzip
import json
from pathlib import Path

from msgspec.structs import replace
from recordings import OneSecond

from kvbench.engine.publication import EventCollector
from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest
from kvbench.kvcache.events import AllBlocksCleared, BlockStored, decode_batch

RECORDED = Path(__file__).parent / "pod" / "recorded" / "events.jsonl.gz"
CONFIG = EngineConfig(num_gpu_blocks=30, block_size=32, max_model_len=640)


class RecordedEvents:
    """One file: what was asked, what was published, and what replays from two numbers brought."""

    def __init__(self, path=RECORDED):
        self.asked, self.published, self.replayed = [], [], {}
        with gzip.open(path, "rt") as lines:
            for row in map(json.loads, lines):
                if "published" in row:
                    self.published.append(_frames(row["published"]))
                elif "replayed" in row:
                    self.replayed.setdefault(row["start"], []).append(_frames(row["replayed"]))
                else:
                    self.asked.append(row.get("request"))

    @property
    def batches(self):
        """What was published, decoded."""
        return [decode_batch(frames[2]) for frames in self.published]


def _frames(texts):
    """Return frames that were written in hexadecimal."""
    return [bytes.fromhex(text) for text in texts]


def play(asked):
    """Return the events of each step that had any, and the engine in the end."""
    collector, steps = EventCollector(), []
    engine = Engine(CONFIG, OneSecond(), collector)
    for number, row in enumerate(asked):
        if row is None:
            assert engine.reset_prefix_cache()
            continue
        output = row["output"]
        prompt, salt = row["prompt"], row["salt"]
        engine.add(
            EngineRequest(
                str(number), prompt, row["max_tokens"], output.__getitem__, cache_salt=salt
            )
        )
        while engine.has_work:
            engine.step(0.0)
            steps += [events] if (events := collector.take()) else []
    return steps, engine


def renamed(steps, batches):
    """Return our steps with the names that the real engine gave the same blocks.

    Both must speak of as many blocks, and never of one block by two names.
    """
    names = {}
    for events, batch in zip(steps, batches, strict=True):
        for ours, theirs in zip(events, batch.events, strict=True):
            for event in (ours, theirs):
                assert type(event) is type(ours)
            if not isinstance(ours, AllBlocksCleared):
                for mine, real in zip(ours.block_hashes, theirs.block_hashes, strict=True):
                    assert names.setdefault(mine, real) == real
    assert len(set(names.values())) == len(names)
    return [tuple(_renamed(event, names) for event in events) for events in steps]


def _renamed(event, names):
    """Return one event under other names."""
    if isinstance(event, AllBlocksCleared):
        return event
    event = replace(event, block_hashes=tuple(names[key] for key in event.block_hashes))
    if isinstance(event, BlockStored) and event.parent_block_hash is not None:
        event = replace(event, parent_block_hash=names[event.parent_block_hash])
    return event
