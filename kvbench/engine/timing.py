"""How long a scheduler step takes: a roofline with six constants.

A step works on sequences, each with n tokens to compute after k tokens of context. Its length is

    overhead
    + sequences × per-sequence cost                    (scheduling, sampling)
    + max(reading the weights, tokens × compute)       (Σ n tokens)
    + pairs × attention compute                        (Σ n (k + (n + 1) / 2) query-key pairs)
    + context × reading the KV cache                   (Σ k + n tokens)

The maximum is what makes batching pay: as long as the weights take longer to read than the batch
to compute, another decode is almost free, and beyond that every token costs the same. A decode is
not a special case: it has n = 1, so few pairs and all of its context to read.

Every term grows with n and k, and a cached token moves from n to k: on an idle engine a hit is
therefore never slower than the same request as a miss. What is not modelled: kernels that are
slower at odd sizes, CPU jitter, communication that grows with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepTime:
    """The constants of a model on a device; all in seconds, none negative.

    Attributes:
        overhead_s: Of every step: launching kernels, the host's loop.
        weights_s: Reading all weights once: the floor of a step's matrix products.
        token_s: Matrix products of one token, when compute is the limit.
        pair_s: Attention of one token to one token, over all layers and heads.
        context_s: Reading the keys and values of one token, over all layers.
        sequence_s: Per sequence in the batch.
    """

    overhead_s: float
    weights_s: float
    token_s: float
    pair_s: float
    context_s: float
    sequence_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{field.name}: expected 0 or more seconds, got {value}")

    def step_seconds(self, work: Sequence[tuple[int, int]]) -> float:
        """Return seconds for a step over `work`: (tokens computed, tokens of context before)."""
        tokens = context = 0
        pairs = 0.0
        for new, before in work:
            tokens += new
            context += before + new
            pairs += new * (before + (new + 1) / 2)
        return (
            self.overhead_s
            + len(work) * self.sequence_s
            + max(self.weights_s, tokens * self.token_s)
            + pairs * self.pair_s
            + context * self.context_s
        )

    def decode_seconds(self, sequences: int, tokens: int, steps: int) -> NDArray[np.float64]:
        """Return seconds of each of `steps` steps in which every sequence decodes one token.

        They are what `step_seconds` returns, to the last bit.

        Args:
            sequences: How many there are.
            tokens: Tokens of all of them in the first step, the one that is computed included.
            steps: How many steps.
        """
        context = tokens + sequences * np.arange(steps, dtype=np.float64)
        return (
            self.overhead_s
            + sequences * self.sequence_s
            + max(self.weights_s, sequences * self.token_s)
            + context * self.pair_s
            + context * self.context_s
        )

    def prefill_seconds(self, tokens: int, cached: int = 0) -> float:
        """Return seconds for a prompt of `tokens`, of which `cached` are there, alone in a step."""
        return self.step_seconds([(tokens - cached, cached)])

    def faster(self, factor: float) -> StepTime:
        """Return the same model on a device `factor` times as fast in every respect."""
        return StepTime(*(getattr(self, field.name) / factor for field in fields(self)))
