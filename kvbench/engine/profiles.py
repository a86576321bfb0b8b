"""Models on devices: constants of `StepTime` from data sheets, and how much KV cache fits.

Each constant is arithmetic on the model's shape and the device's data sheet, times a utilisation
that is stated once, below. Written out for W weights of 2 bytes, of which E are the embedding and E
the output head; L layers, H query heads, G key-value heads, head size d; t devices:

    weights_s = 2 W / (t · bandwidth · WEIGHTS_MBU)
    token_s   = 2 (W - 2 E) / (t · FLOP/s · MFU)          a multiply-add is 2 FLOP
    pair_s    = 4 L H d / (t · FLOP/s · MFU)              q·k and p·v, 2 d FLOP each a head
    context_s = 4 L G d / (t · bandwidth · KV_MBU)        a key and a value of 2 bytes each
    KV tokens = (MEMORY_SHARE t · memory - 2 W) / (4 L G d)

The utilisations are set so that Qwen3-32B on two H100 meets what was published about it (llm-d's
benchmark "73-capacity" and its constants): 15,928 prompt tokens/s, one token in about 11 ms on an
idle pod and about 29 ms with the KV cache full of running requests, 307,328 tokens of KV cache.
The other profiles follow from the same utilisations and are not fitted to anything. (llm-d's
simulator ships slower tables: 0.15 to 0.30 ms a prompt token for 8B on an H100, where this
arithmetic says 0.03.) Use them to compare policies, not to promise milliseconds.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kvbench.engine.timing import StepTime
from kvbench.errors import InputError

MFU = 0.55
"""Share of the data sheet's FLOP/s that long prefills reach."""

WEIGHTS_MBU = 0.9
"""Share of the data sheet's bandwidth at which weights are read."""

KV_MBU = 0.7
"""Share of the data sheet's bandwidth at which a paged KV cache is read."""

OVERHEAD_S = 0.5e-3
"""Host's part of a step that CUDA graphs and asynchronous scheduling do not hide; assumed."""

SEQUENCE_S = 15e-6
"""Host's part per sequence: scheduling, sampling, detokenisation; assumed."""

MEMORY_SHARE = 0.9
"""Share of the devices' memory that vLLM is given: `gpu_memory_utilization`."""

BYTES = 2
"""Of a weight, a key or a value: bfloat16."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its data sheet: dense bfloat16 FLOP/s, bytes/s, bytes."""

    flops: float
    bandwidth: float
    memory: float


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder by its `config.json`.

    Attributes:
        parameters: All of them.
        vocabulary: Rows of the embedding, and of the output head, which is not tied to it.
        hidden: Columns of both.
        layers: Decoder layers.
        heads: Query heads.
        kv_heads: Key-value heads.
        head_size: Of all heads.
    """

    parameters: float
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a token takes in the KV cache, over all layers and devices."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on devices.

    Attributes:
        name: As asked for: "llama-3.1-8b-h100".
        time: How long steps take.
        kv_bytes_per_token: Bytes of KV cache that one token takes; 0 where it is not known.
        kv_tokens: Tokens of KV cache that fit beside the weights.
        request_s: What a request costs outside the engine before its first token, seconds: HTTP,
            queues between processes, the way back. 0 in profiles that were not measured.
        request_token_s: The same per token of its prompt, cached or not: reading and hashing it.
    """

    name: str
    time: StepTime
    kv_bytes_per_token: int
    kv_tokens: int
    request_s: float = 0.0
    request_token_s: float = 0.0

    def num_gpu_blocks(self, block_size: int) -> int:
        """Return how many blocks the KV cache has, the null block included."""
        return self.kv_tokens // block_size


# NVIDIA's data sheets: H100 SXM5 80GB, A100 SXM4 80GB, L4.
H100 = Device(flops=989e12, bandwidth=3.35e12, memory=80e9)
A100 = Device(flops=312e12, bandwidth=2.039e12, memory=80e9)
L4 = Device(flops=121e12, bandwidth=300e9, memory=24e9)

# The models' config.json on Hugging Face: meta-llama/Llama-3.1-8B, Qwen/Qwen3-32B.
LLAMA_3_1_8B = Model(8.03e9, 128256, 4096, layers=32, heads=32, kv_heads=8, head_size=128)
QWEN3_32B = Model(32.8e9, 151936, 5120, layers=64, heads=64, kv_heads=8, head_size=128)

_KNOWN = {
    "llama-3.1-8b-h100": (LLAMA_3_1_8B, H100, 1),
    "llama-3.1-8b-a100": (LLAMA_3_1_8B, A100, 1),
    "llama-3.1-8b-l4": (LLAMA_3_1_8B, L4, 1),
    "qwen3-32b-tp2-h100": (QWEN3_32B, H100, 2),
}

NAMES = tuple(_KNOWN)
"""The profiles that `profile` knows."""


def profile(name: str) -> Profile:
    """Return the profile of that name.

    Raises:
        InputError: There is none; the hint names the nearest.
    """
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, NAMES, 1, 0)
        raise InputError(
            f"profile: expected one of {', '.join(NAMES)}, got {name!r}",
            hint=f"did you mean {near[0]}?",
        )
    return derive(name, *_KNOWN[name])


def derive(name: str, model: Model, device: Device, devices: int) -> Profile:
    """Return a profile by the formulas above, for a model spread over `devices` devices."""
    compute = devices * device.flops * MFU
    products = model.parameters - 2 * model.vocabulary * model.hidden
    weight_bytes = model.parameters * BYTES
    kv_bytes = model.kv_bytes_per_token
    return Profile(
        name=name,
        time=StepTime(
            overhead_s=OVERHEAD_S,
            weights_s=weight_bytes / (devices * device.bandwidth * WEIGHTS_MBU),
            token_s=2 * products / compute,
            pair_s=4 * model.layers * model.heads * model.head_size / compute,
            context_s=kv_bytes / (devices * device.bandwidth * KV_MBU),
            sequence_s=SEQUENCE_S,
        ),
        kv_bytes_per_token=kv_bytes,
        kv_tokens=int((MEMORY_SHARE * devices * device.memory - weight_bytes) // kv_bytes),
    )
