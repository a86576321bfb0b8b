"""A pod, as policies see it.

It stands apart from what policies are asked and answer, for it is compiled, and those must not be
(`scripts/compiled.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PodState:
    """What the router knows of a pod: kept by the router, read by policies.

    Attributes:
        name: Unique and stable; "host:port" unless the operator said otherwise.
        in_flight: Requests sent to it and not yet ended, and those that others have there.
        in_flight_prefill_tokens: Of those, prompt tokens believed uncached whose first token has
            not come yet.
    """

    name: str
    in_flight: int = 0
    in_flight_prefill_tokens: int = 0
