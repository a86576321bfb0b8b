"""What the load generator tells: at `/metrics` of its master, for all its workers together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.metrics.metric import Metric

METRICS: tuple[Metric, ...] = ()
