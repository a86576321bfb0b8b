"""From the engine's words to events on the wire."""

from recordings import OneSecond

from kvbench.engine.publication import EventCollector
from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest
from kvbench.kvcache.blocks import PromptKeys, block_hashes
from kvbench.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbench.kvcache.index import BlockIndex


def test_what_happens_in_the_cache_comes_out_in_order_and_once():
    """A store, an eviction, a reset."""
    collector = EventCollector()
    engine = Engine(EngineConfig(4, 2, max_model_len=8), OneSecond(), collector)
    engine.add(EngineRequest("a", [1, 2, 3, 4, 5], 1, lambda _: 9))
    engine.step(0.0)
    first, second = block_hashes([1, 2, 3, 4], 2)
    group = {"group_idx": 0, "kv_cache_spec_kind": "full_attention", "medium": "GPU"}
    assert collector.take() == (
        BlockStored((first, second), None, (1, 2, 3, 4), 2, extra_keys=(None, None), **group),
    )
    engine.add(EngineRequest("b", [6, 7, 8], 1, lambda _: 9))
    engine.step(0.0)
    assert collector.take() == (
        BlockRemoved((second,), "GPU", 0),
        BlockStored(tuple(block_hashes([6, 7], 2)), None, (6, 7), 2, extra_keys=(None,), **group),
    )
    assert engine.reset_prefix_cache()
    assert collector.take() == (AllBlocksCleared(),)
    assert collector.take() == ()


def test_salts_adapters_and_pictures_reach_an_index_as_they_were_asked():
    """Each block with its own extra keys, answers as well as prompts."""
    collector = EventCollector()
    engine = Engine(EngineConfig(20, 2, max_model_len=20), OneSecond(), collector)
    keys = PromptKeys("salt", "lora", (("cat", 1, 2),))
    tokens = [1, 0, 0, 4, 9, 9, 9]
    engine.add(
        EngineRequest("a", tokens[:4], 4, lambda _: 9, frozenset(), "salt", "lora", keys.mm_hashes)
    )
    batches = []
    while engine.has_work:
        engine.step(0.0)
        batches.append(EventBatch(0.0, collector.take()))
    assert batches[0].events[0].extra_keys == (("lora", ("cat", 1), "salt"), ("lora", ("cat", -1)))
    index = BlockIndex(2)
    for batch in batches:
        index.apply("pod", batch)
    assert index.match(block_hashes(tokens, 2, keys)) == {"pod": 3}
    assert index.match(block_hashes(tokens, 2)) == {"pod": 0}
