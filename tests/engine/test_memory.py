"""Memory arithmetic: published sizes, laws, and what a real vLLM reported for the same bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvbench.engine.memory import (
    GIB,
    GPUS,
    Budget,
    Group,
    Overhead,
    capacity,
    estimate_overhead,
    lay_out,
)
from kvbench.engine.models import known_models, load_shape
from kvbench.engine.shape import parse_shape
from kvbench.errors import InputError

RECORDED = Path(__file__).parent / "recorded"

TINY_LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 3156,
    "max_position_embeddings": 32768,
}
"""The models whose caches were recorded: this one, and the next two."""

TINY_HYBRID = TINY_LLAMA | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 13,
    "sliding_window": 512,
}

TINY_MLA = TINY_LLAMA | {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def layout(name, dtype="bf16", block_size=16, gpus=1):
    """Return the layout of a known model."""
    return lay_out(load_shape(name), dtype=dtype, block_size=block_size, gpus=gpus)


@pytest.mark.parametrize(
    ("name", "per_token", "of_2048"),
    [
        ("llama-2-7b", 512 * 1024, 1_073_741_824),
        ("llama-3-8b", 128 * 1024, 256 * 2**20),
        ("llama-3.2-1b", 32 * 1024, 64 * 2**20),
        ("llama-3.2-3b", 112 * 1024, 224 * 2**20),
        ("qwen2.5-0.5b", 12 * 1024, 24 * 2**20),
        ("qwen3-0.6b", 112 * 1024, 224 * 2**20),
        ("llama-3.1-70b", 320 * 1024, 640 * 2**20),
        ("qwen3-32b", 256 * 1024, 512 * 2**20),
        ("deepseek-v3", 61 * 576 * 2, 61 * 576 * 2 * 2048),
    ],
)
def test_a_token_takes_what_is_published_of_its_model(name, per_token, of_2048):
    """Exact, in 16 bits; the first is the often-quoted gibibyte."""
    assert layout(name).token_bytes == per_token
    assert layout(name).sequence_bytes(2048) == of_2048
    assert layout(name, dtype="fp8").token_bytes == per_token // 2


@pytest.mark.parametrize(
    ("name", "gpus", "share", "replicas"),
    [
        pytest.param("llama-3.1-70b", 4, 4, 1, id="two of eight heads on each of four"),
        pytest.param("llama-3.1-70b", 8, 8, 1, id="one head on each of eight"),
        pytest.param("llama-3.1-70b", 16, 8, 2, id="each head on two of sixteen"),
        pytest.param("gemma-2b", 8, 1, 8, id="the only head on all"),
        pytest.param("deepseek-v3", 8, 1, 8, id="the latent vector on all"),
    ],
)
def test_heads_are_spread_over_gpus_until_they_are_replicated(name, gpus, share, replicas):
    """`share` is by how much a GPU's part is smaller than the whole."""
    spread = layout(name, gpus=gpus)

    assert spread.token_bytes == layout(name).token_bytes // share
    assert spread.replicas == replicas


@given(st.sampled_from(sorted(known_models())), st.sampled_from([1, 2, 4, 8, 16]))
def test_replicas_are_what_all_gpus_hold_too_much(name, gpus):
    """Bytes on all GPUs = bytes on one GPU alone × replicas, for every model that spreads."""
    try:
        spread = layout(name, gpus=gpus)
    except InputError:
        return
    assert spread.token_bytes * gpus == layout(name).token_bytes * spread.replicas


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        pytest.param("llama-3-8b", [(32, None)], id="one kind of layer is one group"),
        pytest.param("mistral-7b-v0.1", [(32, 4096)], id="also where all forget"),
        pytest.param("gemma-2-9b", [(21, 4096), (21, None)], id="one to one"),
        pytest.param("gpt-oss-20b", [(12, 128), (12, None)], id="one to one, a short window"),
        pytest.param(
            "gemma-3-27b",
            [(9, 1024)] * 4 + [(8, 1024)] * 2 + [(10, None)],
            id="five to one, and a rest: 52 layers in six groups of ten",
        ),
    ],
)
def test_layers_are_grouped_by_what_they_keep(name, groups):
    """As many layers in a group as the rarer kind has."""
    assert [(group.layers, group.window) for group in layout(name).groups] == groups


def test_kinds_that_are_almost_as_many_are_padded_to_the_commoner():
    """13 of one and 12 of the other are two groups, not three."""
    kinds = ["sliding_attention"] * 13 + ["full_attention"] * 12
    keys = {"num_hidden_layers": 25, "layer_types": kinds, "sliding_window": 128}
    shape = parse_shape(TINY_LLAMA | keys, name="odd", where="config.json")

    odd = lay_out(shape, dtype="bf16", block_size=16)

    assert [group.layers for group in odd.groups] == [13, 12]
    assert odd.block_bytes == 13 * 16 * odd.layer_bytes
    assert odd.padding == pytest.approx(1 / 26)


def test_a_window_bounds_what_a_sequence_holds():
    """Its blocks, in tokens: the window, what is in flight, and one block for where it begins."""
    group = Group(layers=1, window=1024)

    assert group.blocks(100, block_size=16, in_flight=8192) == 7 + 1
    assert group.blocks(100_000, block_size=16, in_flight=8192) == (1023 + 8192 + 15) // 16 + 1
    assert layout("gemma-2-9b").sequence_bytes(8192) == (8192 + 4096) * 21 * 8 * 512 * 2


def recorded(name):
    """Return the labels of a recorded `vllm:cache_config_info`."""
    text = (RECORDED / f"cache_config_{name}.txt").read_text()
    (family,) = text_string_to_metric_families(text)
    return family.samples[0].labels


@pytest.mark.parametrize(
    ("name", "config", "dtype"),
    [
        pytest.param("llama", TINY_LLAMA, "fp32", id="one group"),
        pytest.param("hybrid", TINY_HYBRID, "fp32", id="seven groups, six of them windowed"),
        pytest.param("mla", TINY_MLA, "bf16", id="latent vectors"),
    ],
)
def test_blocks_tokens_and_concurrency_are_what_a_real_vllm_reports(name, config, dtype):
    """By vLLM 0.32.0 on a CPU, with a given number of bytes: no difference at all."""
    reported = recorded(name)
    shape = parse_shape(config, name=name, where="config.json")

    room = capacity(
        lay_out(shape, dtype=dtype, block_size=int(reported["block_size"])),
        int(reported["kv_cache_memory_bytes"]),
        max_model_len=8192,
        in_flight=2048,  # its max_num_batched_tokens; the CPU backend does not schedule ahead
    )

    assert room.blocks == int(reported["num_gpu_blocks"])
    assert room.tokens == int(reported["kv_cache_size_tokens"])
    assert room.concurrency == float(reported["kv_cache_max_concurrency"])


@pytest.mark.parametrize(
    ("name", "gpus", "published"),
    [("qwen3-32b", 2, 307_328), ("llama-3.1-70b", 4, 461_376)],
)
def test_the_estimate_is_near_published_pods_on_h100s(name, gpus, published):
    """Tokens of KV cache per pod as llm-d's benchmarks print them, at a utilisation of 0.9."""
    shape = load_shape(name)
    overhead = estimate_overhead(shape, gpus=gpus, batched_tokens=8192)
    weights = shape.weights.size("bf16") // gpus
    budget = Budget(GPUS["h100-80"], 0.9, weights, overhead)

    room = capacity(layout(name, gpus=gpus), budget.kv_cache, 32768, in_flight=16384)

    assert room.tokens == pytest.approx(published, rel=0.01)


def test_a_lower_utilization_shrinks_the_cache_by_all_of_it():
    """Weights and the rest stay what they are: the cache pays."""
    overhead = Overhead(activations=GIB, context=GIB, graphs=GIB)
    high = Budget(100 * GIB, 0.9, 50 * GIB, overhead)
    low = Budget(100 * GIB, 0.7, 50 * GIB, overhead)

    assert high.kv_cache == 37 * GIB
    assert low.kv_cache == 17 * GIB


@pytest.mark.parametrize("utilization", [0.0, -0.1, 1.01, float("nan")])
def test_a_utilization_is_a_share(utilization):
    """More than nothing, at most all."""
    with pytest.raises(InputError, match="expected more than 0 and at most 1"):
        Budget(GIB, utilization, 0, Overhead(0, 0, 0))


def test_a_model_that_does_not_fit_says_by_how_much():
    """And that more GPUs, fewer bits or more memory would help."""
    budget = Budget(24 * GIB, 0.5, 15 * GIB, Overhead(GIB, 0, 0))

    with pytest.raises(InputError, match=r"4\.0 GiB too much") as caught:
        budget.check_fits()

    assert "--tensor-parallel-size" in (caught.value.hint or "")


def test_a_window_that_does_not_fit_names_the_longest_that_does():
    """A pod would refuse to start; one block is the null block and holds nothing."""
    llama = layout("llama-3-8b")

    with pytest.raises(InputError, match="max_model_len: one sequence of 8,192 tokens") as caught:
        capacity(llama, 101 * llama.block_bytes, 8192, in_flight=0)

    assert "--max-model-len 1600 would fit" in (caught.value.hint or "")
    assert capacity(llama, 101 * llama.block_bytes, 1600, in_flight=0).concurrency == 1.01


def test_nothing_at_all_is_refused_without_a_length_that_fits():
    """A negative budget is none."""
    with pytest.raises(InputError, match=r"and there are 0\.00 GiB") as caught:
        capacity(layout("llama-3-8b"), -5, 8192, in_flight=0)

    assert "would fit" not in (caught.value.hint or "").split(";", maxsplit=1)[0]


def test_heads_that_cannot_be_spread_are_refused():
    """With the numbers of GPUs over which they can."""
    with pytest.raises(InputError, match="14 heads") as caught:
        layout("qwen2.5-0.5b", gpus=4)

    assert caught.value.hint == "possible: 1, 2"


@given(st.sampled_from(sorted(known_models())), st.integers(0, 2**38), st.integers(1, 2**34))
def test_more_bytes_never_hold_less(name, kv_bytes, more):
    """And what is reported never exceeds the bytes."""
    cut = layout(name)
    try:
        small = capacity(cut, kv_bytes, 4096, in_flight=2048)
    except InputError:
        return
    large = capacity(cut, kv_bytes + more, 4096, in_flight=2048)

    assert large.tokens >= small.tokens
    assert small.blocks * cut.block_bytes <= kv_bytes
