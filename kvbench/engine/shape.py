"""A model's shape: what its `config.json` says about its KV cache and its weights.

Owns: which keys of a `config.json` are read, under which names, and what is assumed where they are
absent (as Transformers and vLLM assume it):

- `num_key_value_heads` absent: as many as query heads (MHA); `head_dim` absent: hidden / heads.
- `kv_lora_rank`: multi-head latent attention. A layer keeps one vector of `kv_lora_rank` +
  `qk_rope_head_dim` numbers a token instead of a key and a value per head.
- Windows come from `layer_types`; without it from the family's pattern (Gemma 2: every second layer
  attends to all, Gemma 3: every sixth, or `sliding_window_pattern`); without that a
  `sliding_window` is every layer's, unless `use_sliding_window` is false.
- `num_kv_shared_layers`: the last layers use other layers' cache and have none.
- A multimodal model's numbers stand in its `text_config`; its other towers are not counted.

Weights are counted by the matrices alone: norms, biases and attention sinks are a thousandth. Every
published count that the tests know is met within that.

Refused, rather than sized wrongly: layers with a recurrent state (Mamba, linear attention), chunked
attention (Llama 4), heads of two sizes (Gemma 4) and indexers (DeepSeek V3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kvbench.errors import InputError
from kvbench.metrics.vllm import CACHE_CONFIG

Dtype = Literal["fp32", "fp16", "bf16", "fp8"]

BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Of one number, by dtype."""

_FULL_EVERY: Mapping[str, int] = {"gemma2": 2, "gemma3_text": 6}
"""Every how many layers one attends to all, where `config.json` leaves it to the family."""

_WINDOWED: Mapping[str, bool] = {"full_attention": False, "sliding_attention": True}

_PACKED_BITS: Mapping[str, float] = {"fp8": 8, "awq": 4.25, "gptq": 4.25, "mxfp4": 4.25}
"""Bits of a quantised weight with its share of the scales, by `quant_method`."""

_REFUSED: Mapping[str, str] = {
    "attention_chunk_size": "chunked attention",
    "global_head_dim": "heads of two sizes",
    "index_head_dim": "an attention indexer, which has a cache of its own",
    "linear_num_key_heads": "linear attention",
    "mamba_d_state": "Mamba layers",
    "ssm_state_size": "Mamba layers",
}


@dataclass(frozen=True, slots=True)
class Weights:
    """How many parameters there are, and of which size.

    Attributes:
        parameters: All matrices.
        linear: Those of the layers: all but embedding and output head.
        experts: Those of the experts among them.
        packed: Those that the checkpoint stores quantised.
        packed_bits: Bits that one of these takes.
    """

    parameters: int
    linear: int
    experts: int
    packed: int = 0
    packed_bits: float = 0.0

    def size(self, dtype: Dtype) -> int:
        """Return bytes of all weights; `fp8` quantises the layers and leaves the rest 16 bits."""
        wide = BYTES["bf16" if dtype == "fp8" else dtype]
        if self.packed:
            return int((self.parameters - self.packed) * wide + self.packed * self.packed_bits / 8)
        return (self.parameters - self.linear) * wide + self.linear * BYTES[dtype]


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder.

    Attributes:
        name: What people call it.
        windows: For each layer that has a cache, in order: how many tokens it attends to, None
            for all.
        heads: Query heads.
        kv_heads: Key-value heads; 1 with latent attention.
        head_size: Of a key and of a value; 0 with latent attention.
        latent: Numbers of the latent vector of a token; 0 without.
        hidden: Width of the residual stream.
        intermediate: Width of what a token passes in a layer's MLP (all of its experts).
        vocabulary: Tokens that the output head scores.
        max_model_len: Tokens of its window as trained.
        dtype: Of the weights as served: fp16 where the configuration says so, else bf16. (vLLM
            serves float32 checkpoints in 16 bits unless it is told not to.)
        weights: Its parameters.
    """

    name: str
    windows: tuple[int | None, ...]
    heads: int
    kv_heads: int
    head_size: int
    latent: int
    hidden: int
    intermediate: int
    vocabulary: int
    max_model_len: int
    dtype: Dtype
    weights: Weights

    @property
    def numbers_per_head(self) -> int:
        """Numbers that a layer keeps per token and key-value head."""
        return self.latent or 2 * self.head_size

    @property
    def attention(self) -> str:
        """The kind of attention: MHA, GQA, MQA or MLA."""
        if self.latent:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


class _Fields:
    """The keys of a configuration, each checked when it is read."""

    def __init__(self, config: Mapping[str, object], where: str) -> None:
        self._config = config
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._config.get(key) is not None

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1 (0 where the default is 0)."""
        value = self._config.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{key}: missing", "is this the config.json of a language model?")
        least = 0 if default == 0 else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(f"{key}: expected a whole number of at least {least}, got {value!r}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        value = self._config.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"{key}: expected true or false, got {value!r}")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        value = self._config.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.error(f"{key}: expected text, got {value!r}")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        value = self._config.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"{key}: expected a list of texts, got {value!r}")
        return value

    def below(self, key: str) -> _Fields:
        """Return the keys below one; none where it is absent."""
        value = self._config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(f"{key}: expected an object, got {value!r}")
        return _Fields(value or {}, self._where)

    def error(self, message: str, hint: str | None = None) -> InputError:
        """Return an error about this configuration."""
        return InputError(message, where=self._where, hint=hint)


def parse_shape(config: Mapping[str, object], *, name: str, where: str) -> Shape:
    """Read the shape of a model.

    Args:
        config: The content of its `config.json`.
        name: What people call it.
        where: The file, for errors.

    Raises:
        InputError: A key is missing or of the wrong kind, or the model has a kind of layer that
            is not sized here.
    """
    top = _Fields(config, where)
    fields = top.below("text_config") if "text_config" in top else top
    for key, what in _REFUSED.items():
        if key in fields:
            raise fields.error(
                f"{key}: the model has {what}: not sized here",
                f"read {CACHE_CONFIG.name} of a pod that serves it: kv_cache_size_tokens",
            )
    latent = 0
    if "kv_lora_rank" in fields:
        latent = fields.whole("kv_lora_rank") + fields.whole("qk_rope_head_dim", 0)
    heads = fields.whole("num_attention_heads")
    hidden = fields.whole("hidden_size")
    dtype = fields.text("dtype", fields.text("torch_dtype", top.text("torch_dtype", "bfloat16")))
    experts = fields.whole("num_experts_per_tok", 0)
    dense = fields.whole("intermediate_size")
    return Shape(
        name=name,
        windows=_windows(fields),
        heads=heads,
        kv_heads=1 if latent else fields.whole("num_key_value_heads", heads),
        head_size=0 if latent else fields.whole("head_dim", max(1, hidden // heads)),
        latent=latent,
        hidden=hidden,
        intermediate=max(dense, experts * fields.whole("moe_intermediate_size", dense)),
        vocabulary=fields.whole("vocab_size"),
        max_model_len=fields.whole("max_position_embeddings"),
        dtype="fp16" if dtype == "float16" else "bf16",
        weights=_packed(top, _weights(fields)),
    )


def _windows(fields: _Fields) -> tuple[int | None, ...]:
    """Return the window of each layer that has a cache of its own."""
    layers = fields.whole("num_hidden_layers")
    own = layers - fields.whole("num_kv_shared_layers", 0)
    if "layer_types" in fields:
        kinds = fields.texts("layer_types")
        unknown = next((kind for kind in kinds if kind not in _WINDOWED), None)
        if unknown is not None or len(kinds) != layers:
            raise fields.error(
                f"layer_types: expected {layers} of {', '.join(_WINDOWED)}, "
                f"got {unknown or len(kinds)}"
            )
        windowed = [_WINDOWED[kind] for kind in kinds]
    elif "sliding_window" in fields and fields.flag("use_sliding_window", default=True):
        every = fields.whole(
            "sliding_window_pattern", _FULL_EVERY.get(fields.text("model_type", ""), 0)
        )
        windowed = [every == 0 or (layer + 1) % every != 0 for layer in range(layers)]
    else:
        windowed = [False] * layers
    window = fields.whole("sliding_window") if any(windowed) else None
    return tuple(window if slides else None for slides in windowed[:own])


def _weights(fields: _Fields) -> Weights:
    """Count the parameters of all matrices."""
    hidden, layers = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    ties = fields.text("model_type", "").startswith("gemma")  # the family's default
    tied = fields.flag("tie_word_embeddings", default=ties)
    embedding = fields.whole("vocab_size") * hidden * (1 if tied else 2)
    dense = 3 * hidden * fields.whole("intermediate_size")
    count = _experts(fields)
    sparse_layers = layers - min(layers, fields.whole("first_k_dense_replace", 0)) if count else 0
    expert = 3 * hidden * fields.whole("moe_intermediate_size", dense // (3 * hidden))
    experts = sparse_layers * count * expert
    other = sparse_layers * (hidden * count + expert * fields.whole("n_shared_experts", 0))
    linear = layers * _attention(fields) + (layers - sparse_layers) * dense + other + experts
    return Weights(parameters=embedding + linear, linear=linear, experts=experts)


def _experts(fields: _Fields) -> int:
    """Return how many routed experts a sparse layer has, 0 in a dense model."""
    for key in ("n_routed_experts", "num_local_experts", "num_experts"):
        if key in fields:
            return fields.whole(key)
    return 0


def _attention(fields: _Fields) -> int:
    """Count the parameters of one layer's attention."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if "kv_lora_rank" not in fields:
        size = fields.whole("head_dim", max(1, hidden // heads))
        return 2 * hidden * size * (heads + fields.whole("num_key_value_heads", heads))
    rank, rope = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim", 0)
    nope, value = fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim")
    query = heads * (nope + rope)
    queries = hidden * query
    if "q_lora_rank" in fields:
        queries = fields.whole("q_lora_rank") * (hidden + query)
    return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def _packed(top: _Fields, weights: Weights) -> Weights:
    """Note which weights the checkpoint stores quantised."""
    if "quantization_config" not in top:
        return weights
    method = top.below("quantization_config").text("quant_method", "")
    if method not in _PACKED_BITS:
        raise top.error(
            f"quantization_config.quant_method: expected one of {', '.join(_PACKED_BITS)}, "
            f"got {method!r}",
            "say how large the weights are, with --weights",
        )
    packed = weights.experts if method == "mxfp4" else weights.linear
    return replace(weights, packed=packed, packed_bits=_PACKED_BITS[method])
