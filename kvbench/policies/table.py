"""The policies by name: one dict, no registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.policies.balance import LeastLoad, PowerOfTwo, Random, RoundRobin
from kvbench.policies.hashing import BoundedLoad, Session
from kvbench.policies.names import DEFAULT, NAMES
from kvbench.policies.prefix_cost import PrefixCost
from kvbench.policies.prefix_estimate import PrefixEstimate
from kvbench.seeds import rng

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from kvbench.policies.decision import Policy

POLICIES: dict[str, Callable[[random.Random], Policy]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "least_load": LeastLoad,
    "power_of_two": PowerOfTwo,
    "session": Session,
    "chwbl": BoundedLoad,
    "prefix_estimate": PrefixEstimate,
    "prefix_cost": PrefixCost,
}


def make_policy(name: str, seed: int) -> Policy:
    """Return a new policy of that name, its chance drawn from `seed`.

    Raises:
        InputError: There is no such policy.
    """
    if name not in POLICIES:
        raise InputError(
            f"policy: expected one of {', '.join(NAMES)}, got {name!r}",
            hint=f"{DEFAULT} is the default",
        )
    return POLICIES[name](rng(seed, "policy", name))
