"""The memory arithmetic against a real engine: the same bytes, the same blocks and tokens."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvbench.engine.memory import capacity, lay_out
from kvbench.engine.models import load_shape
from kvbench.stack.target import look_at

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def reported(url: str) -> dict[str, str]:
    """Return what a pod says about its cache."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return next(
        sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    )


def test_a_real_pod_has_the_tokens_that_were_computed_from_its_bytes(real_pods):
    """Its model's config.json and the bytes of its 600 blocks are all that goes in."""
    for url in real_pods:
        target, cache = look_at(url), reported(url)
        layout = lay_out(load_shape(target.root), dtype="fp32", block_size=int(cache["block_size"]))

        room = capacity(layout, 600 * layout.block_bytes, target.max_model_len, in_flight=2048)

        assert room.blocks == int(cache["num_gpu_blocks"]) == 600
        assert room.tokens == int(cache["kv_cache_size_tokens"])
        assert room.concurrency == float(cache["kv_cache_max_concurrency"])
