"""A pod as it was found, and what is wrong with it: the values between a doctor's eyes and head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvbench.metrics import engines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.metrics.engines import Quantity
    from kvbench.metrics.exposition import Reading

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

EventState: TypeAlias = Literal["heard", "silent", "off", "unknown"]
"""Whether events came from the endpoint given; off: the pod says that it publishes none."""

WATCHED = (engines.TTFT, engines.ITL, engines.E2E)
"""Latencies that may have an objective."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        check: Which check found it.
        severity: How bad it is.
        pod: Where; "" for all of them together.
        sentence: What it is.
        fix: What to do about it; "" if nothing.
    """

    check: str
    severity: Severity
    pod: str
    sentence: str
    fix: str = ""


@dataclass(slots=True)
class Examined:
    """A pod, as it was found.

    Attributes:
        name: What it is called.
        url: Where it is.
        trouble: Why it could not be examined; None if it could.
        model: What it serves.
        window: Tokens of its longest request.
        trained: Tokens that the model was trained for, by its configuration.
        version: The engine's.
        reading: What its metrics say; None if they cannot be read.
        bounds: Buckets of its latencies.
        told: Whether `usage` says what was cached; None if it was not asked.
        cached: Tokens cached of a prompt that had just been asked.
        events: Whether its KV events come.
        event_block: Tokens per block, by its events.
        kv_bytes_per_token: Of the model; None if unknown.
        unhealthy: What the router says is wrong with it; None if nothing.
        draining: Whether the router drains it.
    """

    name: str
    url: str
    trouble: str | None = None
    model: str = ""
    window: int | None = None
    trained: int | None = None
    version: str = ""
    reading: Reading | None = None
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    told: bool | None = None
    cached: int | None = None
    events: EventState = "unknown"
    event_block: int | None = None
    kv_bytes_per_token: int | None = None
    unhealthy: str | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True)
class SeenRouter:
    """A router, as it was found.

    Attributes:
        name: What it is called.
        trust: How far it believes what it knows of each pod's cache: "exact", "degraded", "cold".
        tokens_known: By model, whether it makes the model's tokens itself; a model that it never
            tried to is not there.
    """

    name: str
    trust: Mapping[str, str]
    tokens_known: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Wish:
    """What pods are to be good for.

    Attributes:
        block_size: Tokens per block that a router or a gateway in front expects; None: any.
        objectives: Seconds that are to be watched, by quantity.
    """

    block_size: int | None = None
    objectives: tuple[tuple[Quantity, float], ...] = ((engines.TTFT, 1.0), (engines.ITL, 0.1))
