"""Memory arithmetic: what a token costs in KV cache, and how many tokens a GPU holds.

**A token.** Each layer keeps, per token, a key and a value for every key-value head that lives on
the GPU, or one latent vector (MLA). With t GPUs (tensor parallel) a GPU has heads / t of them, and
at least one: heads are replicated when there are more GPUs than heads, and so is the one latent
vector, whatever t is. So replicated bytes count once per GPU.

**Blocks.** vLLM hands memory out in blocks of `block_size` tokens. Layers that forget alike form a
group; groups draw blocks from one pool, so all blocks have the size of the largest group. A model
with one kind of layer is one group. One with two kinds is cut into groups of as many layers as the
rarer kind has (of the commoner kind, if that is less than 1.5 times as many), and what does not
divide is padding. A sequence of n tokens takes ⌈n / block_size⌉ blocks of a group that keeps
all, and of a windowed one at most ⌈(window - 1 + in flight) / block_size⌉ + 1, where "in flight"
are tokens that are scheduled and not yet settled: `max_num_batched_tokens`, twice with asynchronous
scheduling.

    blocks       = KV bytes // block bytes                  (one of them is the null block)
    concurrency  = blocks / blocks of a sequence of max_model_len
    tokens       = ⌊concurrency · max_model_len⌋            `kv_cache_size_tokens`

These equal what vLLM 0.32 reports for the same bytes; the tests compare.

**The budget** of a GPU: `gpu_memory_utilization` caps weights, activations, graphs and cache
together, so what it is lowered by is taken from the cache alone:

    KV bytes = utilisation · memory - weights - activations - context - graphs

The last three are estimates (vLLM measures them when it starts); `Overhead` states each.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.engine.shape import BYTES
from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.engine.shape import Shape

GIB = 2**30

GPUS: Mapping[str, int] = {
    "a100-40": int(39.4 * GIB),
    "a100-80": int(79.2 * GIB),
    "h100-80": int(79.2 * GIB),
    "h200": int(139.8 * GIB),
    "l4": int(22.0 * GIB),
}
"""Bytes that CUDA reports as a GPU's memory: somewhat less than what it is sold as."""

UTILIZATION = 0.92
"""vLLM's default `gpu_memory_utilization` (0.9 in earlier versions)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table.

    Attributes:
        layers: How many.
        window: Tokens that they attend to; None for all.
    """

    layers: int
    window: int | None

    def blocks(self, tokens: int, block_size: int, in_flight: int) -> int:
        """Return how many blocks a sequence of `tokens` may come to hold."""
        if self.window is None:
            return -(-tokens // block_size)
        return -(-min(self.window - 1 + in_flight, tokens) // block_size) + 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A model's KV cache on one of its GPUs.

    Attributes:
        block_size: Tokens per block.
        layer_bytes: Bytes of one token in one layer.
        groups: Its layers, by block table.
        gpus: Over how many the model is spread.
        replicas: On how many of these the same bytes lie.
    """

    block_size: int
    layer_bytes: int
    groups: tuple[Group, ...]
    gpus: int
    replicas: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers: of a windowed layer only while it is in the window."""
        return self.layer_bytes * sum(group.layers for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: that of the largest group."""
        return self.layer_bytes * self.block_size * max(group.layers for group in self.groups)

    @property
    def padding(self) -> float:
        """Share of the blocks' bytes that belong to no layer, where a sequence fills all groups."""
        widest = max(group.layers for group in self.groups)
        return 1 - sum(group.layers for group in self.groups) / (widest * len(self.groups))

    def sequence_bytes(self, tokens: int) -> int:
        """Return bytes of keys and values that a sequence of `tokens` needs, blocks aside."""
        kept = (min(tokens, group.window or tokens) * group.layers for group in self.groups)
        return self.layer_bytes * sum(kept)

    def sequence_blocks(self, tokens: int, in_flight: int) -> int:
        """Return how many blocks a sequence of `tokens` may come to hold, in all groups."""
        return sum(group.blocks(tokens, self.block_size, in_flight) for group in self.groups)


def lay_out(shape: Shape, *, dtype: str, block_size: int, gpus: int = 1) -> Layout:
    """Return how vLLM lays a model's KV cache out.

    Args:
        shape: The model.
        dtype: Of keys and values.
        block_size: Tokens per block.
        gpus: Over how many it is spread (tensor parallel).

    Raises:
        InputError: The model cannot be spread over so many.
    """
    heads = shape.kv_heads
    spread = shape.heads % gpus == 0 and (shape.latent or heads % gpus == 0 or gpus % heads == 0)
    if not spread:
        possible = [n for n in (1, 2, 4, 8, 16, 32) if shape.heads % n == 0]
        raise InputError(
            f"tensor_parallel_size: {shape.heads} heads ({heads} of keys and values) cannot be "
            f"spread over {gpus} GPUs",
            hint=f"possible: {', '.join(map(str, possible))}",
        )
    return Layout(
        block_size=block_size,
        layer_bytes=max(1, heads // gpus) * shape.numbers_per_head * BYTES[dtype],
        groups=_groups(shape),
        gpus=gpus,
        replicas=gpus if shape.latent else max(1, gpus // heads),
    )


def _groups(shape: Shape) -> tuple[Group, ...]:
    """Cut the layers into groups, as vLLM does."""
    kinds = Counter(shape.windows)
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < 1.5 * fewest else fewest
    return tuple(
        Group(len(range(first, layers, parts)), window)
        for window, layers in kinds.items()
        for parts in [math.ceil(layers / size)]
        for first in range(parts)
    )


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits into a number of bytes of KV cache on each GPU.

    Attributes:
        blocks: Blocks of the pool, the null block included: vLLM's `num_gpu_blocks`.
        concurrency: Sequences of full length that fit: `kv_cache_max_concurrency`.
        tokens: Tokens of such sequences: `kv_cache_size_tokens`.
    """

    blocks: int
    concurrency: float
    tokens: int


def capacity(layout: Layout, kv_bytes: int, max_model_len: int, in_flight: int) -> Capacity:
    """Return what fits into `kv_bytes` of each GPU.

    Args:
        layout: The model's KV cache.
        kv_bytes: Bytes of KV cache of one GPU.
        max_model_len: Most tokens of a sequence.
        in_flight: Tokens scheduled and not yet settled, at most.

    Raises:
        InputError: Not even one sequence of full length fits; vLLM would refuse to start.
    """
    blocks = max(0, kv_bytes) // layout.block_bytes
    needed = layout.sequence_blocks(max_model_len, in_flight)
    if needed > blocks - 1:
        fits = _longest(layout, blocks - 1, max_model_len, in_flight)
        size = layout.block_bytes / GIB
        raise InputError(
            f"max_model_len: one sequence of {max_model_len:,} tokens needs {needed * size:.2f} GiB"
            f" of KV cache on each GPU, and there are {max(0, kv_bytes) / GIB:.2f} GiB",
            hint=(f"--max-model-len {fits} would fit; so would " if fits else "")
            + "a higher --gpu-memory-utilization, more GPUs (--tensor-parallel-size) or "
            "--kv-cache-dtype fp8, if they suffice",
        )
    concurrency = blocks / needed
    return Capacity(blocks, concurrency, int(concurrency * max_model_len))


def _longest(layout: Layout, blocks: int, max_model_len: int, in_flight: int) -> int:
    """Return the most tokens of a sequence that fits into `blocks`, by bisection; 0 for none."""
    low, high = 0, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if layout.sequence_blocks(middle, in_flight) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a GPU holds besides weights and KV cache; bytes, estimated.

    Attributes:
        activations: Of the largest step that vLLM tries when it starts.
        context: CUDA's context and libraries, and buffers for talking to other GPUs.
        graphs: CUDA graphs.
    """

    activations: int
    context: int
    graphs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.activations + self.context + self.graphs


def estimate_overhead(shape: Shape, *, gpus: int, batched_tokens: int, seqs: int = 256) -> Overhead:
    """Estimate what a GPU needs besides weights and KV cache.

    Activations of a step of `batched_tokens`: the residual stream and what is normed and added (4
    times `hidden`), and an MLP's gate, up and product (3 times `intermediate`, spread over the
    GPUs), 2 bytes each; or the logits of `seqs` sequences and a copy, 4 bytes each, if more.
    The rest are round numbers that bring two published pods (Qwen3-32B on 2 and Llama-3.1-70B on 4
    H100) within 1 % of their token counts.
    """
    stream = 2 * batched_tokens * (4 * shape.hidden + 3 * shape.intermediate // gpus)
    logits = 2 * 4 * seqs * shape.vocabulary
    return Overhead(
        activations=max(stream, logits),
        context=int((0.6 if gpus == 1 else 1.6) * GIB),
        graphs=int(0.6 * GIB),
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """How the memory of one GPU is spent; bytes.

    Attributes:
        memory: All of it.
        utilization: Share of it that vLLM is given.
        weights: Of the model, this GPU's part.
        overhead: Estimated.
    """

    memory: int
    utilization: float
    weights: int
    overhead: Overhead

    def __post_init__(self) -> None:
        if not 0 < self.utilization <= 1:
            raise InputError(
                f"gpu_memory_utilization: expected more than 0 and at most 1, got "
                f"{self.utilization:g}",
                hint="it is the share of the GPU's memory that vLLM may use for everything",
            )

    @property
    def given(self) -> int:
        """What vLLM may use, for everything."""
        return int(self.memory * self.utilization)

    @property
    def kv_cache(self) -> int:
        """What is left for the KV cache; negative where the rest does not fit."""
        return self.given - self.weights - self.overhead.total

    def check_fits(self) -> None:
        """Refuse a budget that leaves nothing for the KV cache.

        Raises:
            InputError: It says by how much, and what to do.
        """
        if self.kv_cache > 0:
            return
        raise InputError(
            f"the model does not fit: each GPU has {self.given / GIB:.1f} GiB to use "
            f"({self.utilization:g} × {self.memory / GIB:.1f}), its part of the weights takes "
            f"{self.weights / GIB:.1f} GiB and the rest about {self.overhead.total / GIB:.1f} GiB: "
            f"{-self.kv_cache / GIB:.1f} GiB too much",
            hint="spread it over more GPUs (--tensor-parallel-size), quantise it (--dtype fp8), "
            "or take GPUs with more memory",
        )
