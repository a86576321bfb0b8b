"""A model's shape: every known model against what was published, and configurations that fail."""

import pytest

from kvbench.engine.models import known_models
from kvbench.engine.shape import parse_shape
from kvbench.errors import InputError

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "phi-4": 14_659_507_200,
    "gemma-2b": 2_506_172_416,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "deepseek-r1": 671_026_419_200,
}
"""Parameters as the checkpoints count them; DeepSeek's without the layer that predicts ahead."""

PLAIN = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def shape(**keys):
    """Return the shape of a small model with these keys added or changed."""
    return parse_shape(PLAIN | keys, name="small", where="config.json")


@pytest.mark.parametrize("name", known_models())
def test_parameters_are_those_of_the_checkpoint_within_a_thousandth(name):
    """Layers, widths, heads and experts all enter, so a slip in any of them would show."""
    assert known_models()[name].weights.parameters == pytest.approx(PUBLISHED[name], rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "kind", "numbers"),
    [
        pytest.param({}, "MHA", 32, id="a key and a value of 16 numbers for each head"),
        pytest.param({"num_key_value_heads": 2}, "GQA", 32, id="heads share keys and values"),
        pytest.param({"num_key_value_heads": 1}, "MQA", 32, id="all heads share one"),
        pytest.param({"head_dim": 32}, "MHA", 64, id="heads may be wider than hidden / heads"),
        pytest.param(
            {
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
            },
            "MLA",
            576,
            id="one latent vector, no value beside it",
        ),
    ],
)
def test_attention_is_recognised(keys, kind, numbers):
    """Of each kind: what it is called and how many numbers a layer keeps per head."""
    small = shape(**keys)

    assert (small.attention, small.numbers_per_head) == (kind, numbers)


@pytest.mark.parametrize(
    ("keys", "windowed"),
    [
        pytest.param({}, [], id="no window"),
        pytest.param({"sliding_window": None}, [], id="a window of nothing"),
        pytest.param({"sliding_window": 8}, [0, 1, 2, 3, 4, 5], id="a window is every layer's"),
        pytest.param({"sliding_window": 8, "use_sliding_window": False}, [], id="switched off"),
        pytest.param(
            {"sliding_window": 8, "model_type": "gemma2"}, [0, 2, 4], id="every second keeps all"
        ),
        pytest.param(
            {"sliding_window": 8, "model_type": "gemma3_text"},
            [0, 1, 2, 3, 4],
            id="every sixth keeps all",
        ),
        pytest.param(
            {"sliding_window": 8, "sliding_window_pattern": 3}, [0, 1, 3, 4], id="a pattern"
        ),
        pytest.param(
            {
                "sliding_window": 8,
                "layer_types": ["full_attention"] * 5 + ["sliding_attention"],
            },
            [5],
            id="each layer by name",
        ),
        pytest.param(
            {"sliding_window": 8, "num_kv_shared_layers": 4},
            [0, 1],
            id="layers that use another's cache have none",
        ),
    ],
)
def test_windows_are_those_of_the_family(keys, windowed):
    """Which layers forget, by number."""
    windows = shape(**keys).windows

    assert [layer for layer, window in enumerate(windows) if window == 8] == windowed


def test_a_multimodal_model_is_its_text_model():
    """Its numbers stand one level down, and how it is quantised stands on top."""
    small = parse_shape(
        {"text_config": PLAIN, "torch_dtype": "float16"}, name="small", where="config.json"
    )

    assert small.windows == (None,) * 6
    assert small.dtype == "fp16"


@pytest.mark.parametrize(
    ("keys", "dtype", "size"),
    [
        pytest.param({}, "bf16", 2 * 373_760, id="two bytes each"),
        pytest.param({}, "fp32", 4 * 373_760, id="four bytes each"),
        pytest.param({}, "fp8", 2 * 128_000 + 245_760, id="the layers in one byte each"),
        pytest.param(
            {"quantization_config": {"quant_method": "awq"}},
            "fp16",
            2 * 128_000 + 245_760 * 17 // 32,
            id="four bits and a quarter for scales",
        ),
        pytest.param({"tie_word_embeddings": True}, "bf16", 2 * 309_760, id="one embedding"),
    ],
)
def test_weights_take_what_their_types_take(keys, dtype, size):
    """128,000 parameters of embedding and head; 245,760 = 6 · (4 · 64 · 64 + 3 · 64 · 128)."""
    assert shape(**keys).weights.size(dtype) == size


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param({"vocab_size": None}, "vocab_size: missing", id="missing"),
        pytest.param(
            {"hidden_size": "64"},
            "hidden_size: expected a whole number of at least 1, got '64'",
            id="text for a number",
        ),
        pytest.param(
            {"num_hidden_layers": True},
            "num_hidden_layers: expected a whole number of at least 1, got True",
            id="a truth value for a number",
        ),
        pytest.param(
            {"tie_word_embeddings": 1},
            "tie_word_embeddings: expected true or false, got 1",
            id="a number for a truth value",
        ),
        pytest.param(
            {"model_type": 3, "sliding_window": 8},
            "model_type: expected text, got 3",
            id="a number for text",
        ),
        pytest.param(
            {"layer_types": "full_attention"},
            "layer_types: expected a list of texts, got 'full_attention'",
            id="text for a list",
        ),
        pytest.param(
            {"layer_types": ["linear_attention"] * 6},
            "layer_types: expected 6 of full_attention, sliding_attention, got linear_attention",
            id="a kind of layer that is not sized",
        ),
        pytest.param(
            {"layer_types": ["full_attention"]},
            "layer_types: expected 6 of full_attention, sliding_attention, got 1",
            id="too few layers",
        ),
        pytest.param(
            {"quantization_config": 8},
            "quantization_config: expected an object, got 8",
            id="no object",
        ),
        pytest.param(
            {"quantization_config": {"quant_method": "new"}},
            "quantization_config.quant_method: expected one of fp8, awq, gptq, mxfp4, got 'new'",
            id="a quantisation of unknown size",
        ),
        pytest.param(
            {"index_head_dim": 128},
            "index_head_dim: the model has an attention indexer, which has a cache of its own: "
            "not sized here",
            id="an indexer",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_key(keys, message):
    """The file, the key, what was expected and what stands there."""
    with pytest.raises(InputError) as caught:
        shape(**keys)

    assert caught.value.message == f"config.json: {message}"
