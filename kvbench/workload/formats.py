"""The formats of traces, by name. A module of its own: the command line needs no more than this."""

from __future__ import annotations

from typing import Literal, TypeAlias

Format: TypeAlias = Literal[
    "plan", "mooncake", "bailian", "weka", "tracelab", "tracelab-rounds", "sharegpt", "messages",
    "aiperf", "aiperf-dag", "azure", "burstgpt", "inference-perf", "production-stack",
]  # fmt: skip
"""The formats of traces; the last two become workloads."""
