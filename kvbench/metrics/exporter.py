"""What the exporter tells about pods that do not tell it themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.metrics.metric import Metric

METRICS: tuple[Metric, ...] = ()
