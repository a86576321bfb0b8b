"""What a metric is. The catalogue lists them; exporters, dashboards, rules and docs derive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: As it is queried, with its unit, and `_total` where it is a counter.
        kind: The Prometheus type.
        help: One sentence for the exposition and the docs.
        labels: Label names, all with a bounded set of values.
        buckets: Upper bounds of a histogram's buckets, without +Inf; empty otherwise.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
