"""The words of the engine: what goes into it, and what a step brings out.

The engine is pure. `Engine.add` queues a request, `Engine.step(now)` runs one scheduler step that
begins at `now` and says when it ends; who drives it (a wall clock in a pod, a virtual clock in a
simulation) waits until then and hands the tokens out. Names are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine, as `vllm serve` names them.

    Attributes:
        num_gpu_blocks: Blocks of the pool, the null block included (usable: one less).
        block_size: Tokens per block.
        max_num_seqs: Most requests in one batch.
        max_num_batched_tokens: Token budget of one step.
        max_model_len: Most tokens of a request, prompt and output together.
        enable_prefix_caching: Whether blocks are kept for reuse.
        long_prefill_token_threshold: Longest chunk of a prompt in one step; 0 is no limit.
    """

    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request, tokenised.

    Attributes:
        id: Unique among the live requests of an engine.
        prompt_token_ids: The prompt, at least one token.
        max_tokens: Most tokens to generate, at least 1.
        next_token: Called with the number of tokens generated so far (0, 1, …), returns the next.
        stop_token_ids: A generated token among these ends the answer ("stop").
        cache_salt: Part of the first block's key: requests with different salts share nothing.
        lora_name: Part of every block's key.
        mm_hashes: (identifier, offset, length) of multimodal inputs: part of the keys of the
            blocks that they touch.
        keeps_blocks: Whether its blocks stay in use when it has ended, until it is aborted: a pod
            that computes prompts for others keeps them until they have been fetched.
    """

    id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    next_token: Callable[[int], int]
    stop_token_ids: frozenset[int] = frozenset()
    cache_salt: str | None = None
    lora_name: str | None = None
    mm_hashes: tuple[tuple[str, int, int], ...] = ()
    keeps_blocks: bool = False


class TokenOutput(NamedTuple):
    """What a step brought to one request; there are so many that it is a tuple.

    Attributes:
        request_id: Whose it is.
        token_ids: New tokens, in order; empty only where the request was aborted.
        finish_reason: Set with the last output of the request.
        cached_tokens: Prompt tokens found in the cache when the request was first scheduled;
            recomputation after a preemption does not change it.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """One scheduler step.

    Attributes:
        began: When it began, seconds.
        ends: When its tokens are there, seconds; equal to `began` where nothing was scheduled.
        outputs: One per request that got a token or ended.
        scheduled_tokens: Tokens computed for each scheduled request, by id.
        preempted: Ids of requests that lost their blocks and wait again.
    """

    began: float
    ends: float
    outputs: tuple[TokenOutput, ...]
    scheduled_tokens: dict[str, int]
    preempted: tuple[str, ...]


@dataclass(slots=True)
class EngineCounters:
    """Counters since the engine began; vLLM's families of the same names count the same."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_preemptions: int = 0
    evictions: int = 0
    request_success: dict[str, int] = field(default_factory=dict)


class TimeModel(Protocol):
    """How long a step takes."""

    def step_seconds(self, work: Sequence[tuple[int, int]]) -> float:
        """Return seconds for a step over `work`: (tokens computed, tokens of context before them).

        A pair with one token is a decode; more are a (chunk of a) prefill.
        """
        ...


class KVEventSink(Protocol):
    """Where cache events go, in the order in which they happen."""

    def block_stored(
        self,
        block_hashes: Sequence[int],
        parent: int | None,
        token_ids: Sequence[int],
        request: EngineRequest,
        start: int,
    ) -> None:
        """Blocks became reusable: consecutive, full, after `parent` (None: from the start).

        `start` is where the first of `token_ids` stands in the request, prompt and answer.
        """
        ...

    def block_removed(self, block_hash: int) -> None:
        """A block was evicted to make room."""
        ...

    def all_blocks_cleared(self) -> None:
        """The cache was reset."""
        ...
